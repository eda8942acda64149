"""WeCom (企业微信): an AI bot by its WebSocket, or an app by its callbacks and HTTP API."""

from hermes.gateway.platforms.wecom.adapter import WeCom

__all__ = ["WeCom"]
