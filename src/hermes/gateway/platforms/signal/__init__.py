"""Signal, through the daemon of signal-cli: JSON-RPC for requests, server-sent events for incoming messages.

adapter.py receives and sends; daemon.py is the connection; formatting.py turns Markdown into Signal's text styles.
"""

from hermes.gateway.platforms.signal.adapter import Signal

__all__ = ["Signal"]
