"""The gateway's logs: lines for people on the screen, JSON lines in a file, and no secret in either.

Every log line and warning of any library passes the same mask: secrets of the configuration and the environment by
their text, others by their shape.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from hermes.home import make_private
from hermes.texts import harmless

FILE_BYTES, FILES = 5_000_000, 5
MASK = "••••"
_SHORTEST = 6  # a "secret" of five letters would mask half of everything
_SPACING = 1.0  # seconds between two lines that outsiders can cause


class Masking:
    """Masks secrets in texts: known ones by their text, others by their shape."""

    def __init__(self, secrets: Iterable[str]) -> None:
        from urllib.parse import quote

        plain = {one for one in secrets if len(one) >= _SHORTEST}
        written = plain | {quote(one, safe="") for one in plain} | {json.dumps(one)[1:-1] for one in plain}
        self._secrets = sorted(written, key=len, reverse=True)

    def masked(self, text: str) -> str:
        """The text without secrets."""
        from hermes.store.redact import redact

        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return redact(text)


class Output(logging.Handler):
    """Hands masked lines to other handlers.

    Of the lines that outsiders can cause at will it hands on one a second; the next one has the number of omitted lines.
    """

    _STRANGERS = ("asyncio", "uvicorn", "hermes.gateway.webhook", "hermes.serve")

    def __init__(self, masked: Callable[[str], str], *handlers: logging.Handler) -> None:
        super().__init__()
        self._masked, self._handlers = masked, handlers
        self._last: dict[
            tuple[str, str], tuple[float, int]
        ] = {}  # when a line was written, and how many were omitted since

    def emit(self, record: logging.LogRecord) -> None:
        """Replace the record's text, and that of its exception, by the masked text, and hand it on."""
        key, left_out = (record.name, str(record.msg)[:80]), 0
        if record.levelno >= logging.WARNING and record.name.startswith(self._STRANGERS):
            at, left_out = self._last.get(key, (float("-inf"), 0))
            if record.created - at < _SPACING:
                self._last[key] = (at, left_out + 1)
                return
            if len(self._last) > 1000:
                self._last.clear()
            self._last[key] = (record.created, 0)
        try:
            text = record.getMessage()
        except Exception:  # a library's broken format string
            text = f"{record.msg} {record.args}"
        text += f" (and {left_out} more like this)" if left_out else ""
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        if record.stack_info:
            text += "\n" + record.stack_info
        record.exc_info = record.exc_text = record.stack_info = None
        record.msg, record.args = self._masked(text), None
        for one in self._handlers:
            one.handle(record)

    def close(self) -> None:
        """Close the other handlers, too."""
        for one in self._handlers:
            one.close()
        super().close()


class Line(logging.Formatter):
    """`15:04:05 telegram: connected as @bot`."""

    def format(self, record: logging.LogRecord) -> str:
        """For people: control characters in other people's text can do nothing to the terminal."""
        where = record.name.removeprefix("hermes.gateway").removeprefix("hermes.").strip(".")
        mark = {"WARNING": "! ", "ERROR": "✗ ", "CRITICAL": "✗ "}.get(record.levelname, "")
        head = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{head} {mark}{where + ': ' if where else ''}{harmless(record.getMessage())}"


class Json(logging.Formatter):
    """One JSON object a line: at, level, from, text."""

    def format(self, record: logging.LogRecord) -> str:
        """For programs: times in UTC."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        entry = {"at": at, "level": record.levelname.lower(), "from": record.name, "text": record.getMessage()}
        return json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace").decode()


class PrivateFile(RotatingFileHandler):
    """A log that is rotated when it has grown long; only its owner can read it, or any of the older ones."""

    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(handle, 0o600)
        return open(handle, "a", encoding="utf-8")


def start_logging(home: Path, secrets: Iterable[str], *, verbose: bool = False, file_bytes: int = FILE_BYTES) -> Path:
    """Log to the screen and to `<home>/logs/gateway.jsonl`; returns that path. A longer file is rotated."""
    folder = home / "logs"
    make_private(folder)
    path = folder / "gateway.jsonl"
    screen = logging.StreamHandler()
    screen.setFormatter(Line())
    file = PrivateFile(path, maxBytes=file_bytes, backupCount=FILES, encoding="utf-8")
    file.setFormatter(Json())
    root = logging.getLogger()
    root.addHandler(Output(Masking(secrets).masked, screen, file))
    root.setLevel(logging.WARNING)
    logging.getLogger("hermes").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # with a closed terminal, logging would print the line that failed, unmasked
    threading.excepthook = _thread_failed
    return path


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """Log a thread that died of an error here, not unmasked on the screen."""
    if failure.exc_value is not None:
        exception = (failure.exc_type, failure.exc_value, failure.exc_traceback)
        logging.getLogger("hermes.gateway").error("a thread died of an error", exc_info=exception)
