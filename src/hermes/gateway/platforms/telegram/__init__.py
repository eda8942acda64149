"""Telegram, through a bot that its owner made with @BotFather."""
