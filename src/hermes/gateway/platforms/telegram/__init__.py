"""Telegram, through a bot that its owner made with @BotFather."""

from __future__ import annotations

from hermes.gateway.platforms.telegram.adapter import Telegram

__all__ = ["Telegram"]
