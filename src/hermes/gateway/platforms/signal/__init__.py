"""Signal, through the daemon of signal-cli: JSON-RPC for requests, server-sent events for incoming messages.

adapter.py receives and sends, in Signal's text styles; client.py is the connection.
"""
