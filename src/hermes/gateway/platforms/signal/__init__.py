"""Signal, through the daemon of signal-cli: JSON-RPC for what we do, server-sent events for what happens.

adapter.py receives and sends; daemon.py is the wire; formatting.py turns Markdown into Signal's text styles.
"""

from hermes.gateway.platforms.signal.adapter import Signal

__all__ = ["Signal"]
