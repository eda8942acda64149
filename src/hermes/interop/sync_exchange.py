"""Synchronising a store with a place: a folder, another store, or a store on another machine.

A place offers documents of sessions by name; each name says the session and the version. What was not seen yet is merged here,
then what the place lacks is given to it. Every step can be repeated: after a kill the next call does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes.errors import InvalidInput
from hermes.store.exchange.sync.replica import Counts, NotYet, Replica

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
        """Remove what this store has put there under these versions: a later one holds it. Returns what they were.

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
    given: int = 0  # documents
    files: int = 0  # attachments given
    problems: list[str] = field(default_factory=list)


def sync(db: SessionDB, place: ExchangePlace, *, grace: float = 7, progress: Progress | None = None) -> SyncResult:
    """Both sides hold what either had. `grace` is how many days the trash keeps a session."""
    replica, result = Replica(db, grace), SyncResult()

    def told(what: str) -> Callable[[int, int], None]:
        return lambda done, of: progress(what, done, of) if progress is not None else None

    replica.document(told("comparing"))
    offers = place.offers()
    _bring(replica, place, offers, result, told("receiving"))
    replica.document()
    _give(replica, place, offers, result, told("sending"))
    return result


def _bring(
    replica: Replica,
    place: ExchangePlace,
    offers: dict[str, set[str]],
    result: SyncResult,
    step: Callable[[int, int], None],
) -> None:
    seen = replica.seen()
    own = {f"{key}.{version}" for key, (_, version) in replica.versions().items()}
    todo = sorted((key, one) for key, some in offers.items() for one in some if f"{key}.{one}" not in seen | own)
    of, done, files = len(todo), 0, set[str]()
    while todo:
        waiting: list[tuple[str, str]] = []
        for key, version in todo:
            try:
                counts, shown = replica.take(f"{key}.{version}", place.fetch(key, version))
                result.here.add(counts)
                files |= shown
            except NotYet:
                waiting.append((key, version))
                continue
            except FileNotFoundError:  # its store has written a newer version
                pass
            except (InvalidInput, OSError) as error:
                result.problems.append(f"{key}.{version}: {error}")
            done += 1
            step(done, of)
        if len(waiting) == len(todo):
            break
        todo = waiting
    result.here.waiting += len(todo)
    _bring_files(replica, place, files, result)


def _bring_files(replica: Replica, place: ExchangePlace, shown: Iterable[str], result: SyncResult) -> None:
    wanted = sorted({*shown, *replica.lacking_attachments()})
    for digest in replica.lacks(wanted):
        data = place.fetch_attachment(digest)
        if data is not None and replica.keep(data) == digest:
            result.here.attachments += 1
    if wanted:
        replica.settle_attachments(wanted)


def _give(
    replica: Replica,
    place: ExchangePlace,
    offers: dict[str, set[str]],
    result: SyncResult,
    step: Callable[[int, int], None],
) -> None:
    versions = replica.versions()
    todo = [
        (key, tree) for key, (tree, version) in sorted(versions.items()) if not _covered(version, offers.get(key, ()))
    ]
    for number, (key, tree) in enumerate(todo, 1):
        version, data, files = replica.packed(tree)
        for digest in place.lacks(files) if files else ():
            content = replica.attachment(digest)
            if content is not None:
                place.give_attachment(digest, content)
                result.files += 1
        try:
            place.give(key, version, data)
            replica.see(f"{key}.{version}")
            result.given += 1
        except NotYet:
            result.here.waiting += 1
        except InvalidInput as error:
            result.problems.append(f"session {tree}: {error}")
        step(number, len(todo))
    seen = replica.seen()
    for key, (tree, version) in versions.items():
        outdated = {one for one in offers.get(key, ()) if one != version and f"{key}.{one}" in seen}
        dropped = place.drop(key, outdated) if outdated else []
        for digest in replica.shredded_attachments(tree, dropped):
            place.drop_attachment(digest)


def _covered(version: str, offered: Iterable[str]) -> bool:
    """Whether a place has this document already, with at least as much text."""
    content, _, whole = version.partition(".")
    return any(one == version or (one == f"{content}.full" and "-" not in whole) for one in offered)


class StorePlace(ExchangePlace):
    """Another store, opened by this process."""

    def __init__(self, db: SessionDB, grace: float = 7, progress: Progress | None = None) -> None:
        self._replica = Replica(db, grace)
        self._progress = progress
        self.counts = Counts()

    def offers(self) -> dict[str, set[str]]:
        """By key, the version of the document there."""
        step = self._progress
        self._replica.document(None if step is None else lambda done, of: step("comparing there", done, of))
        return {key: {version} for key, (_, version) in self._replica.versions().items()}

    def fetch(self, key: str, version: str) -> bytes:
        """A session's document."""
        found = self._replica.versions().get(key)
        if found is None:
            raise FileNotFoundError(key)
        return self._replica.packed(found[0])[1]

    def give(self, key: str, version: str, data: bytes) -> None:
        """Merge a document there."""
        counts, files = self._replica.take(f"{key}.{version}", data)
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
