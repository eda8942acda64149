"""Synchronise a store with a place: a folder (sync_folder.py), another store, or a store on another machine.

A place offers documents of sessions by name; each name has the session and the version. Documents not seen yet are merged here,
then those that the place lacks are sent to it. Every step can be repeated: after a kill the next call does the rest.

On another machine `hermes sessions sync --serve` runs, reached with the system's ssh. Calls and answers go through its standard
input and output: a line of JSON, with the number of bytes after it, and those bytes. The other side keeps nothing open between
calls, so a connection that breaks leaves both stores whole.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import unquote, urlsplit

from hermes.errors import HermesError, InvalidInput
from hermes.interop.json_reading import encoded
from hermes.store.exchange.replica import Counts, NotYet, Replica

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

Progress = Callable[[str, int, int], None]  # what is done, how many of how many


class ExchangePlace(Protocol):
    """A place where documents are exchanged."""

    def offers(self) -> dict[str, set[str]]:
        """By key, the versions of the document that are there."""
        ...

    def fetch(self, key: str, version: str) -> bytes:
        """A document. OSError or HermesError when it can't be read."""
        ...

    def give(self, key: str, version: str, data: bytes) -> None:
        """Store a document."""
        ...

    def drop(self, key: str, versions: set[str]) -> list[bytes]:
        """Remove these versions, which this store wrote and a later one replaces; returns their content.

        A store has one version of a document, so nothing is removed there."""
        return []

    def drop_attachment(self, digest: str) -> None:
        """Remove an attachment that only a shredded session had. A store shreds its attachments itself."""
        return

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        ...

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment."""
        ...

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Store an attachment."""
        ...


@dataclass(slots=True)
class SyncResult:
    """The result of a synchronisation."""

    here: Counts = field(default_factory=Counts)
    sent: int = 0  # documents
    files: int = 0  # attachments sent
    problems: list[str] = field(default_factory=list)


def sync(db: SessionDB, place: ExchangePlace, *, grace: float = 7, progress: Progress | None = None) -> SyncResult:
    """Merge both ways: both sides hold what either had. `grace` is how many days the trash keeps a session."""
    exchange = _Exchange(Replica(db, grace), place, progress or (lambda what, done, of: None))
    exchange.replica.document(partial(exchange.step, "comparing"))
    offers = place.offers()
    exchange.receive(offers)
    exchange.replica.document()
    exchange.send(offers)
    return exchange.result


@dataclass(slots=True)
class _Exchange:
    """One synchronisation of a store with a place. `offers` are the versions there, by key."""

    replica: Replica
    place: ExchangePlace
    step: Progress
    result: SyncResult = field(default_factory=SyncResult)

    def receive(self, offers: dict[str, set[str]]) -> None:
        """Merge the documents not seen yet. A document that needs another one first waits for the next round."""
        known = {f"{key}.{version}" for key, (_, version) in self.replica.versions().items()} | self.replica.merged()
        todo = sorted((key, one) for key, some in offers.items() for one in some if f"{key}.{one}" not in known)
        of, done, files = len(todo), 0, set[str]()
        while todo:
            waiting: list[tuple[str, str]] = []
            for key, version in todo:
                try:
                    counts, shown = self.replica.merge(f"{key}.{version}", self.place.fetch(key, version))
                    self.result.here.add(counts)
                    files |= shown
                except NotYet:
                    waiting.append((key, version))
                    continue
                except FileNotFoundError:  # its store has written a newer version
                    pass
                except (InvalidInput, OSError) as error:
                    self.result.problems.append(f"{key}.{version}: {error}")
                done += 1
                self.step("receiving", done, of)
            if len(waiting) == len(todo):
                break
            todo = waiting
        self.result.here.waiting += len(todo)
        self._receive_attachments(files)

    def _receive_attachments(self, shown: set[str]) -> None:
        wanted = sorted(shown.union(self.replica.lacking_attachments()))
        for digest in self.replica.lacks(wanted):
            data = self.place.fetch_attachment(digest)
            if data is not None and self.replica.keep(data) == digest:
                self.result.here.attachments += 1
        if wanted:
            self.replica.settle_attachments(wanted)

    def send(self, offers: dict[str, set[str]]) -> None:
        """Send the documents that the place lacks, and remove outdated versions there."""
        versions = sorted(self.replica.versions().items())
        todo = [(key, tree) for key, (tree, version) in versions if not _covered(version, offers.get(key, ()))]
        for number, (key, tree) in enumerate(todo, 1):
            version, data, files = self.replica.packed(tree)
            for digest in self.place.lacks(files) if files else ():
                content = self.replica.attachment(digest)
                if content is not None:
                    self.place.give_attachment(digest, content)
                    self.result.files += 1
            try:
                self.place.give(key, version, data)
                self.replica.mark_merged(f"{key}.{version}")
                self.result.sent += 1
            except NotYet:
                self.result.here.waiting += 1
            except InvalidInput as error:
                self.result.problems.append(f"session {tree}: {error}")
            self.step("sending", number, len(todo))
        seen = self.replica.merged()
        for key, (tree, version) in versions:
            outdated = {old for old in offers.get(key, ()) if old != version and f"{key}.{old}" in seen}
            dropped = self.place.drop(key, outdated) if outdated else []
            for digest in self.replica.shredded_attachments(tree, dropped):
                self.place.drop_attachment(digest)


def _covered(version: str, offered: Iterable[str]) -> bool:
    """Whether a place has this document already, with at least as much text."""
    content, _, whole = version.partition(".")
    return any(other == version or (other == f"{content}.full" and "-" not in whole) for other in offered)


class StorePlace(ExchangePlace):
    """Another store, opened by this process."""

    def __init__(self, db: SessionDB, grace: float = 7, progress: Progress | None = None) -> None:
        self._replica = Replica(db, grace)
        self._progress = progress
        self.counts = Counts()

    def offers(self) -> dict[str, set[str]]:
        """By key, the version of the document there."""
        self._replica.document(partial(self._progress, "comparing there") if self._progress else None)
        return {key: {version} for key, (_, version) in self._replica.versions().items()}

    def fetch(self, key: str, version: str) -> bytes:
        """A session's document."""
        found = self._replica.versions().get(key)
        if found is None:
            raise FileNotFoundError(key)
        return self._replica.packed(found[0])[1]

    def give(self, key: str, version: str, data: bytes) -> None:
        """Merge a document there."""
        counts, files = self._replica.merge(f"{key}.{version}", data)
        self.counts.add(counts)
        if files:
            self._replica.settle_attachments(files)

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        return self._replica.lacks(digests)

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment."""
        return self._replica.attachment(digest)

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Store an attachment."""
        if self._replica.keep(data) == digest:
            self.counts.attachments += 1

    def done(self) -> tuple[int, int]:
        """The numbers of sessions and messages that this store received."""
        return self.counts.sessions, self.counts.messages


# ------------------------------------------------------------------------------------------ another machine

_VERSION = 2
_MOST = 1 << 31  # bytes after a line
_LINE = 1 << 26
# An error there by its name on the wire, as which it is raised here; any other is named "failed".
_ERRORS: dict[str, type[Exception]] = {"not yet": NotYet, "missing": FileNotFoundError, "invalid": InvalidInput}
_CALLS = ("offers", "fetch", "give", "lacks", "fetch_attachment", "give_attachment", "done")  # methods of StorePlace
_WITH_DATA = ("give", "give_attachment")


class SyncFailed(HermesError):
    """The other machine can't be reached, or does not answer as it should."""


def _put(stream: IO[bytes], head: dict[str, Any], data: bytes = b"") -> None:
    stream.write(encoded({**head, "size": len(data)}) + b"\n" + data)
    stream.flush()


def _get(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    line = stream.readline(_LINE)
    if not line:
        return None
    try:
        head = json.loads(line)
        size = int(head["size"])
    except (ValueError, KeyError, TypeError) as error:
        raise SyncFailed(
            f"the other side sent {line[:200].decode(errors='replace')!r}, which is not an answer"
        ) from error
    data = stream.read(size) if 0 <= size <= _MOST else b""
    if len(data) != size:
        raise SyncFailed("the connection broke in the middle of an answer")
    return head, data


# ------------------------------------------------------------------------------------------ the side that is called


def serve(place: StorePlace, calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer calls until the other side hangs up."""
    _put(answers, {"hermes sync": _VERSION})
    while (call := _get(calls)) is not None:
        head, data = call
        try:
            answer, more = _answer(place, head, data)
        except (HermesError, OSError, KeyError, TypeError, ValueError) as error:
            answer, more = {"error": _error_name(error), "text": str(error)}, b""
        _put(answers, answer, more)


def _error_name(error: Exception) -> str:
    """The name of an error on the wire. A call with wrong arguments is invalid input, whatever it raises."""
    if isinstance(error, (KeyError, TypeError, ValueError)):
        return "invalid"
    return next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "failed")


def _answer(place: StorePlace, head: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    call, words = head["call"], head["words"]
    if call not in _CALLS:
        raise InvalidInput(f"{call!r} is no call; it is one of {', '.join(_CALLS)}")
    value = getattr(place, call)(**words, **({"data": data} if call in _WITH_DATA else {}))
    return ({"value": True}, value) if isinstance(value, bytes) else ({"value": value}, b"")


# ------------------------------------------------------------------------------------------ the side that calls


def command_for(url: str, program: str = "hermes") -> list[str]:
    """The command that reaches ssh://[USER@]HOST[:PORT][/HOME]."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{url} is not an address: {error}") from error
    host = parts.hostname or ""
    name = host if parts.username is None else f"{unquote(parts.username)}@{host}"
    if not host or parts.password or parts.query or parts.fragment or re.match(r"-|.*[\s\0]", name):
        raise InvalidInput(f"{url} is not an address; write ssh://[USER@]HOST[:PORT][/PATH OF THE HERMES HOME]")
    home = unquote(parts.path)
    command = f"{shlex.quote(program)} sessions sync --serve"
    if home not in ("", "/"):
        home = home.removeprefix("/") if home.startswith("/~") else home
        where = f'"$HOME"{shlex.quote(home[1:])}' if home == "~" or home.startswith("~/") else shlex.quote(home)
        command = f"HERMES_HOME={where} {command}"
    return ["ssh", *(["-p", str(port)] if port else []), "--", name, command]


class RemotePlace(ExchangePlace):
    """A store on another machine, for as long as the block lasts."""

    def __init__(self, url: str, program: str = "hermes") -> None:
        self._url = url
        try:
            self._process = subprocess.Popen(
                command_for(url, program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=-1
            )
        except OSError as error:
            raise SyncFailed(f"ssh can't be started ({error.strerror}); install OpenSSH's client") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        try:
            hello = _get(self._out)
        except SyncFailed:
            self._end()
            raise SyncFailed(
                f"{self._url}: the login shell there writes something of its own; it must be silent without a terminal"
            ) from None
        if hello is None:
            self._end()
            raise SyncFailed(
                f"{self._url} can't be used: ssh failed, or there is no `hermes` there (status {self._process.returncode});"
                " --hermes names the program"
            )
        if hello[0].get("hermes sync") != _VERSION:
            self._end()
            raise SyncFailed(f"{self._url} has another version of hermes; update the older one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for stream in (self._in, self._out):
            with suppress(OSError):
                stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, call: str, data: bytes = b"", **words: Any) -> tuple[Any, bytes]:
        """The value and the bytes that a call returns there."""
        try:
            _put(self._in, {"call": call, "words": words}, data)
            answer = _get(self._out)
        except OSError as error:
            raise SyncFailed(f"the connection to {self._url} broke ({error}); run this again") from error
        if answer is None:
            raise SyncFailed(f"the connection to {self._url} broke; run this again: it continues from here")
        head, more = answer
        if "error" in head:
            text = str(head.get("text"))
            raise _ERRORS[head["error"]](text) if head["error"] in _ERRORS else SyncFailed(f"{self._url}: {text}")
        return head["value"], more

    def offers(self) -> dict[str, set[str]]:
        """By key, the version of the document there."""
        return {key: set(versions) for key, versions in self._call("offers")[0].items()}

    def fetch(self, key: str, version: str) -> bytes:
        """A session's document."""
        return self._call("fetch", key=key, version=version)[1]

    def give(self, key: str, version: str, data: bytes) -> None:
        """Merge a document there."""
        self._call("give", data, key=key, version=version)

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        return list(self._call("lacks", digests=digests)[0])

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment."""
        is_there, data = self._call("fetch_attachment", digest=digest)
        return data if is_there else None

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Store an attachment there."""
        self._call("give_attachment", data, digest=digest)

    def done(self) -> tuple[int, int]:
        """The numbers of sessions and messages that the other side received."""
        sessions, messages = self._call("done")[0]
        return sessions, messages
