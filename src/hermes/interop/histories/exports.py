"""Exports of web services: a zip, an unpacked folder's file, shards of it, or one JSON (or JSON-lines) file."""

from __future__ import annotations

import mimetypes
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from hermes.interop.formats import Found, Problem
from hermes.interop.histories.conversation import Conversation, Skipped, json_lines_of
from hermes.interop.jsonl import decoded

_HEAD = 200_000
_LARGEST_ASSET = 50_000_000
_CHUNK = 1 << 20
LONGEST = 128 << 20  # bytes of one conversation: reading it takes several times as much memory
# Possessive: a string of megabytes must not leave a place to come back to at each of its characters.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{}]', re.DOTALL)
# What reading a damaged, encrypted or oddly compressed member of a zip raises.
_BROKEN = (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


class ExportFiles:
    """The files of an export, wherever they lie."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None) -> None:
        self._path, self._archive = path, archive

    def conversations(self, skipped: Skipped) -> Iterator[tuple[dict[str, Any], int]]:
        """Each conversation, and the bytes read so far."""
        for name in self.names():
            where = "" if self._archive is None else f"{name}: "
            try:
                with self._open(name) as stream:
                    for value, position in _values(name, stream, skipped):
                        if isinstance(value, dict):
                            yield value, position
                        else:
                            reason = value.reason if isinstance(value, Damaged) else "not an object"
                            skipped.damaged(0, f"{where}{reason}")
            except _BROKEN as error:
                skipped.damaged(0, f"{where}{str(error) or type(error).__name__}")

    def names(self) -> list[str]:
        """The files with conversations."""
        if self._archive is None:
            return [self._path.name]
        return sorted(filter(_is_conversations, self._archive.namelist()))

    def _open(self, name: str) -> IO[bytes]:
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
        if not name.startswith(
            ("file-", "file_")
        ):  # as ChatGPT names uploads: other files beside it are not the export's
            return None
        # an export has pictures beside its conversations and in folders of its own
        folders = (self._path.parent, *sorted(self._path.parent.glob("dalle-generations")),
                   *sorted(self._path.parent.glob("user-*")), *sorted(self._path.parent.glob("*/audio")))  # fmt: skip
        near = next(
            (p for folder in folders for p in folder.glob(f"{_escaped(name)}*") if p.is_file() and not p.is_symlink()),
            None,
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


def read_conversations(
    path: Path, problems: list[Problem], made: Callable[[dict[str, Any], ExportFiles, Skipped], Conversation | None]
) -> Iterator[Found]:
    """The conversations of an export, one by one; `made` reads one, and gives None for what is none."""
    skipped = Skipped(path, problems)
    with opened(path) as export:
        for told, position in export.conversations(skipped):
            conversation = made(told, export, skipped)
            if conversation is None:
                skipped.unknown["conversation without messages"] += 1
                continue
            session = conversation.session()
            if session is not None:
                yield Found(0, session, position)
    skipped.report()


# What a conversation has its messages under, by source. A tool's input may have a key of either name, but further inside.
_MESSAGES = {"chatgpt": b'"mapping"', "claude-ai": b'"chat_messages"'}


def whose(path: Path) -> str | None:
    """The source of an export, or None: the first conversation that has messages tells it."""
    return next(filter(None, map(_told_by, _heads(path))), None)


def _told_by(begin: bytes) -> str | None:
    places = {source: place for source, key in _MESSAGES.items() if (place := begin.find(key)) >= 0}
    return min(places, key=lambda source: places[source], default=None)


def _heads(path: Path) -> Iterator[bytes]:
    """The first bytes of each file of an export that has conversations."""
    if not path.is_file():
        return
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from map(partial(_head_of, archive), ExportFiles(path, archive).names())
        else:
            with path.open("rb") as stream:
                begin = stream.read(_HEAD)
                if begin.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{"):
                    yield begin
    except _BROKEN:
        return


def _head_of(archive: zipfile.ZipFile, name: str) -> bytes:
    """The beginning of a member; b"" when it is damaged."""
    try:
        with archive.open(name) as member:
            return member.read(_HEAD)
    except _BROKEN:
        return b""


def _values(name: str, stream: IO[bytes], skipped: Skipped) -> Iterator[tuple[Any, int]]:
    """What stands in a file: an array, one object, or an object a line."""
    begin = stream.read(_HEAD).removeprefix(b"\xef\xbb\xbf")
    stream.seek(0)
    if begin.lstrip()[:1] == b"{" and (name.endswith(".jsonl") or _is_line(begin)):
        for _, line, position in json_lines_of(stream, skipped):
            yield dict(line), position
    else:
        yield from elements(stream)


def _is_line(begin: bytes) -> bool:
    """Whether the first line is an object of its own; one object on several lines is none."""
    first, end, rest = begin.lstrip().partition(b"\n")
    try:
        return bool(end) and bool(rest.strip()) and isinstance(decoded(first.strip()), dict)
    except ValueError:
        return False


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


@dataclass(frozen=True, slots=True)
class Damaged:
    """An element of an array that can't be read, and why."""

    reason: str


def elements(stream: IO[bytes], longest: int = LONGEST) -> Iterator[tuple[Any, int]]:
    """Each object of the array in a stream (or the one object that it is) and the bytes read so far.

    An export of gigabytes is read in the memory of its largest element; an element that is no JSON, or is longer than
    `longest` bytes, comes as `Damaged` and costs no other. ValueError where the stream ends inside one.
    """
    reader = _ElementReader(longest)
    while chunk := stream.read(max(_CHUNK, len(reader.buffer))):
        yield from reader.fed(chunk)
        if reader.is_over:
            return
    if reader.depth > 0:
        raise ValueError("the file ends in the middle of a conversation")


class _ElementReader:
    """Finds the elements in bytes that come in chunks."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.buffer = b""
        self.depth = 0
        self.is_over = False
        self._at = self._position = 0
        self._start = -1  # where the element that is being read begins
        self._too_long = False  # of the element that is being read only the brackets are followed
        self._outer: int | None = None  # the depth of elements: 1 in an array, 0 for an object alone

    def fed(self, chunk: bytes) -> Iterator[tuple[Any, int]]:
        """The elements that end in this chunk."""
        self._position += len(chunk)
        keep = self._start if self._start >= 0 else self._at
        self.buffer = self.buffer[keep:] + chunk
        self._at -= keep
        self._start = 0 if self._start >= 0 else -1
        for match in _TOKEN.finditer(self.buffer, self._at):
            self._at = match.end()
            if match[0][0] == 0x22:
                if not match[1]:  # the string goes on in the next chunk
                    self._at = match.start()
                    break
            elif match[0] in b"[{":
                if self._outer is None:
                    self._outer = 1 if match[0] == b"[" else 0
                if self.depth == self._outer:
                    self._start = match.start()
                self.depth += 1
            else:
                self.depth -= 1
                if self.depth == self._outer and (self._start >= 0 or self._too_long):
                    yield self._element(), self._position - len(self.buffer) + self._at
                    self._start, self._too_long = -1, False
                if self.depth <= 0:
                    self.is_over = True
                    return
        else:
            self._at = len(self.buffer)
        self._shed()

    def _element(self) -> Any:
        if self._too_long:
            return Damaged(f"a conversation longer than {self._longest >> 20} MB")
        try:
            return decoded(self.buffer[self._start : self._at])
        except ValueError as error:
            return Damaged(str(error))

    def _shed(self) -> None:
        """Drop what an element that is too long has so far; inside a string, its beginning stays as an empty one's."""
        if self._start >= 0 and len(self.buffer) - self._start > self._longest:
            self._start, self._too_long = -1, True
        if len(self.buffer) - self._at > self._longest:  # a string that does not end
            escape = b"\\" if (len(self.buffer) - len(self.buffer.rstrip(b"\\"))) % 2 else b""
            self.buffer, self._at = b'"' + escape, 0
