"""What adapters share: HTTP, WebSockets, listeners, tokens, markup."""
