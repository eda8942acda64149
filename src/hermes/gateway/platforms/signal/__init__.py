"""Signal, through the daemon of signal-cli: JSON-RPC for requests, server-sent events for incoming messages.

adapter.py receives and sends; client.py is the connection; outgoing.py turns Markdown into Signal's text styles.
"""
