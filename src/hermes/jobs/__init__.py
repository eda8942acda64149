"""Work that runs without a user present: a file of prompts (batch), and scheduled prompts (cron)."""
