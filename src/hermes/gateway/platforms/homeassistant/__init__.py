"""Home Assistant as a chat platform: events of the house come in, notifications and events go out.

adapter.py turns one into the other; client.py speaks the WebSocket API.
"""
