"""Personal WeChat, by Tencent's iLink bot API."""

from hermes.gateway.platforms.weixin.adapter import Weixin

__all__ = ["Weixin"]
