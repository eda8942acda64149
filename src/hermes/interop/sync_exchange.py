"""Synchronise a store with a place: a folder, another store, or a store on another machine.

A place offers documents of sessions by name; each name has the session and the version. Documents not seen yet are merged here,
then those that the place lacks are sent to it. Every step can be repeated: after a kill the next call does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hermes.errors import InvalidInput
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
