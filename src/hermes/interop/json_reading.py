"""Read JSON of other programs: one value per line, one value over several lines, an array of gigabytes; also in zstd.

A damaged line or element is skipped and noted in `Reading`; no more than one line or one element of an array is held in memory.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PosixPath
from typing import IO, Any

import msgspec

from hermes.interop.formats import Problem
from hermes.texts import counted

LONGEST = 128 << 20  # bytes of a line or an element: reading one takes several times as much memory
_CHUNK = 1 << 20
_PEEKED = 256
_LONGEST_FIRST = 4_000_000  # bytes of a line that is read to detect a format
# Possessive: a string of megabytes must not leave a place to come back to at each of its characters.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{}]', re.DOTALL)


def decoded(data: bytes) -> Any:
    """The value of JSON text; ValueError when it is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"))  # escaped lone surrogates are fine for Python's own
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, at character {error.pos + 1})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_json(value: Any, otherwise: Any = None) -> Any:
    """The value of a JSON text; `otherwise` where it is damaged, and a value that is no text as it is."""
    try:
        if isinstance(value, (str, bytes)):
            return decoded(value.encode() if isinstance(value, str) else value)
        return value
    except ValueError:
        return otherwise


def encoded(value: Any) -> bytes:
    """JSON in UTF-8, on one line. Text that UTF-8 can't hold (lone surrogates) is escaped, so nothing is lost."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):  # UnicodeEncodeError is a ValueError
        return json.dumps(value, ensure_ascii=True).encode()


def compact(value: Any) -> str:
    """JSON on one line."""
    return encoded(value).decode()


_MILLISECONDS = 1e11  # a time above this is in milliseconds: in seconds it would be in the year 5138
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
FIRST, LAST = -62_135_596_800.0, 253_402_300_799.0  # seconds since 1970: the years 1 to 9999


class Record(dict[str, Any]):
    """An object of a program's file, and its values by their types."""

    @staticmethod
    def of(value: Any) -> Record:
        """A value that is an object as a record; an empty one in the place of any other."""
        return value if isinstance(value, Record) else Record(value if isinstance(value, dict) else ())

    @staticmethod
    def all(value: Any) -> list[Record]:
        """The objects of a list; [] when it is no list."""
        return [Record.of(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []

    def object(self, key: str) -> Record:
        """An object, or an empty one."""
        value = self.get(key)
        if isinstance(value, dict) and not isinstance(value, Record):
            value = self[key] = Record(value)
        return value if isinstance(value, Record) else Record()

    def objects(self, key: str) -> list[Record]:
        """The objects of a list; [] when it is no list."""
        value = self.get(key)
        if isinstance(value, list):
            value[:] = [Record(one) if isinstance(one, dict) and not isinstance(one, Record) else one for one in value]
        return Record.all(value)

    def text(self, key: str) -> str | None:
        """A text that is not blank, or None."""
        return text(self.get(key))

    def time(self, key: str) -> float | None:
        """A time, as `seconds` reads it, or None."""
        return seconds(self.get(key))

    def count(self, key: str) -> int | None:
        """A number of tokens, or None."""
        value = self.number(key)
        return int(value) if value is not None and 0 <= value < 1 << 63 else None

    def number(self, key: str) -> float | None:
        """A number, such as a cost, or None."""
        value = self.get(key)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def counts(self, keys: Sequence[str], *, with_cached: bool = False) -> dict[str, int]:
        """The known token counts by our names; `keys` are the program's, in the order of `TOKENS` ("": it has no such count).

        `with_cached`: the program counts what the model's cache had as sent, too.
        """
        found = {name: number for name, key in zip(TOKENS, keys) if (number := self.count(key)) is not None}
        if with_cached and "input_tokens" in found:
            found["input_tokens"] = max(0, found["input_tokens"] - found.get("cache_read_tokens", 0))
        return found


def text(value: Any) -> str | None:
    """A text that is not blank, or None."""
    return value if isinstance(value, str) and value.strip() else None


def seconds(value: Any) -> float | None:
    """A time in seconds since 1970 from ISO text, seconds or milliseconds; None when it is none of them.

    A time outside the years 1 to 9999 is none: no program could write it again.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        at = value / 1000 if value > _MILLISECONDS else value
        return float(at) if FIRST <= at <= LAST else None
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        try:
            return seconds(float(value))
        except ValueError:
            return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


class Reading:
    """The progress of reading a file: how many bytes were read, the damaged parts, and the unknown kinds of records."""

    def __init__(self, path: Path, problems: list[Problem] | None = None) -> None:
        self._path = path
        self.problems: list[Problem] = [] if problems is None else problems
        self.position = 0  # bytes that were read, for progress
        self.unknown: Counter[str] = Counter()

    def damaged(self, line: int, reason: str) -> None:
        """Note a line that can't be read."""
        self.problems.append(Problem(line, reason, self._path))

    def report(self) -> None:
        """Name each unknown kind once."""
        for kind, times in self.unknown.most_common():
            note = f"{counted(times, 'unknown record')} of type {kind[:60]!r}"
            self.problems.append(Problem(0, note, self._path, unknown=kind, times=times))


def json_lines(path: Path, reading: Reading) -> Iterator[tuple[int, Record]]:
    """Each object of a JSON-lines file with its line number; a damaged line is skipped.

    A last line without an end may still be being written: it is not damaged, it comes with the next import.
    """
    with open_text(path) as stream:
        if not isinstance(path, Window):
            yield from json_lines_of(stream, reading)
            return
        for offset, number in path.kept:
            stream.seek(offset)
            yield from islice(json_lines_of(stream, reading, number, offset), 1)
        stream.seek(path.start)
        for found in json_lines_of(stream, reading, path.line, path.start):
            if path.end is not None and reading.position > path.end:
                return
            yield found


class Window(PosixPath):
    """A JSON-lines file of which only a part is read: a few records, and the lines from one place to another."""

    kept: tuple[tuple[int, int], ...] = ()  # of each record its offset and how many lines come before it
    start = line = 0
    end: int | None = None


def json_lines_of(stream: Any, reading: Reading, lines: int = 0, position: int = 0) -> Iterator[tuple[int, Record]]:
    """Each object of an open JSON-lines file; objects that are written over several lines, too, with their place for a number.

    The stream stands after so many `lines`, at `position`.
    """
    for place, (number, value, reading.position) in enumerate(json_values(stream, lines, position), 1):
        if isinstance(value, dict):
            yield number or place, Record(value)
        elif not isinstance(value, Damaged):
            reading.damaged(number, "not an object")
        elif not value.is_open:
            reading.damaged(number, value.reason)


def json_values(
    stream: Any, lines: int = 0, position: int = 0, longest: int = LONGEST
) -> Iterator[tuple[int, Any, int]]:
    """Each value of an open file, one a line or spread over lines: its line (0: spread), the value, and the bytes read so far.

    A value that can't be read comes as `Damaged`. The stream stands after so many `lines`, at `position`.
    """
    spread = is_spread(stream)
    try:
        for value, position in elements(stream) if spread else ():
            yield 0, value, position
        for line, length in _lines(stream, longest) if not spread else ():
            lines, position = lines + 1, position + length
            if length > longest:
                yield lines, Damaged(f"longer than {longest >> 20} MB"), position
            elif line.strip():
                yield lines, _value_of(line), position
    except ValueError as error:  # the file ends in the middle of a value, or its compressed data do
        yield 0 if spread else lines + 1, Damaged(str(error)), position


def _value_of(line: bytes) -> Any:
    try:
        return decoded(line.strip().removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        return Damaged(str(error), is_open=not line.endswith(b"\n"))


def is_spread(stream: Any) -> bool:
    """Whether a file is one JSON value over several lines (an editor or jq indents so), or an array; it is only peeked at."""
    begin = stream.peek(_PEEKED)[:_PEEKED].removeprefix(b"\xef\xbb\xbf").lstrip()
    return bool(begin[:1] == b"[") or bool(begin.partition(b"\n")[0].strip() == b"{")


def _lines(stream: Any, longest: int) -> Iterator[tuple[bytes, int]]:
    """Each line and its length; of one that is too long only the beginning."""
    while line := stream.readline(longest + 1):
        length, end = len(line), line[-1:]
        while length > longest and end != b"\n" and (more := stream.readline(1 << 20)):
            length, end = length + len(more), more[-1:]
        yield line if length <= longest else b"", length


def open_text(path: Path) -> Any:
    """A file's bytes, unpacked where it is compressed with zstd."""
    if path.suffix in (".zst", ".zstd"):
        return io.BufferedReader(_Unpacked(path.open("rb")))
    return path.open("rb")


def unpacked(data: bytes) -> bytes:
    """The content of bytes that are compressed with zstd; ValueError where they are damaged, or hold too much."""
    with io.BufferedReader(_Unpacked(io.BytesIO(data))) as stream:
        content = stream.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"longer than {LONGEST >> 20} MB")
    return content


class CutShort(ValueError):
    """Compressed data that are damaged, or end too early."""


class _Unpacked(io.RawIOBase):
    """The content of a file compressed with zstd. CutShort where it is damaged; what comes before was read by then."""

    def __init__(self, file: IO[bytes]) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._file = file
        self._packed = self._ready = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            # A kilobyte unpacks to 32 MB at most: 128 KB a block, of which the shortest has four bytes.
            packed = self._packed or self._file.read(1024)
            if not packed:
                if self._frame is not None:
                    raise CutShort("the compressed data end too early; the file is cut off, or still being written")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._ready = self._frame.decompress(packed)
            except self._error as error:
                raise CutShort(f"the compressed data are damaged ({error})") from None
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def json_object(path: Path, key: str | None = None) -> Record:
    """The object in a JSON file; {} if it holds another value, or has no such key at its beginning.

    Only a file that can be such an object is read as a whole: exports of other programs have gigabytes.
    """
    if not path.is_file():  # a pipe would block until something is written to it
        return Record()
    try:
        with path.open("rb") as stream:
            begin = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
            if not begin.startswith(b"{") or (key is not None and f'"{key}"'.encode() not in begin):
                return Record()
            stream.seek(0)
            value = decoded(stream.read().removeprefix(b"\xef\xbb\xbf"))
            return Record.of(value)
    except (OSError, ValueError):
        return Record()


def first_objects(path: Path, most: int = 5) -> list[Record]:
    """The first objects of a JSON-lines file, to detect its format; [] when it is none. A damaged line is skipped."""
    found: list[Record] = []
    if not path.is_file():  # a pipe would block until something is written to it
        return found
    try:
        with open_text(path) as stream:
            for value in _first_values(stream, most * 4):
                if isinstance(value, dict):
                    found.append(Record(value))
                if len(found) == most:
                    break
    except (OSError, ValueError):
        pass
    return found


def _first_values(stream: Any, lines: int) -> Iterator[Any]:
    if is_spread(stream):
        yield from (value for value, _ in elements(stream, _LONGEST_FIRST))
        return
    for _ in range(lines):
        line = stream.readline(_LONGEST_FIRST)
        if not line:
            return
        yield _value_of(line)


def top_keys(begin: bytes) -> set[str]:
    """The keys of the first object in some text, as far as the text goes."""
    keys: set[str] = set()
    depth, name = 0, b""
    for match in _TOKEN.finditer(begin, max(begin.find(b"{"), 0)):
        if match[0][0] == 0x22:
            name = match[0] if depth == 1 and begin[match.end() :][:8].lstrip()[:1] == b":" else b""
            if name:
                keys.add(name[1:-1].decode("utf-8", "replace"))
        else:
            depth += 1 if match[0] in b"[{" else -1
            if depth == 0:
                break
    return keys


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line, or an element of an array, that can't be read, and why."""

    reason: str
    is_open: bool = False  # whether it is a last line without an end: it may still be being written


def elements(stream: IO[bytes], longest: int = LONGEST) -> Iterator[tuple[Any, int]]:
    """Each object of the array in a stream (or those that stand alone there) and the bytes read so far.

    An export of gigabytes is read in the memory of its largest element; an element that is no JSON, or is longer than
    `longest` bytes, comes as `Damaged`, and the rest is read. ValueError where the stream ends inside one.
    """
    reader = _ElementReader(longest)
    while chunk := stream.read(max(_CHUNK, len(reader.buffer))):
        yield from reader.feed(chunk)
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

    def feed(self, chunk: bytes) -> Iterator[tuple[Any, int]]:
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
                if self.depth < (self._outer or 0):  # another object may follow one that stands alone
                    self.is_over = True
                    return
        else:
            self._at = len(self.buffer)
        self._drop_oversized()

    def _element(self) -> Any:
        if self._too_long:
            return Damaged(f"a conversation longer than {self._longest >> 20} MB")
        try:
            return decoded(self.buffer[self._start : self._at])
        except ValueError as error:
            return Damaged(str(error))

    def _drop_oversized(self) -> None:
        """Drop the buffered bytes of an element that is too long; inside a string, the opening quote stays."""
        if self._start >= 0 and len(self.buffer) - self._start > self._longest:
            self._start, self._too_long = -1, True
        if len(self.buffer) - self._at > self._longest:  # a string that does not end
            escape = b"\\" if (len(self.buffer) - len(self.buffer.rstrip(b"\\"))) % 2 else b""
            self.buffer, self._at = b'"' + escape, 0
