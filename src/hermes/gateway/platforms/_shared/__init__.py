"""Shared by the adapters: HTTP and tokens, WebSockets, listeners, markup."""
