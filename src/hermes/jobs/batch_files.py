"""The files of a batch: its lines, each a request, and its results.

A line is a JSON string (the prompt), an object with `prompt` or `messages`, or a request of OpenAI's batch files. Lines are
read from the file when their turn comes; only their places are kept.

The results grow by whole lines, each on the disk before the next is written. A process that was killed leaves at most one
torn line at the end; the next one drops it (the record still has the reply).
Rewriting the file (without failed lines on `--resume`, in the order of the input at the end) replaces it in one step. One
process writes it at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from hermes.errors import InvalidInput
from hermes.home import sync_folder

COMPLETIONS = "/v1/chat/completions"
_ROLES = ("user", "assistant", "tool")
_SYSTEM = ("system", "developer")
_USED = {"model", "messages"}  # fields of an OpenAI request's body


class BadLine(ValueError):
    """An error in a line, without its number."""


@dataclass(slots=True, frozen=True)
class BatchQuestion:
    """The request of one line."""

    messages: list[dict[str, Any]]  # the last one is the user's
    system: str | None = None
    id: Any = None  # the id in the line; None: it has none
    model: str | None = None
    is_openai: bool = False  # the answer has the shape of OpenAI's batch files, too
    unused: frozenset[str] = frozenset()  # settings of the request that are not passed on


@dataclass(slots=True, frozen=True)
class LinePlace:
    """A line's place in the file, and the end of the id of its session."""

    number: int
    offset: int
    length: int
    digest: str


@dataclass(slots=True)
class Lines:
    """A file of prompts. `good` are the valid lines, `bad` (number, reason) the others."""

    stream: IO[bytes]
    good: list[LinePlace] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)  # settings in OpenAI requests that are not passed on

    def scan(self) -> None:
        """Check every line once. A line that occurs twice runs twice, under two ids."""
        seen: Counter[bytes] = Counter()
        names: dict[str, int] = {}
        offset = 0
        for number, raw in enumerate(self.stream, 1):
            start, offset = offset, offset + len(raw)
            text = raw.strip()
            if not text.strip(b"\xef\xbb\xbf"):
                continue
            try:
                question = self._read(raw)
                if question.is_openai and names.setdefault(question.id, number) != number:
                    raise BadLine(f"custom_id {question.id!r} is the one of line {names[question.id]}")
            except BadLine as error:
                self.bad.append((number, str(error)))
                continue
            self.unused |= question.unused
            key = sha256(text).digest()
            seen[key] += 1
            digest = sha256(key + str(seen[key]).encode()).hexdigest()[:16]
            self.good.append(LinePlace(number, start, len(raw), digest))

    def read(self, place: LinePlace) -> BatchQuestion:
        """The line at a place."""
        self.stream.seek(place.offset)
        return self._read(self.stream.read(place.length))

    def _read(self, raw: bytes) -> BatchQuestion:
        try:
            line = json.loads(raw.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise BadLine("it is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            place = f" (character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else ""
            raise BadLine(f"it is not JSON{place}") from None
        if isinstance(line, str):
            line = {"prompt": line}
        if not isinstance(line, dict):
            raise BadLine("it is neither a JSON object nor a string")
        if "body" in line and "custom_id" in line:
            return _request(line)
        if "messages" in line:
            return _conversation(line)
        if "prompt" not in line:
            raise BadLine("it has no field `prompt` or `messages`")
        if not isinstance(line["prompt"], str):
            raise BadLine("its `prompt` is not a text")
        return _prompt(line["prompt"], line)


def opened(path: str) -> IO[bytes]:
    """The file of prompts; `-` is standard input, kept in a file of its own since lines are read again."""
    if path != "-":
        return open(path, "rb")
    kept = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller, like the other
    shutil.copyfileobj(sys.stdin.buffer, kept)
    kept.seek(0)
    return kept


def _prompt(prompt: str, line: Mapping[str, Any]) -> BatchQuestion:
    if not prompt.strip():
        raise BadLine("its prompt is empty")
    return BatchQuestion([{"role": "user", "content": prompt}], id=_id(line), model=_model(line))


def _id(line: Mapping[str, Any]) -> Any:
    return line.get("id", line.get("custom_id"))


def _model(line: Mapping[str, Any]) -> str | None:
    name = line.get("model")
    if name is not None and (not isinstance(name, str) or not name):
        raise BadLine("its `model` is not a name")
    return name


def _request(line: Mapping[str, Any]) -> BatchQuestion:
    """A request of OpenAI's batch files."""
    body, name = line["body"], line["custom_id"]
    if not isinstance(name, str) or not name:
        raise BadLine("its custom_id is not a text")
    if line.get("method", "POST") != "POST" or line.get("url", COMPLETIONS) != COMPLETIONS:
        raise BadLine(
            f"it asks for {line.get('method', 'POST')} {line.get('url')}: only POST {COMPLETIONS} can be done"
        )
    if not isinstance(body, dict) or "messages" not in body:
        raise BadLine("its body has no messages")
    question = _conversation(body)
    return BatchQuestion(question.messages, question.system, name, question.model, True, frozenset(set(body) - _USED))


def _conversation(line: Mapping[str, Any]) -> BatchQuestion:
    messages = list(_messages(line["messages"]))
    first = next((number for number, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
    rest = messages[first:]
    if not rest or rest[-1]["role"] != "user":
        raise BadLine("the last of its messages is not the user's")
    for message in rest:
        if message["role"] not in _ROLES:
            raise BadLine(f"a message of the role {message['role']!r} stands where none can be used")
    system = "\n\n".join(_text(message["content"]) for message in messages[:first]) or None
    return BatchQuestion(rest, system, _id(line), _model(line))


def _messages(messages: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise BadLine("its `messages` are not a list of messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadLine("one of its messages is not an object with a role")
        content, calls = message.get("content"), message.get("tool_calls")
        if not isinstance(content, str | list) and not (content is None and calls):
            raise BadLine("the content of one of its messages is neither a text nor a list of parts")
        if calls is not None and not isinstance(calls, list):
            raise BadLine("the tool_calls of one of its messages are not a list")
        yield {**message, "content": content}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


class Results:
    """The file of results, locked for this process until `close`."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """InvalidInput when it is in use, is no file of results, or has results without `resume`."""
        self.path = path
        self.done: dict[str, tuple[int, int]] = {}  # session → offset and length of its result
        self.failed = 0  # number of failed results, which are dropped
        if path.exists() and not path.is_file():
            raise InvalidInput(f"{path} is not a regular file, so results can't be kept there")
        self._file = _locked(path)
        try:
            if os.fstat(self._file).st_size and not resume:
                raise InvalidInput(f"{path} has results already: --resume continues it, another --out leaves it alone")
            self._take_stock()
        except BaseException:
            self.close()
            raise

    def _take_stock(self) -> None:
        """Find the lines that are done. Failed results and a torn line at the end are dropped."""
        kept: list[tuple[str, int, int]] = []
        offset = 0
        torn = False
        with open(self.path, "rb") as stream:
            for number, raw in enumerate(stream, 1):
                start, offset = offset, offset + len(raw)
                if not raw.endswith(b"\n"):
                    torn = True
                    break
                session_id, failed = _read(raw, self.path, number)
                if failed:
                    self.failed += 1
                else:
                    kept.append((session_id, start, len(raw)))
        if torn or self.failed:
            self._rewrite((start, length) for _, start, length in kept)
        start = 0
        for session_id, _, length in kept:
            self.done[session_id] = (start, length)
            start += length

    @property
    def run(self) -> str | None:
        """The name of the batch of these results, the prefix of its session ids. None without results."""
        last = next(reversed(self.done), None)
        return None if last is None else last.rpartition("_")[0]

    def append(self, session_id: str, row: Mapping[str, Any]) -> None:
        """Write one result; it is on the disk when this returns. After an error the file is as before."""
        data = _encoded(row)
        start = os.fstat(self._file).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, start)
            error.filename = str(self.path)
            raise
        self.done[session_id] = (start, len(data))

    def put_in_order(self, session_ids: Iterable[str]) -> None:
        """Have the results in this order; those of other sessions stay, after them. What failed is written by `append`."""
        order = list(dict.fromkeys([*(one for one in session_ids if one in self.done), *self.done]))
        if order == list(self.done):
            return
        self._rewrite(self.done[one] for one in order)
        start = 0
        for one in order:
            length = self.done.pop(one)[1]
            self.done[one] = (start, length)
            start += length

    def _rewrite(self, parts: Iterable[tuple[int, int]]) -> None:
        """Replace the file by these parts of it, whole or not at all."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        new = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with open(self.path, "rb") as old, open(new, "ab", closefd=False) as stream:
                for start, length in parts:
                    old.seek(start)
                    stream.write(old.read(length))
            os.fchmod(new, stat.S_IMODE(os.fstat(self._file).st_mode))
            os.fsync(new)
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(beside, self.path)
        except BaseException:
            os.close(new)
            with suppress(OSError):
                os.unlink(beside)
            raise
        os.close(self._file)
        self._file = new
        _sync_folder(self.path)

    def close(self) -> None:
        """Let another process have the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _locked(path: Path) -> int:
    """The file, created if it is missing, and locked. It may be replaced meanwhile: the locked one has this name."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                _sync_folder(path)
                return file
        except BlockingIOError:
            os.close(file)
            raise InvalidInput(f"another process writes {path}: wait for its end, or name another --out") from None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _sync_folder(path: Path) -> None:
    """Sync the folder, so that the name of a new file survives a power cut."""
    with suppress(OSError):
        sync_folder(path.parent)


def _read(raw: bytes, path: Path, number: int) -> tuple[str, bool]:
    """The session of a result, and whether the result is a failure."""
    try:
        row = json.loads(raw)
        session_id = row["session_id"] if "session_id" in row else row["id"]
        if isinstance(session_id, str) and "_" in session_id:
            return session_id, bool(row.get("error"))
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InvalidInput(f"line {number} of {path} is not a result of a batch; name another --out, or remove that line")


def _encoded(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(row).encode() + b"\n"
