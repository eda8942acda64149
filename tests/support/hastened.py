"""`hermes` that waits for less long, for tests in which another process has to give up.

python -m tests.support.hastened gateway    with TEST_GATEWAY_SECONDS or TEST_HANDOFF_SECONDS
"""

from __future__ import annotations

import os
import sys

from hermes.cli.main import script
from hermes.commands import chat_commands
from hermes.gateway import connection

HASTENED = [sys.executable, "-m", "tests.support.hastened"]


if __name__ == "__main__":
    connection.PATIENCE = float(os.environ.get("TEST_GATEWAY_SECONDS", connection.PATIENCE))
    chat_commands.PATIENCE = float(os.environ.get("TEST_HANDOFF_SECONDS", chat_commands.PATIENCE))
    script()
