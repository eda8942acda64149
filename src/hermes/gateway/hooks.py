"""Commands of the user's that are run when a session ends or begins anew, with the session as JSON on standard input."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes.config import Config

FINALIZE, RESET = "on_session_finalize", "on_session_reset"
TIMEOUT = 60.0
_log = logging.getLogger("hermes.gateway")


def run_hook(config: Config, name: str, session: dict[str, Any] | None, **more: Any) -> threading.Thread | None:
    """Run a hook in the background; a failing one is a line in the log, nothing else."""
    command = config.hooks.get(name)
    if not command or session is None:
        return None
    data = json.dumps({**session, **more}, default=str).encode()
    thread = threading.Thread(target=_run, args=(name, command, data), name=f"hermes-{name}", daemon=True)
    thread.start()
    return thread


def _run(name: str, command: str | list[str], data: bytes) -> None:
    try:
        done = subprocess.run(
            command, shell=isinstance(command, str), input=data, capture_output=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.error("the hook %s failed: %s", name, error)
        return
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-200:]
        _log.error("the hook %s ended with status %s: %s", name, done.returncode, said)
