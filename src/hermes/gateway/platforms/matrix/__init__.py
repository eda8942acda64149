"""Matrix: any home server, encrypted rooms included, through matrix-nio.

adapter.py receives and sends; client.py is nio's client made strict about failures and key sharing; incoming.py reads
messages, outgoing.py writes ours; saved_state.py is what must survive a restart.
"""

from hermes.gateway.platforms.matrix.adapter import Matrix

__all__ = ["Matrix"]
