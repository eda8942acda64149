"""WeCom (企业微信): an AI bot by its WebSocket, or an app by its callbacks and HTTP API."""
