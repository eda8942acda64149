"""DingTalk, by its Stream mode and its HTTP API."""

from hermes.gateway.platforms.dingtalk.adapter import DingTalk

__all__ = ["DingTalk"]
