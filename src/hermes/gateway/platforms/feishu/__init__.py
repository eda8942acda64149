"""Feishu and Lark: a bot of a custom app, by the long connection or by webhooks."""

from hermes.gateway.platforms.feishu.adapter import Feishu

__all__ = ["Feishu"]
