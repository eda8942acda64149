"""Work that runs without a user present: a file of prompts (batch), and prompts by the clock (cron)."""
