"""`!command`: a command of the user's own. What it prints is shown at once and becomes part of the conversation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hermes.agent.prompt_messages import OWN_COMMAND, TOOL_BUDGET
from hermes.chat.keyboard import shells_keyboard
from hermes.texts import harmless, without_middle

_AT_ONCE = 65_536  # bytes
_PATIENCE = 3.0  # seconds a command has to end after Ctrl-C


def run_own_command(command: str, folder: Path) -> tuple[str, int]:
    """Run a command in the user's shell, at the terminal; the message about it, and its exit status. Ctrl-C ends it."""
    kept, echoed = b"", False  # whether the terminal has printed ^C
    words = [os.environ.get("SHELL") or "/bin/sh", "-c", command]
    with (
        shells_keyboard(),
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child,
    ):
        assert child.stdout is not None
        try:
            while data := os.read(child.stdout.fileno(), _AT_ONCE):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                kept += data
                if len(kept) > 20 * TOOL_BUDGET:  # of an endless output its two ends
                    kept = kept[: 4 * TOOL_BUDGET] + kept[-4 * TOOL_BUDGET :]
            status = child.wait()
        except KeyboardInterrupt:  # the command got it, too
            echoed = True
            try:
                status = child.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                status = child.wait()
        except BaseException:
            child.kill()
            raise
    if echoed or not kept.endswith(b"\n"):
        print(flush=True)
    output = without_middle(harmless(kept.decode("utf-8", "replace")).strip("\n"), TOOL_BUDGET)
    lines = [OWN_COMMAND, f"$ {command}", output or "(no output)", *([f"[exit status {status}]"] if status else [])]
    return "\n".join(lines), status
