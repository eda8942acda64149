"""Shared by the adapters: HTTP, WebSockets, listeners, tokens, markup."""
