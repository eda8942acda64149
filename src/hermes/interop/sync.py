"""Synchronise a store with a place: a folder, another store, or a store on another machine.

A place offers documents of sessions by name; each name has the session and the version. Documents not seen yet are merged here,
then those that the place lacks are sent to it. Every step can be repeated: after a kill the next call does the rest.

On another machine `hermes sessions sync --serve` runs, reached with the system's ssh. Calls and answers go through its standard
input and output: a line of JSON, with the number of bytes after it, and those bytes. The other side keeps nothing open between
calls, so a connection that breaks leaves both stores whole.

A folder is shared by Syncthing, as a USB stick, or as a network mount:

    hermes-sync.json                       marks the folder, and has its version
    stores/<store>/sync-key                the key of what this store writes, if the folder is encrypted
    stores/<store>/ab/<session>.<version>  a session's document as a store knows it, packed with zstd
    attachments/ab/<hash>                  attachments, each once

A store writes in its own sub-folder only, under names made of the content, each file whole (a temporary file, fsync, rename):
a synchroniser never sees two versions of one file. A document that another store has put there already is not written again.

The folder of an encrypted store is encrypted, each file for itself: each store has a data key of its own there, wrapped by the
passphrase or key file that the stores share, so two that begin at the same time do not get in each other's way.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import unquote, urlsplit

from hermes.errors import HermesError, InvalidInput, StoreLocked
from hermes.home import key_file, sync_folder, write_whole
from hermes.interop.json_reading import encoded
from hermes.store import keys
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
        self.counts.add(self._replica.merge(f"{key}.{version}", data)[0])

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


# ------------------------------------------------------------------------------------------ a folder

_MARK = "hermes-sync.json"
_PLAIN, _ENCRYPTED = 1, 2  # versions: programs that know no encrypted folders must not write plain files into one
_KEY = "sync"  # stores/<store>/sync-key
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32}\.(?:full|[0-9a-f]{12})(?:-[0-9a-f]{12})?)")
_HASH = re.compile("[0-9a-f]{64}")
_SEALED = b"\x8bHERMES\x01"  # how an encrypted file begins; then the id of its key, a nonce, and the content


class UnreadableFile(OSError):
    """A file of an encrypted folder that was not encrypted with one of its keys, under this name."""


class FolderPlace:
    """Documents in a folder. It is encrypted if the store that uses it first is, unless `plain` is wanted.

    StoreLocked when the folder's key is not that of this store, or unknown; nothing is written then.
    """

    def __init__(self, folder: Path, db: SessionDB, *, plain: bool = False) -> None:
        self._folder, self._own = folder, folder / "stores" / Replica(db).store
        self._paths: dict[tuple[str, str], list[Path]] = {}
        self._keys: dict[str, keys.DataKey] = {}  # to read with, by id
        vault = None if db.is_shared else keys.vault_of(db.path)
        self._key = self._prepare(vault, plain)

    def _prepare(self, vault: keys.Vault | None, plain: bool) -> keys.DataKey | None:
        """The key to write with, of a folder that is ready; None: it is not encrypted."""
        if not self._folder.is_dir():
            raise InvalidInput(f"{self._folder} is not a folder; create it, or connect the disk it is on")
        mark = self._folder / _MARK
        version = _version_of(mark) if mark.exists() else None
        if version is None and any(
            not file.name.startswith(".") and file.name not in ("stores", "attachments")
            for file in self._folder.iterdir()
        ):
            raise InvalidInput(f"{self._folder} holds other files; name an empty folder, or a new one below it")
        others = sorted(self._folder.glob(f"stores/*/{key_file(Path(_KEY)).name}"))
        if version is None:  # a new folder, or one of which only a part has arrived
            found = _version_by_documents(self._folder) or (_ENCRYPTED if others else None)
            encrypted = found == _ENCRYPTED or (found is None and vault is not None and not plain)
        else:
            encrypted = version == _ENCRYPTED
        if vault is not None and not encrypted and not plain:
            raise InvalidInput(
                f"{self._folder} is not encrypted, and this store is; name an empty folder, or pass --plain to write there all"
                " the same"
            )
        key = self._unlock(others, vault) if encrypted else None
        if version is None:
            content = {"hermes sessions": "sync", "version": _ENCRYPTED if encrypted else _PLAIN}
            _write(mark, (json.dumps(content) + "\n").encode())
        return key

    def _unlock(self, others: list[Path], vault: keys.Vault | None) -> keys.DataKey:
        """The key of what this store writes; the others' keys are loaded, to read by."""
        own = self._own / _KEY
        known = [keys.vault_of(path.with_name(_KEY)) for path in others]
        if key_file(own) in others:
            mine = known[others.index(key_file(own))]
        else:
            way = next((one.way for one in known if one is not None), None) or _way(vault, self._folder)
            mine = keys.new_vault(way)
            own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            keys.save(own, mine)
        if mine is None:
            raise StoreLocked(f"{key_file(own)} is gone; try again")
        self._keys = {one.key.id: one.key for one in (*known, mine) if one is not None}
        return mine.key

    def offers(self) -> dict[str, set[str]]:
        """By key, the versions of the document that are there, of all stores."""
        self._paths = {}
        stores = self._folder / "stores"
        for left in self._own.glob("*/.*.part"):  # by a process of this store that was killed
            if not _runs(left):
                left.unlink(missing_ok=True)
        for path in stores.glob("*/*/*") if stores.is_dir() else ():
            if (found := _NAME.fullmatch(path.name)) is not None:
                self._paths.setdefault((found[1], found[2]), []).append(path)
        offered: dict[str, set[str]] = {}
        for key, version in self._paths:
            offered.setdefault(key, set()).add(version)
        return offered

    def fetch(self, key: str, version: str) -> bytes:
        """A document; the first of its copies that is there."""
        error: Exception = FileNotFoundError(f"{key}.{version}")
        for path in self._paths.get((key, version), ()):
            try:
                return self._read(path)
            except OSError as failed:
                error = failed
        raise error

    def give(self, key: str, version: str, data: bytes) -> None:
        """Write a document."""
        self._write(self._own / key[:2] / f"{key}.{version}", data)

    def drop(self, key: str, versions: set[str]) -> list[bytes]:
        """Remove earlier versions that this store wrote."""
        dropped = []
        for version in versions:
            path = self._own / key[:2] / f"{key}.{version}"
            if path.is_file():
                with suppress(UnreadableFile):
                    dropped.append(self._read(path))
                path.unlink(missing_ok=True)
        return dropped

    def drop_attachment(self, digest: str) -> None:
        """Remove an attachment."""
        self._attachment(digest).unlink(missing_ok=True)

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        return [digest for digest in digests if not self._attachment(digest).is_file()]

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment; None while they have not arrived."""
        try:
            data = self._read(self._attachment(digest))
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Write an attachment."""
        self._write(self._attachment(digest), data)

    def _read(self, path: Path) -> bytes:
        """The content of a file. In an encrypted folder only what was encrypted under this name counts."""
        raw = path.read_bytes()
        if self._key is None:
            return raw
        if not raw.startswith(_SEALED):
            raise UnreadableFile(f"{path} is not encrypted, though its folder is; remove it")
        key = self._keys.get(raw[8:16].hex())
        if key is None:
            raise UnreadableFile(f"{path} is encrypted with a key that is not in the folder (yet)")
        cipher = keys.aead(key.for_files())
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(cipher.decrypt(raw[16:28], raw[28:], path.name.encode()))
        except (InvalidTag, ValueError):
            raise UnreadableFile(f"{path} is damaged, or was written under another name; remove it") from None

    def _write(self, path: Path, data: bytes) -> None:
        if self._key is not None:
            nonce, cipher = os.urandom(12), keys.aead(self._key.for_files())
            data = _SEALED + bytes.fromhex(self._key.id) + nonce + cipher.encrypt(nonce, data, path.name.encode())
        _write(path, data)

    def _attachment(self, digest: str) -> Path:
        if _HASH.fullmatch(digest) is None:
            raise InvalidInput(f"{digest!r} is no attachment")
        return self._folder / "attachments" / digest[:2] / digest


def _version_of(mark: Path) -> int:
    try:
        version = int(json.loads(mark.read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{mark} can't be read ({error}); let the synchronisation of the folder finish") from error
    if version > _ENCRYPTED:
        raise InvalidInput(f"{mark.parent} was written by a newer version of hermes; update this one")
    return version


def _version_by_documents(folder: Path) -> int | None:
    """The version of a folder without its mark, read from a document in it; None without one."""
    for path in folder.glob("stores/*/*/*"):
        if _NAME.fullmatch(path.name) is not None:
            with path.open("rb") as file:
                return _ENCRYPTED if file.read(len(_SEALED)) == _SEALED else _PLAIN
    return None


def _way(vault: keys.Vault | None, folder: Path) -> keys.Way:
    """The secret that opens a new key of the folder: the store's, if other machines can have it, too."""
    if vault is not None and vault.way.kind != "keyring":
        return vault.way
    place = os.environ.get(keys.PASSPHRASE_FILE)
    if place:
        return keys.by_passphrase(keys.read_passphrase(Path(place)))
    place = os.environ.get(keys.KEY_FILE)
    if place:
        return keys.by_file(Path(place))
    raise InvalidInput(
        f"the key of this store is in the system's keyring, which no other machine has; give {folder} a passphrase: set"
        f" {keys.PASSPHRASE_FILE} to a file with it, on each machine"
    )


def _runs(part: Path) -> bool:
    """Whether the process that writes this file still runs."""
    try:
        os.kill(int(part.name.split(".")[-2]), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _write(target: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(target, data)
    sync_folder(target.parent)


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
