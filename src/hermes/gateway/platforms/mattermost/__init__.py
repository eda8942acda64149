"""Mattermost, by its REST API (version 4) and its WebSocket."""

from hermes.gateway.platforms.mattermost.adapter import Mattermost

__all__ = ["Mattermost"]
