"""The write lock in other hands: for a while (wait), for ever (a typed error that names the holder), or in a coma."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from . import Refused, Remote, assert_found, assert_kept, seeded, size, store

ENGINE = "hermes.store.engines.sqlite.engine"
QUICK = {"RETRIES": 4, "QUEUE_SECONDS": 0.3}
MOMENTS = size(5, 60)
SOON = 20.0  # seconds: far more than an impatient client may take


def impatient(path: Path) -> Remote:
    """A client that gives up soon, so that a test need not wait for half a minute."""
    remote = Remote()
    remote.set(ENGINE, **QUICK)
    remote.set("hermes.store.engines.sqlite.connection", BUSY_SECONDS=0.1)
    remote.open(str(path))
    return remote


def prepared(folder: Path) -> Path:
    path = folder / "state.db"
    with store(path) as db:
        db.create_session("talk", "cli")
        db.append_message("talk", "user", "wn0q hello")
    return path


def test_a_lock_held_for_three_seconds_is_waited_for(folder: Path) -> None:
    path = prepared(folder)
    clients = [Remote(path) for _ in range(3)]
    with Remote() as holder:
        holder.hold(str(path))
        for number, client in enumerate(clients):
            client.begin("append", "talk", f"c{number}", 0, 5)
        holder.begin("pause", 3.0)
        holder.answer()
        holder.let_go()
        acks = []
        for number, client in enumerate(clients):
            acks += [(one, "talk", f"c{number}", n) for n, one in enumerate(client.answer())]
            client.close()
            client.kill()
    with store(path) as db:
        assert len(acks) == 15
        assert_found(db, acks)
        assert db.message_count("talk") == 16
        assert db.check() == []


def test_a_lock_that_is_never_given_back_is_a_typed_error_that_names_file_and_holder(folder: Path) -> None:
    path = prepared(folder)
    with Remote() as holder, impatient(path) as client:
        holder.hold(str(path))
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                client.append("talk", "c", 0)
            assert refused.value.kind == "StoreBusy", refused.value
            assert str(path) in refused.value.text
            if Path("/proc/self/fd").exists():
                assert str(holder.pid) in refused.value.text
        # Reading does not need the lock.
        assert len(client.get_messages("talk")) == 1
        assert len(client.search_messages("wn0q")) == 1
        holder.let_go()
        acks = [(one, "talk", "c", n) for n, one in enumerate(client.append("talk", "c", 0, 3))]
        assert len(client.get_messages("talk")) == 4, "a refused message is not stored"
        assert_found(client, acks)
        assert client.check() == []


def test_opening_reading_and_closing_while_another_holds_the_lock_for_ever(folder: Path) -> None:
    path = prepared(folder)
    with Remote() as holder:
        holder.hold(str(path))
        with impatient(path) as client:
            assert len(client.search_messages("wn0q")) == 1
            client.close()
        with Remote() as reader:
            reader.open(str(path), read_only=True)
            assert len(reader.get_messages("talk")) == 1
            reader.close()
        holder.let_go()


def test_a_stopped_process_with_the_queue_in_its_hand_holds_up_nobody_for_ever(folder: Path) -> None:
    """The queue is a courtesy: who does not get it in time goes on with SQLite's own lock."""
    path = prepared(folder)
    with Remote() as stopped, impatient(path) as first, impatient(path) as second:
        stopped.lock_file(f"{path}-queue")
        stopped.signal(signal.SIGSTOP)
        acks: list[tuple[int, str, str, int]] = []
        for name, client in (("a", first), ("b", second)):
            outcome = client.attempt("talk", name, 0, 4)
            assert outcome["error"] is None, outcome["error"]["trace"]
            acks += [(one, "talk", name, n) for one, n in outcome["done"]]
        stopped.signal(signal.SIGCONT)
        stopped.unlock_file()
        for name, client in (("a", first), ("b", second)):
            acks += [(one, "talk", name, 4 + n) for n, one in enumerate(client.append("talk", name, 4, 4))]
            client.close()
    with store(path) as db:
        assert len(acks) == 16
        assert_found(db, acks)
        assert db.check() == []


def test_a_writer_stopped_anywhere_in_an_append_holds_up_nobody_for_ever(folder: Path) -> None:
    """The others get through or are told StoreBusy; when it wakes up, everybody goes on, and nothing is lost."""
    dice = seeded("stopped")
    path = prepared(folder)
    acks: list[tuple[int, str, str, int]] = []
    with Remote(path) as dry:
        dry.append("talk", "dry", 0)
        dry.count()
        dry.append("talk", "dry", 1)
        total = dry.counted()
    through = busy = 0
    for turn, at in enumerate(sorted(dice.sample(range(1, total + 1), min(MOMENTS, total)))):
        with Remote(path) as writer, impatient(path) as other:
            acks += [(one, "talk", f"w{turn}", 0) for one in writer.append("talk", f"w{turn}", 0)]
            writer.count(at, signal.SIGSTOP)
            writer.begin("append", "talk", f"w{turn}", 1, 6)
            writer.stopped()
            other.begin("attempt", "talk", f"o{turn}", 0, 2)
            outcome: dict[str, Any] = other.answer(SOON)
            acks += [(one, "talk", f"o{turn}", n) for one, n in outcome["done"]]
            through, busy = through + len(outcome["done"]), busy + (outcome["error"] is not None)
            assert outcome["error"] is None or outcome["error"]["type"] == "StoreBusy", outcome["error"]
            if outcome["error"] is not None:
                assert f"kill -CONT {writer.pid}" in outcome["error"]["text"], "it says who was stopped, and what helps"
            writer.signal(signal.SIGCONT)
            acks += [(one, "talk", f"w{turn}", 1 + n) for n, one in enumerate(writer.answer())]
            first = outcome["failed"] if outcome["failed"] is not None else 2
            acks += [
                (one, "talk", f"o{turn}", first + n) for n, one in enumerate(other.append("talk", f"o{turn}", first, 3))
            ]
            writer.close()
            other.close()
    with store(path) as db:
        rows = db.get_messages("talk")
        assert len(rows) == len(acks) + 3, "the acknowledged ones, the first and the two dry ones"
        assert_kept(db, acks)
        assert_found(db, acks)
        assert db.check() == []
    print(f"{through} got through, {busy} were told StoreBusy")
