"""Free ports for servers that are told their port.

Not from the range that the system hands out: there a socket of another test may take the port before the server has it, or
while the server is being restarted, and answer in its place.
"""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 10_240, 32_000  # below what Linux hands out (ip_local_port_range)
_dice = random.SystemRandom()


def free_port() -> int:
    """A port that no process listens on just now."""
    while True:
        port = _dice.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
