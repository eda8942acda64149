"""A store on another machine as the place: `hermes sessions sync --serve` runs there, reached with the system's ssh.

Calls and answers go through its standard input and output: a line of JSON, with the number of bytes after it, and those bytes.
The other side keeps nothing open between calls, so a connection that breaks leaves both stores whole.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import unquote, urlsplit

from hermes.errors import HermesError, InvalidInput
from hermes.interop.sync_exchange import ExchangePlace, StorePlace
from hermes.store.exchange.replica import NotYet

_VERSION = 1
_MOST = 1 << 31  # bytes after a line
_LINE = 1 << 26
# An error there by its name on the wire, as which it is raised here; any other is named "failed".
_ERRORS: dict[str, type[Exception]] = {"not yet": NotYet, "missing": FileNotFoundError, "invalid": InvalidInput}
_CALLS = ("offers", "fetch", "give", "lacks", "fetch_attachment", "give_attachment", "done")


class SyncFailed(HermesError):
    """The other machine can't be reached, or does not answer as it should."""


def _put(stream: IO[bytes], head: dict[str, Any], data: bytes = b"") -> None:
    stream.write(json.dumps({**head, "size": len(data)}).encode() + b"\n" + data)
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
    call = head["call"]
    if call == "offers":
        return {"offers": {key: sorted(versions) for key, versions in place.offers().items()}}, b""
    if call == "fetch":
        return {}, place.fetch(head["key"], head["version"])
    if call == "give":
        place.give(head["key"], head["version"], data)
    elif call == "lacks":
        return {"lacks": place.lacks(head["digests"])}, b""
    elif call == "fetch_attachment":
        found = place.fetch_attachment(head["digest"])
        return {"there": found is not None}, found or b""
    elif call == "give_attachment":
        place.give_attachment(head["digest"], data)
    elif call == "done":
        return {"sessions": place.counts.sessions, "messages": place.counts.messages}, b""
    else:
        raise InvalidInput(f"{call!r} is no call; it is one of {', '.join(_CALLS)}")
    return {}, b""


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
            try:
                stream.close()
            except OSError:
                pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, call: str, data: bytes = b"", **words: Any) -> tuple[dict[str, Any], bytes]:
        try:
            _put(self._in, {"call": call, **words}, data)
            answer = _get(self._out)
        except OSError as error:
            raise SyncFailed(f"the connection to {self._url} broke ({error}); run this again") from error
        if answer is None:
            raise SyncFailed(f"the connection to {self._url} broke; run this again: it continues from here")
        head, more = answer
        if "error" in head:
            text = str(head.get("text"))
            raise _ERRORS[head["error"]](text) if head["error"] in _ERRORS else SyncFailed(f"{self._url}: {text}")
        return head, more

    def offers(self) -> dict[str, set[str]]:
        """By key, the version of the document there."""
        return {key: set(versions) for key, versions in self._call("offers")[0]["offers"].items()}

    def fetch(self, key: str, version: str) -> bytes:
        """A session's document."""
        return self._call("fetch", key=key, version=version)[1]

    def give(self, key: str, version: str, data: bytes) -> None:
        """Merge a document there."""
        self._call("give", data, key=key, version=version)

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        found: list[str] = self._call("lacks", digests=digests)[0]["lacks"]
        return found

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment."""
        head, data = self._call("fetch_attachment", digest=digest)
        return data if head["there"] else None

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Store an attachment there."""
        self._call("give_attachment", data, digest=digest)

    def done(self) -> tuple[int, int]:
        """The numbers of sessions and messages that the other side received."""
        head, _ = self._call("done")
        return int(head["sessions"]), int(head["messages"])
