"""The beginnings of transactions: each sets all its settings itself.

Settings hold for one transaction and are sent with its BEGIN. A pooler in front of the server gives each transaction
another connection: a SET would stay in effect for the next client.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.store.engines.postgres.fulltext import SET_OUT
from hermes.store.engines.postgres.migrate import ALONE
from hermes.store.engines.postgres.transaction import NUMBER

PAUSED = 10  # seconds after which the server ends an idle writing transaction: its process was stopped
PAUSED_READER = 60  # it blocks no one
_READ = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL idle_in_transaction_session_timeout = '{PAUSED_READER}s';"
    " SET LOCAL jit = off"
)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


@dataclass(frozen=True, slots=True)
class Beginnings:
    """The first statements of a transaction, by its purpose."""

    storing: bytes  # a message
    together: bytes  # writing concurrently with others
    alone: bytes
    read: bytes
    search: bytes
    indexing: tuple[bytes, ...]  # statement by statement


def beginnings(durability: str, views: str | None, patience: float) -> Beginnings:
    """For a store of that durability; `views` is the schema with a tenant's views. `patience` is the lock timeout."""
    locks = f"SET LOCAL lock_timeout = '{patience:g}s'"
    settings = {"idle_in_transaction_session_timeout": f"{PAUSED}s"}
    if durability == "normal":
        settings["synchronous_commit"] = "off"
    place = [] if views is None else [f'SET LOCAL search_path = "{views.replace(chr(34), chr(34) * 2)}"']
    said = [_BEGIN, locks, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()), *place]
    storing = "; ".join(said)
    together = f"{storing}; SELECT {NUMBER}"
    return Beginnings(
        storing=storing.encode(),
        together=together.encode(),
        # A tenant only marks one of its sessions.
        alone=(f"{storing}; {ALONE}; SELECT {NUMBER}" if views is None else together).encode(),
        read="; ".join([_READ, locks, *place]).encode(),
        search="; ".join([_READ, locks, *place, SET_OUT]).encode(),
        # An index can be made again: it waits for no disk and no replica. (After a crash they still wait in `unindexed`.)
        indexing=tuple(one.encode() for one in (*said, "SET LOCAL synchronous_commit = off")),
    )
