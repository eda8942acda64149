"""Inbox and outbox of a file that an older version made, with counters and indexes on what waits: they go on as they are."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import pytest

from hermes.store import gateway_outbox
from hermes.store.db import SessionDB
from hermes.store.gateway_db import GatewayDB

OLD = """
DROP TABLE gateway_inbox; DROP TABLE gateway_outbox;
CREATE TABLE gateway_inbox (id INTEGER PRIMARY KEY AUTOINCREMENT, platform TEXT NOT NULL,
 event_id TEXT NOT NULL, key TEXT NOT NULL, event TEXT, received_at REAL NOT NULL, begun_at REAL, session_id TEXT,
 message_id INTEGER, shown TEXT, finished_at REAL, UNIQUE (platform, event_id));
CREATE TABLE gateway_outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, inbox_id INTEGER, platform TEXT NOT NULL,
 chat TEXT NOT NULL, text TEXT, nonce TEXT NOT NULL, reply_to TEXT, edits TEXT, created_at REAL NOT NULL, begun_at REAL,
 sent_at REAL, message_id TEXT, error TEXT);
CREATE INDEX idx_inbox_key ON gateway_inbox(key) WHERE finished_at IS NULL;
CREATE INDEX idx_outbox_open ON gateway_outbox(inbox_id) WHERE sent_at IS NULL AND error IS NULL;
CREATE INDEX idx_outbox_failed ON gateway_outbox(inbox_id) WHERE error IS NOT NULL;
INSERT INTO gateway_inbox(id, platform, event_id, key, event, received_at, begun_at, session_id, message_id, finished_at)
 VALUES (4, 'plain', 'e4', 'k', NULL, 1.0, 2.0, 's', 7, 3.0), (5, 'plain', 'e5', 'k', '{"five": 5}', 4.0, 5.0, 's', 8, NULL),
 (6, 'plain', 'e6', 'k', '{"six": 6}', 6.0, NULL, NULL, NULL, NULL);
INSERT INTO gateway_outbox(id, inbox_id, platform, chat, text, nonce, created_at, sent_at, message_id, error)
 VALUES (8, 4, 'plain', '{}', NULL, 'n-4', 3.0, 3.5, 'm4', NULL), (9, 4, 'plain', '{}', 'more', 'n-4-1', 3.0, NULL, NULL, NULL),
 (10, 4, 'plain', '{}', 'never', 'n-4-2', 3.0, NULL, NULL, 'refused');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store as the older version left it; the events up to number 40 were answered and forgotten."""
    path = tmp_path / "state.db"
    with SessionDB(path) as db:
        GatewayDB(db)
    file = sqlite3.connect(path)
    file.executescript(OLD)
    file.execute("UPDATE sqlite_sequence SET seq = 40 WHERE name = 'gateway_inbox'")
    file.commit()
    file.close()
    return path


def schema(path: Path) -> str:
    file = sqlite3.connect(path)
    try:
        return "\n".join(
            str(row[0]) for row in file.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'mess%'")
        )
    finally:
        file.close()


def test_what_waits_still_waits(path: Path) -> None:
    with SessionDB(path) as db:
        store = GatewayDB(db)
        waiting = [(one.id, one.event, one.session_id, one.message_id) for one in store.unanswered()]
        assert waiting == [(5, '{"five": 5}', "s", 8), (6, '{"six": 6}', None, None)]
        assert [(one.id, one.inbox_id, one.text, one.nonce) for one in store.unsent()] == [(9, 4, "more", "n-4-1")]
        assert store.mail_counts() == {"plain": {"waiting": 2, "unsent": 1, "failed": 1}}
        assert store.progress("plain", "e4") == (True, 1, "refused")
        assert db.check() == []


def test_what_was_answered_is_known(path: Path) -> None:
    with SessionDB(path) as db:
        store = GatewayDB(db)
        assert store.receive("plain", "e4", "k", "{}") is None
        assert store.receive("plain", "e5", "k", "{}") == 5


def test_no_number_is_given_out_twice(path: Path) -> None:
    with SessionDB(path) as db:
        number = GatewayDB(db).receive("plain", "e41", "k", "{}")
    assert number == 41


def test_the_boxes_are_made_lighter_once(path: Path) -> None:
    def boxes(text: str) -> list[str]:
        return [line for line in text.splitlines() if "AUTOINCREMENT" in line or "idx_inbox" in line or "_open" in line]

    assert len(boxes(schema(path))) >= 3
    with SessionDB(path) as db:
        GatewayDB(db)
    after = schema(path)
    assert [line for line in boxes(after) if "gateway" in line] == []
    assert "idx_outbox_failed" in after
    assert "UNIQUE (platform, event_id)" in after
    with SessionDB(path) as db:
        GatewayDB(db)
    assert schema(path) == after


def test_a_file_that_is_only_read_stays_as_it_is(path: Path) -> None:
    before = schema(path)
    with SessionDB(path, read_only=True) as db:
        assert GatewayDB(db).mail_counts() == {"plain": {"waiting": 2, "unsent": 1, "failed": 1}}
    assert schema(path) == before


def test_the_newest_row_is_not_forgotten(tmp_path: Path) -> None:
    """Numbers go on from it: a reply that had the name of an old one would be taken for it by the platform."""
    now = [1000.0]
    with SessionDB(tmp_path / "state.db") as db:
        store = GatewayDB(db, clock=lambda: now[0])
        numbers = []
        for n in range(3):
            number = store.receive("plain", f"e{n}", "k", "{}")
            assert number is not None
            numbers.append(number)
            store.finish(number, "plain", "{}", [{"text": "hello", "nonce": f"n{n}"}])
        parts = store.unsent()
        assert len(parts) == 3
        for part in parts:
            store.together([partial(gateway_outbox.unsendable, outbox_id=part.id, error="not to be sent", now=now[0])])
        now[0] += 30 * 86400
        assert store.forget_mail(last_days=-1) == 4
        again = store.receive("plain", "another", "k", "{}")
        assert again is not None and again > max(numbers)
        assert store.post("plain", "{}", "x", "nonce").id > max(part.id for part in parts)
