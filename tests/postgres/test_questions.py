"""Questions on PostgreSQL: the words of one are searched together, from the newest messages on, in ranges of ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hermes.store.engines.postgres import fulltext
from hermes_state import SessionDB

WORDS = ("lighthouse", "harbour", "Peniche", "sardines", "ferry")
ASKED = "Where near the lighthouse and the harbour of Peniche did they sell the sardines?"
MANY = 450  # more messages than are ranked of one word


def exported(name: str, texts: list[str], began: float) -> dict[str, Any]:
    messages = [{"role": "user", "content": text, "timestamp": began + number} for number, text in enumerate(texts)]
    return {"id": name, "source": "cli", "started_at": began, "messages": messages}


def filled(db: SessionDB, skip: Callable[[int], None]) -> None:
    """A few sessions with parts of the answer, one of very many messages with a word of it, and gaps in the ids."""
    for number, word in enumerate(WORDS):
        db.import_session(exported(f"old-{word}", [f"We saw the {word} in spring.", "It rained."], 1_000.0 * number))
        skip(200_000)
    db.import_session(exported("many", [f"The harbour, part {number}." for number in range(MANY)], 9_000.0))
    skip(5_000)
    db.import_session(exported("new", ["The lighthouse of Peniche is closed.", "So is the ferry."], 10_000.0))


def answers(db: SessionDB) -> list[tuple[str, str, float, str]]:
    hits = [hit for limit in (20, 5) for hit in db.search_messages(ASKED, limit=limit)]
    return [(hit["session_id"], hit["snippet"], hit["score"], hit["confidence"]) for hit in hits]


def test_a_question_finds_the_same_as_on_sqlite_however_far_ids_lie_apart(url: str, tmp_path: Path) -> None:
    def skip(count: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT setval('messages_id_seq', (SELECT max(id) FROM messages) + %s)", (count,))

    def skip_in_file(count: int) -> None:
        with file._engine.write() as tx:
            tx.reserve(tx.last_number("messages") + count)

    with SessionDB(url=url) as db, SessionDB(db_path=tmp_path / "state.db") as file:
        filled(db, skip)
        filled(file, skip_in_file)
        for change in (None, None, "many", "new", "old-harbour"):
            if change:
                db.delete_session(change)
                file.delete_session(change)
            assert answers(db) == answers(file), change
            assert answers(db)
        assert {"old-lighthouse", "old-Peniche", "old-sardines"} <= {one for one, *_ in answers(db)}


def test_with_tiny_windows_every_search_widens_and_finds_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(url=url) as db:
        filled(db, lambda _: None)
        before = answers(db)
        monkeypatch.setattr(fulltext, "FIRST_WINDOW", 1)
        assert answers(db) == before
