"""What the gateway tells: lines for people on the screen, JSON lines in a file, and no secret in either.

Everything any library logs goes through the same mask: values of secret settings by their text, other secrets by their
shape.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from hermes.home import make_private

FILE_BYTES, FILES = 5_000_000, 5
_SHORTEST = 6  # a "secret" of five letters would mask half of everything


class Masking(logging.Filter):
    """Takes secrets out of a line before anybody sees it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__()
        self._secrets = sorted({one for one in secrets if len(one) >= _SHORTEST}, key=len, reverse=True)

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # a library's broken format string
            text = str(record.msg)
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
            record.exc_info = record.exc_text = None
        record.msg, record.args = self.masked(text), None
        return True

    def masked(self, text: str) -> str:
        """The text without secrets."""
        from hermes.store.redact import redact

        for secret in self._secrets:
            text = text.replace(secret, "••••")
        return redact(text)


class Line(logging.Formatter):
    """`15:04:05 telegram: connected as @bot`."""

    def format(self, record: logging.LogRecord) -> str:
        where = record.name.removeprefix("hermes.gateway").removeprefix("hermes.").strip(".")
        mark = {"WARNING": "! ", "ERROR": "✗ ", "CRITICAL": "✗ "}.get(record.levelname, "")
        head = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{head} {mark}{where + ': ' if where else ''}{record.getMessage()}"


class Json(logging.Formatter):
    """One JSON object a line: at, level, from, text."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        entry = {"at": at, "level": record.levelname.lower(), "from": record.name, "text": record.getMessage()}
        return json.dumps(entry, ensure_ascii=False)


def start_logging(home: Path, secrets: Iterable[str], *, verbose: bool = False) -> Path:
    """Log to the screen and to `<home>/logs/gateway.jsonl`; where the file is."""
    folder = home / "logs"
    make_private(folder)
    path = folder / "gateway.jsonl"
    mask = Masking(secrets)
    screen = logging.StreamHandler()
    screen.setFormatter(Line())
    file = RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8")
    file.setFormatter(Json())
    path.chmod(0o600)
    root = logging.getLogger()
    for handler in (screen, file):
        handler.addFilter(mask)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("hermes").setLevel(logging.DEBUG if verbose else logging.INFO)
    return path
