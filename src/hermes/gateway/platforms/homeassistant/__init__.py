"""Home Assistant as a chat platform: events of the house come in, notifications and events go out.

adapter.py turns one into the other; websocket.py speaks the WebSocket API; formatting.py makes text fit for notifications.
"""
