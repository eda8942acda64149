"""Names for new sessions: when they began, and a little chance so that two of the same second differ."""

from __future__ import annotations

import secrets
import time


def new_session_id(*, gateway: bool = False) -> str:
    """`YYYYMMDD_HHMMSS_` and six random hex digits; eight for a session of the gateway."""
    return f"{time.strftime('%Y%m%d_%H%M%S')}_{secrets.token_hex(4 if gateway else 3)}"
