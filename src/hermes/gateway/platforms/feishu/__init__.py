"""Feishu and Lark: a bot of a custom app, by the long connection or by webhooks."""
