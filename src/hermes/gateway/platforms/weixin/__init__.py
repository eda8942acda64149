"""Personal WeChat, by Tencent's iLink bot API."""
