"""Signal, through the daemon of signal-cli: JSON-RPC for requests, server-sent events for incoming messages.

adapter.py receives and sends; daemon.py is the connection; formatting.py turns Markdown into Signal's text styles.
"""
