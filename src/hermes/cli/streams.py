"""Standard streams that a shell may pass closed, full, or to a reader that stops reading.

`prepare` runs before the first command, `finish` after the last: output that could not be written is one line on standard
error and status 1; a reader that has gone (`… | head -1`) is no error. A line on standard error comes after what was
printed before it, even if both go into one file.
"""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Make all three streams usable. A closed one is opened again, so that no other file gets its number.

    Standard output that was closed can't be written to, as before; standard error that was closed is dropped.
    """
    for number, how in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):  # 1: so that writing is an error
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, how), number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if os.path.sameopenfile(1, 2) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # one file for both: lines in the order they were written


def finish(status: int) -> int:
    """Flush the streams; returns the exit status."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop(1)
    except OSError as error:
        if not status:
            complain(f"standard output: {error.strerror or error}")
        drop(1)
        status = status or 1
    try:
        sys.stderr.flush()
    except OSError:
        drop(2)
    return status


_printed: set[str] = set()  # the lines that `complain` has printed


def complain(text: str, *, once: bool = False) -> None:
    """Print one line on standard error, if it can be written; quoted text can do nothing to the terminal.

    `once`: not again if the same line was printed before.
    """
    from hermes.cli.output import message
    from hermes.texts import harmless

    if once and text in _printed:
        return
    _printed.add(text)
    try:
        print(message(f"hermes: {as_called(harmless(text))}", sys.stderr), file=sys.stderr)
    except OSError:
        drop(2)


def called() -> str:
    """The name this program was started by: hermes, or hermes-sessions where another program has that name."""
    return "hermes-sessions" if os.path.basename(sys.argv[0]) == "hermes-sessions" else "hermes"


def as_called(text: str) -> str:
    """A message whose `commands` begin with the name this program was started by."""
    return (
        text if called() == "hermes" else text.replace("`hermes ", f"`{called()} ").replace("`hermes`", f"`{called()}`")
    )


def drop(number: int) -> None:
    """Replace a stream that can't be written to: Python's shutdown needs a place for the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
