"""Exports of web services: a zip, an unpacked folder's file, shards of it, or one JSON (or JSON-lines) file."""

from __future__ import annotations

import mimetypes
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hermes.interop.histories.conversation import Skipped
from hermes.interop.jsonl import decoded

_HEAD = 200_000
_LARGEST_ASSET = 50_000_000
_CHUNK = 1 << 20
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[\[\]{}]', re.DOTALL)


class ExportFiles:
    """The files of an export, wherever they lie."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None) -> None:
        self._path, self._archive = path, archive

    def conversations(self, skipped: Skipped) -> Iterator[tuple[dict[str, Any], int]]:
        """Each conversation, and the bytes read so far."""
        for name, stream in self._streams():
            with stream:
                try:
                    for value, position in elements(stream):
                        if isinstance(value, dict):
                            yield value, position
                except ValueError as error:
                    skipped.damaged(0, f"{name}: {error}")

    def _streams(self) -> Iterator[tuple[str, IO[bytes]]]:
        if self._archive is None:
            yield self._path.name, self._path.open("rb")
            return
        for name in sorted(filter(_is_conversations, self._archive.namelist())):
            yield name, self._archive.open(name)

    def asset(self, name: str) -> tuple[str, bytes] | None:
        """The type and bytes of a file that a conversation refers to by (the beginning of) its name."""
        if not name or "/" in name or "\\" in name or name in (".", ".."):  # an export names its own files alone
            return None
        if self._archive is not None:
            found = next((i for i in self._archive.infolist() if i.filename.rpartition("/")[2].startswith(name)), None)
            if found is None or found.file_size > _LARGEST_ASSET:
                return None
            return _mime(found.filename), self._archive.read(found)
        if not name.startswith(
            ("file-", "file_")
        ):  # as ChatGPT names uploads: other files beside it are not the export's
            return None
        near = next(
            (p for p in self._path.parent.glob(f"{_escaped(name)}*") if p.is_file() and not p.is_symlink()), None
        )
        return None if near is None or near.stat().st_size > _LARGEST_ASSET else (_mime(near.name), near.read_bytes())


@contextmanager
def opened(path: Path) -> Iterator[ExportFiles]:
    """An export, open for reading."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield ExportFiles(path, archive)
    else:
        yield ExportFiles(path, None)


def head(path: Path) -> bytes:
    """The first bytes of an export's conversations, for telling whose it is; b"" when it has none."""
    if not path.is_file():
        return b""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(iter(sorted(filter(_is_conversations, archive.namelist()))), None)
                if name is None:
                    return b""
                with archive.open(name) as member:
                    return member.read(_HEAD)
        if path.suffix not in (".json", ".jsonl", ""):
            return b""
        with path.open("rb") as stream:
            return stream.read(_HEAD)
    except (OSError, zipfile.BadZipFile, RuntimeError):  # RuntimeError: an encrypted zip
        return b""


def conversation_files(folder: Path) -> Iterator[Path]:
    """What may be an export, below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.suffix == ".zip" or _is_conversations(path.name)):
            yield path


def _is_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith("conversations") and base.endswith((".json", ".jsonl"))


def _mime(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _escaped(name: str) -> str:
    import glob

    return glob.escape(name)


def elements(stream: IO[bytes]) -> Iterator[tuple[Any, int]]:
    """Each object of the array in a stream (or the one object that it is) and the bytes read so far.

    An export of gigabytes is read in the memory of its largest element.
    ValueError where an element is no JSON, or the stream ends inside one.
    """
    buffer = b""
    position = depth = at = 0
    start = -1  # where the element that is being read begins
    outer: int | None = None  # the depth of elements: 1 in an array, 0 for an object alone
    while chunk := stream.read(max(_CHUNK, len(buffer))):
        position += len(chunk)
        keep = start if start >= 0 else at
        buffer, at, start = buffer[keep:] + chunk, at - keep, 0 if start >= 0 else -1
        for match in _TOKEN.finditer(buffer, at):
            at = match.end()
            if match[0][0] == 0x22:
                if not match[1]:  # the string goes on in the next chunk
                    at = match.start()
                    break
            elif match[0] in b"[{":
                if outer is None:
                    outer = 1 if match[0] == b"[" else 0
                if depth == outer:
                    start = match.start()
                depth += 1
            else:
                depth -= 1
                if depth == outer and start >= 0:
                    yield decoded(buffer[start:at]), position - len(buffer) + at
                    start = -1
                if depth <= 0:
                    return
        else:
            at = len(buffer)
    if depth > 0:
        raise ValueError("the file ends in the middle of a conversation")
