"""Exports of web services: a zip, an unpacked folder's file, shards of it, or one JSON (or JSON-lines) file."""

from __future__ import annotations

import glob
import mimetypes
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hermes.interop.histories import Conversation
from hermes.interop.json_reading import Damaged, Reading, Record, json_values

_HEAD = 200_000
_ASSETS = ("dalle-generations", "user-*", "*/audio")  # folders of pictures and recordings
_LARGEST_ASSET = 50_000_000
# What reading a damaged, encrypted or oddly compressed member of a zip raises.
_BROKEN = (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


class ExportFiles:
    """The files of an export, wherever they lie."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None) -> None:
        self._path, self._archive = path, archive

    def conversations(self, reading: Reading) -> Iterator[Record]:
        """Each conversation."""
        for name in self.names():
            where = "" if self._archive is None else f"{name}: "
            try:
                with self.open(name) as stream:
                    for number, value, reading.position in json_values(stream):
                        if isinstance(value, dict):
                            yield Record(value)
                        else:
                            reason = value.reason if isinstance(value, Damaged) else "not an object"
                            reading.damaged(number, f"{where}{reason}")
            except _BROKEN as error:
                reading.damaged(0, f"{where}{str(error) or type(error).__name__}")

    def names(self) -> list[str]:
        """The files with conversations."""
        if self._archive is None:
            return [self._path.name]
        return sorted(filter(_is_conversations, self._archive.namelist()))

    def open(self, name: str) -> IO[bytes]:
        """One of its files, opened for reading."""
        return self._path.open("rb") if self._archive is None else self._archive.open(name)

    def asset(self, name: str) -> tuple[str, bytes] | None:
        """The type and bytes of a file that a conversation refers to by (the beginning of) its name."""
        if not name or "/" in name or "\\" in name or name in (".", ".."):  # an export names its own files alone
            return None
        if self._archive is not None:
            found = next((i for i in self._archive.infolist() if i.filename.rpartition("/")[2].startswith(name)), None)
            if found is None or found.file_size > _LARGEST_ASSET:
                return None
            try:
                return _mime(found.filename), self._archive.read(found)
            except _BROKEN:
                return None
        if not name.startswith(("file-", "file_")):  # ChatGPT's uploads; other files beside it are not the export's
            return None
        # an export has pictures beside its conversations and in folders of its own
        beside = self._path.parent
        folders = [beside, *(one for kind in _ASSETS for one in sorted(beside.glob(kind)))]
        named = (path for folder in folders for path in folder.glob(f"{glob.escape(name)}*"))
        near = next((path for path in named if path.is_file() and not path.is_symlink()), None)
        return None if near is None or near.stat().st_size > _LARGEST_ASSET else (_mime(near.name), near.read_bytes())


@contextmanager
def opened(path: Path) -> Iterator[ExportFiles]:
    """An export, open for reading."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield ExportFiles(path, archive)
    else:
        yield ExportFiles(path, None)


def read_conversations(
    path: Path, reading: Reading, read_one: Callable[[Record, ExportFiles, Reading], Conversation | None]
) -> Iterator[Conversation]:
    """The conversations of an export, one by one; `read_one` reads one, and returns None for a record without messages."""
    with opened(path) as export:
        for data in export.conversations(reading):
            if (conversation := read_one(data, export, reading)) is not None:
                yield conversation
            else:
                reading.unknown["conversation without messages"] += 1


# What a conversation has its messages under, by source. A tool's input may have a key of either name, but further inside.
_MESSAGES = {"chatgpt": b'"mapping"', "claude-ai": b'"chat_messages"'}


def export_source(path: Path) -> str | None:
    """The source of an export, or None, by the first conversation that has messages."""
    return next(filter(None, map(_source_of, _heads(path))), None)


def _source_of(begin: bytes) -> str | None:
    places = {source: place for source, key in _MESSAGES.items() if (place := begin.find(key)) >= 0}
    return min(places, key=lambda source: places[source], default=None)


def _heads(path: Path) -> Iterator[bytes]:
    """The first bytes of each file of an export that has conversations. A damaged member is left out."""
    if not path.is_file():
        return
    with suppress(*_BROKEN), opened(path) as export:
        for name in export.names():
            with suppress(*_BROKEN), export.open(name) as stream:
                begin = stream.read(_HEAD)
                if begin.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{"):
                    yield begin


def conversation_files(folder: Path) -> Iterator[Path]:
    """The files below a folder that may be an export."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.suffix == ".zip" or _is_conversations(path.name)):
            yield path


def _is_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith("conversations") and base.endswith((".json", ".jsonl"))


def _mime(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
