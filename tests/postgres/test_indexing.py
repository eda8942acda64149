"""Messages are indexed a moment after they are stored; they are found from the moment they are stored all the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hermes.store.engines import unindexed
from hermes.store.engines.postgres import lexemes
from hermes_state import SessionDB
from tests.faults import Acks, Remote, seeded, size, word
from tests.support import postgres, program
from tests.support.labs.base import until

from . import paced, patient
from .clusters import VERSIONS


@pytest.fixture(params=VERSIONS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    server = postgres.server(request.param)
    yield server.store(str(tmp_path))
    server.forget(str(tmp_path))


def ask(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def ask_none(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


def waiting(url: str) -> int:
    return int(ask(url, "SELECT count(*) FROM unindexed")[0][0])


def found(db: SessionDB, query: str) -> set[int]:
    return {hit["id"] for hit in db.search_messages(query, limit=500)}


# ------------------------------------------------------------------ found at once


def test_a_message_is_found_at_once_by_whoever_searches(url: str, tmp_path: Path) -> None:
    dice = seeded("at once")
    with patient(url, tmp_path / "a.db") as one, patient(url, tmp_path / "b.db") as other:
        one.create_session("s", "cli")
        for number in range(40):
            stored = dice.choice((one, other)).append_message("s", "user", f"common n{number} get_x{number}_value")
            if dice.random() < 0.6:
                assert waiting(url) > 0, "it is not indexed yet"
                searching = dice.choice((one, other))
                asked = dice.choice((f"n{number}", f"get_x{number}_value", f"et_x{number}_val", f'"common n{number}"'))
                before = waiting(url)
                assert stored in found(searching, asked), asked
                assert waiting(url) == before, "a search writes nothing"
        assert len(found(one, "common")) == 40
        assert one.check() == []


def test_processes_that_index_at_the_same_time_index_nothing_twice(url: str, tmp_path: Path) -> None:
    stores = [patient(url, tmp_path / f"{n}.db") for n in range(4)]
    try:
        stores[0].create_session("s", "cli")
        for round_ in range(size(3, 12)):
            ids = {db.append_message("s", "user", f"round{round_} {'many words ' * 50}") for db in stores * 8}
            with ThreadPoolExecutor(len(stores)) as threads:
                assert list(threads.map(found, stores, [f"round{round_}"] * len(stores))) == [ids] * len(stores)
                list(threads.map(SessionDB.catch_up, stores))
        assert ask(url, "SELECT count(*), count(DISTINCT message_id) FROM message_words") == [(32 * (round_ + 1),) * 2]
        assert stores[0].check() == []
    finally:
        for db in stores:
            db.close()


def test_a_moment_later_it_is_indexed_without_anybody_searching(url: str, tmp_path: Path) -> None:
    with SessionDB(db_path=tmp_path / "a.db", url=url) as db:
        db.create_session("s", "cli")
        for number in range(150):
            db.append_message("s", "user", f"n{number}")
        until(lambda: waiting(url) == 0, "the thread has indexed everything")
        assert ask(url, "SELECT count(*) FROM message_words") == [(150,)]
        assert db.index_status() == {"indexed_to": 150, "pending": 0}


def test_what_is_left_when_a_store_is_closed_is_indexed(url: str, tmp_path: Path) -> None:
    with patient(url, tmp_path / "a.db", at_the_end=600.0) as db:  # so long as it takes on this machine
        db.create_session("s", "cli")
        ids = [db.append_message("s", "user", f"n{number} " + "x " * 5000) for number in range(100)]
        assert db.index_status() == {"indexed_to": ids[0] - 1, "pending": 100}
    assert waiting(url) == 0


def test_what_takes_too_long_when_a_store_is_closed_is_left_to_the_next(url: str, tmp_path: Path) -> None:
    with patient(url, tmp_path / "a.db", at_the_end=0.0) as db:
        db.create_session("s", "cli")
        ids = {db.append_message("s", "user", f"common n{number}") for number in range(100)}
    assert waiting(url) == 100
    with patient(url, tmp_path / "b.db") as db:
        assert found(db, "common") == ids
        assert db.catch_up() == 100
    assert waiting(url) == 0


def test_in_a_long_burst_not_everything_is_put_off(url: str, tmp_path: Path) -> None:
    with patient(url, tmp_path / "a.db", too_many=100) as db:
        db.create_session("s", "cli")
        most = 0
        for number in range(400):
            db.append_message("s", "user", f"n{number}")
            most = max(most, waiting(url)) if number % 10 == 0 else most
        assert 50 < most <= 100
        assert len(found(db, "n*")) == 400


def _gothic(number: int) -> str:
    """A word of letters that take four bytes each."""
    return "".join(chr(0x10330 + int(digit)) for digit in f"{number:015}")


def test_words_and_names_that_take_more_room_than_usual_are_found(url: str, tmp_path: Path) -> None:
    text = " ".join(f"{_gothic(2 * n)}_{_gothic(2 * n + 1)}" for n in range(5_900))
    with SessionDB(db_path=tmp_path / "a.db", url=url) as db:
        db.create_session("s", "cli")
        stored = db.append_message("s", "user", text)
        for query in (_gothic(11_799), f"{_gothic(8)}_{_gothic(9)}", f"{_gothic(8)[5:]}_{_gothic(9)[:9]}"):
            assert found(db, query) == {stored}
        assert found(db, f'"{_gothic(7)} {_gothic(8)}"') == {stored}
        assert db.check() == []


def test_a_message_the_server_refuses_to_index_keeps_no_other_from_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexemes, "MOST_BYTES", 1 << 40)  # so that a tsvector becomes larger than the server takes
    with patient(url, tmp_path / "a.db") as db:
        db.create_session("s", "cli")
        before = db.append_message("s", "user", "good before")
        bad = db.append_message("s", "user", "begins so " + " ".join(map(_gothic, range(60_000))))
        after = db.append_message("s", "user", "good after")
        assert found(db, _gothic(59_999)) == {bad}, "as long as it waits"
        db.catch_up()
        assert found(db, "good") == {before, after}
        assert found(db, "begins") == {bad}
        assert found(db, _gothic(59_999)) == set(), "only its beginning could be indexed"
        assert waiting(url) == 0


# ------------------------------------------------------------------ killed, stopped, deleted, restarted


def test_messages_that_are_deleted_before_they_are_indexed_leave_nothing(url: str, tmp_path: Path) -> None:
    """Threads of two stores store, search and delete; at the end the index is exactly that of what is there."""
    stores = [SessionDB(db_path=tmp_path / f"{n}.db", url=url) for n in range(2)]
    failed: list[BaseException] = []

    def work(db: SessionDB, name: str) -> None:
        dice = seeded(name)
        try:
            for number in range(size(15, 60)):
                session = f"{name} {number}"
                db.create_session(session, "cli")
                ids = {
                    db.append_message(session, "user", f"{name} text {'more ' * dice.randint(0, 300)}")
                    for _ in range(5)
                }
                if dice.random() < 0.5:
                    assert found(db, name) >= ids
                if dice.random() < 0.7:
                    db.delete_session(session)
        except BaseException as error:
            failed.append(error)
            raise

    try:
        threads = [
            threading.Thread(target=work, args=(db, f"t{n}{m}")) for n, db in enumerate(stores) for m in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        there = {row[0] for row in ask(url, "SELECT id FROM messages")}
        assert found(stores[0], "text") == there
        stores[0].catch_up()
        assert {row[0] for row in ask(url, "SELECT DISTINCT message_id FROM message_words")} == there
        assert waiting(url) == 0
        assert stores[0].check() == []
    finally:
        for db in stores:
            db.close()


# ------------------------------------------------------------------ for reading only


def test_what_waits_is_found_for_reading_as_it_is_when_indexed(url: str, tmp_path: Path) -> None:
    """Every way to ask, each answered twice: from the texts that wait, and from the index. Hits and scores are the same."""
    long = " ".join(f"w{number % 900}" for number in range(13_000))
    texts = [
        "docker deployment of get_user_name(x)", "docker docker deploy", "the exact phrase stands here", "exact, the phrase",
        f"docker {long} the exact phrase get_user_name", "数据库部署完成 getUserById完成", "ΟΔΟΣ und Straße", "plain words", "🚀 start",
        '{"key": "json value", "other": [1, "deep_name_x"]}', "rm -rf /tmp/x",
    ]  # fmt: skip
    asked = [
        "docker", "docker deploy*", '"exact phrase"', '"the exact phrase"', "exact phrase", "get_user_name", "et_user_na",
        "docker NOT deployment", "docker OR plain", "数据", "数据库", "库", "getUserBy", "strasse", "straße", "οδος", "ployme",
        "🚀", "deep_name_x", "json value", "how do i deploy docker?", "rm -rf", "w899", '"w899 w0"', "nothere", "words plain -docker",
    ]  # fmt: skip
    with patient(url, tmp_path / "a.db") as db:
        db.create_session("s", "cli")
        for text in texts:
            db.append_message("s", "user", text)
        db.append_message("s", "assistant", "", tool_calls=[{"function": {"name": "read_it", "arguments": "{}"}}])
        db.append_message("s", "tool", "said", tool_name="read_it")

        def answers(reader: SessionDB) -> dict[str, list[Any]]:
            return {
                query: [(hit["id"], hit["snippet"]) for hit in reader.search_messages(query, limit=50)]
                for query in [*asked, "read_it"]
            }

        with SessionDB(db_path=tmp_path / "b.db", url=url, read_only=True) as reader:
            direct = answers(reader)
            assert waiting(url) == len(texts) + 2
            db.catch_up()
            assert waiting(url) == 0
            indexed = answers(reader)
    for query in direct:
        assert direct[query] == indexed[query], query
    assert sum(map(bool, direct.values())) >= len(asked) - 2, "nearly all of them find something"


def test_more_than_is_kept_in_memory_is_found(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unindexed, "HELD_CHARACTERS", 2_000)
    monkeypatch.setattr(unindexed, "READ", 7)
    with patient(url, tmp_path / "a.db") as db:
        db.create_session("s", "cli")
        ids = [db.append_message("s", "user", f"common n{number} {'x' * 100}") for number in range(60)]
        assert found(db, "common") == set(ids)
        assert found(db, "n7") == {ids[7]}
        assert found(db, "n4*") == {ids[4], *ids[40:50]}


# ------------------------------------------------------------------ what no process indexes


def test_what_a_killed_process_left_is_found_by_the_command_line_and_adopted(url: str, tmp_path: Path) -> None:
    with Acks() as acks:
        writer = Remote(pass_fds=[acks.write_end])
        writer.begin("open", str(tmp_path / "there" / "state.db"), url=url)
        writer.begin("ensure_session", "s", "cli")
        writer.begin("ensure_session", "shared", "cli")
        writer.begin("write_on", "s", "shared", "r", acks.write_end)
        acks.wait_for(60)
        writer.signal(signal.SIGKILL)
        writer.kill()
        acks.drain()
    left = waiting(url)
    assert left > 0
    environment = {"HERMES_STORE_URL": url}
    message_id, _, tag, number = acks.all[-1]
    shown = program.run("sessions", "search", word(tag, number), home=tmp_path / "home", env=environment)
    assert shown.status == 0, shown
    assert word(tag, number) in shown.out
    assert waiting(url) == left, "the command reads only"

    with SessionDB(db_path=tmp_path / "here.db", url=url) as db:
        assert db.check() == []
        assert db.catch_up() == left
        ask_none(url, "DELETE FROM message_words")  # as if they had been left again
        ask_none(url, "INSERT INTO unindexed SELECT id, now() - interval '2 minutes' FROM messages")
    with paced(url, tmp_path / "here.db", adopt_every=0.0) as db:
        db.create_session("other", "cli")
        db.append_message("other", "user", "one of another process")  # its indexer looks after the rest, too
        until(lambda: waiting(url) == 0, "another process's indexer has indexed them")
        assert message_id in found(db, word(tag, number))
        assert db.check() == []


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
def test_names_in_long_messages_are_found_beside_words_and_phrases(engine: str, tmp_path: Path) -> None:
    server = postgres.server()
    where: Any = {"url": server.store(str(tmp_path))} if engine == "postgres" else {}
    filler = " ".join(f"w{number % 900}" for number in range(20_000))
    texts = [
        f"docker {filler} get_user_name(x) {filler} the exact phrase",
        "docker get_user_name(x) the exact phrase",
        f"docker {filler} reset_user_name",
        f"{filler} the exact phrase",
        "nothing of it",
    ]
    asked: dict[str, set[int]] = {
        "get_user_name": {0, 1},
        "et_user_na": {0, 1, 2},
        "docker et_user_na": {0, 1, 2},
        'et_user_na "exact phrase"': {0, 1},
        'et_user_na NOT "exact phrase"': {2},
        'docker NOT "exact phrase"': {2},
        'set_user_na OR "exact phrase"': {0, 1, 2, 3},
        '"exact phrase" OR get_user_name': {0, 1, 3},
        '"exact phrase" NOT get_user_name': {3},
        'docker "exact phrase"': {0, 1},
        "dock* phrase": {0, 1},
        '"docker get"*': {1},
        '"name x"*': {0, 1},
    }
    with SessionDB(db_path=tmp_path / "state.db", **where) as db:
        db.create_session("s", "cli")
        ids = [db.append_message("s", "tool", text) for text in texts]
        for query, numbers in asked.items():
            assert found(db, query) == {ids[number] for number in numbers}, query
            assert {hit["id"] for hit in db.search_messages(query, limit=1)} <= {ids[number] for number in numbers}, (
                query
            )
        assert db.check() == []
    if where:
        server.forget(str(tmp_path))


def test_what_a_killed_process_stored_is_found(url: str, tmp_path: Path) -> None:
    for round_ in range(size(1, 5)):
        with Acks() as acks:
            writer = Remote(pass_fds=[acks.write_end])
            writer.begin("open", str(tmp_path / "there" / "state.db"), url=url)
            writer.begin("ensure_session", "s", "cli")
            writer.begin("ensure_session", "shared", "cli")
            writer.begin("write_on", "s", "shared", f"r{round_}", acks.write_end)
            acks.wait_for(60)
            writer.signal(signal.SIGKILL)
            writer.kill()
            acks.drain()
        assert waiting(url) > 0
        with SessionDB(db_path=tmp_path / "here.db", url=url) as db:
            for message_id, _, tag, number in acks.all:
                assert message_id in found(db, word(tag, number))
            assert db.check() == []
