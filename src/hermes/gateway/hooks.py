"""The user's commands that run when a session ends or is reset, with the session as JSON on standard input."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.records.rows import SessionRow

FINALIZE, RESET = "on_session_finalize", "on_session_reset"
RESETS = ("idle", "daily")  # the reasons of a reset
TIMEOUT = 60.0
_log = logging.getLogger("hermes.gateway")


def run_hook(
    config: Config, name: str, session: SessionRow | None, *, timeout: float = TIMEOUT, **more: Any
) -> threading.Thread | None:
    """Run a hook in the background; a failure only goes to the log."""
    command = config.hooks.get(name)
    if not command or session is None:
        return None
    data = json.dumps({**session, **more}, default=str).encode()
    thread = threading.Thread(target=_run, args=(name, command, data, timeout), name=f"hermes-{name}", daemon=True)
    thread.start()
    return thread


def _run(name: str, command: str | list[str], data: bytes, timeout: float) -> None:
    """Run it until it ends, or to the time limit; then its children are killed, too. Its standard error goes to the log."""
    with tempfile.TemporaryFile() as errors:
        try:
            started = subprocess.Popen(
                command, shell=isinstance(command, str), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            _log.error("the hook %s could not be started: %s", name, error)
            return
        try:
            started.communicate(data, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            _log.error("the hook %s did not end within %g s and was killed", name, timeout)
            return
        if started.returncode != 0:
            errors.seek(0, os.SEEK_END)
            errors.seek(max(0, errors.tell() - 200))
            output = errors.read().decode(errors="replace").strip()
            _log.error("the hook %s exited with status %s: %s", name, started.returncode, output)
