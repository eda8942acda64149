"""Work that runs without anybody talking: a file of prompts (batch), and prompts by the clock (cron)."""
