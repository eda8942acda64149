"""`hermes sessions migrate`: everything arrives as it was, on either engine and back, whatever interrupts it."""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import InvalidInput
from hermes.store.engines import without_password
from hermes.store.exchange.copy import move, snapshot
from hermes.store.gateway import outbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import IncomingEvent
from hermes_state import SessionDB
from tests.support import postgres
from tests.support.gateway import received
from tests.support.labs.base import until
from tests.support.program import run, start

PICTURE = b"a picture of a heron" * 40
TABLES = (
    "sessions", "messages", "system_prompts", "session_refs", "session_rewinds", "session_tags", "session_members",
    "attachments", "leases", "audit", "gateway_routes", "gateway_inbox", "gateway_outbox",
)  # fmt: skip


def rich(db: SessionDB) -> None:
    """A record with something of everything."""
    db.create_session("a", "cli", system_prompt="p" * 2000 + "one", model_config={"x": 1}, user_id="1", cwd="/srv")
    db.create_session("b", "telegram", system_prompt="p" * 2000 + "two", user_id="2")
    ids = [db.append_message("a", role, f"{role} {n} 部署 \0 \ud800 \ufdd0", timestamp=1e9 + n / 3)
           for n, role in enumerate(["user", "assistant"] * 4)]  # fmt: skip
    db.append_message("a", "tool", "x\ud800" + "long output " * 900, tool_name="terminal", tool_call_id="c1")
    db.append_message("a", "assistant", None, tool_calls=[{"id": "c", "function": {"name": "t", "arguments": "{}"}}])
    data = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    db.append_message(
        "b", "user", [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "look"}]
    )
    db.update_token_counts("a", input_tokens=1 << 40, estimated_cost_usd=0.1 + 0.2)
    db.set_session_title("a", "work #2")
    db.branch_session("a", "branch", at_message=ids[3])
    db.compress_session("a", "a2", summary="so far", head_until=ids[0], tail_from=ids[-1])
    db.rewind("a2", ids[0])
    db.create_session("gone", "cli")
    kept = db.append_message("gone", "user", "kept for the branch")
    db.branch_session("gone", "heir", at_message=kept)
    db.delete_session("gone", by="test")
    db.create_session("trashed", "cli")
    db.set_session_title("trashed", "thrown away")
    db.trash_session("trashed", by="test")
    db.tag_session("b", "日本")
    db.share_session("b", "discord", "7")
    db.pin_session("b")
    db.set_meta("k\0", "v\ud800")
    db.acquire_lease("something", "me")
    db.create_session("last", "cli")
    db.append_message("last", "user", "its id is never used again")
    db.delete_session("last")
    gateway = GatewayDB(db)
    incoming = IncomingEvent("key", "plain", "e1", '{"text": "hello"}', "{}", "dm", display_name="Ann", user_id="1")
    gateway.receive(incoming)
    gateway.post("plain", "{}", "a reply", "n1")


def facts(db: SessionDB) -> dict[str, Any]:
    """The contents of a record, read through the API."""
    return {
        "export": db.export_all(),
        "rows": [db.get_messages(row["id"]) for row in db.list_sessions_rich(limit=100, include_children=True)],
        "trash": db.list_trash(),
        "audit": db.audit_log(),
        "meta": db.get_meta("k\0"),
        "found": sorted(hit["id"] for hit in db.search_messages("部署 OR long OR look", limit=100)),
        "inside": sorted(hit["id"] for hit in db.search_messages("utpu", limit=100)),
        "unsent": [part.text for part in GatewayDB(db).read(outbox.unsent)],
    }


def dump(path: Path) -> dict[str, list[Any]]:
    """Every row of a file, as another program reads it."""
    with sqlite3.connect(path) as connection:
        connection.text_factory = bytes
        columns = dict.fromkeys(TABLES, "*")
        names = [
            row[1].decode() if isinstance(row[1], bytes) else row[1]
            for row in connection.execute("PRAGMA table_info(sessions)")
        ]
        columns["sessions"] = ", ".join(name for name in names if name != "transcript")  # the state of files beside it
        rows = {
            table: connection.execute(f"SELECT {columns[table]} FROM {table} ORDER BY 1, 2").fetchall()
            for table in TABLES
        }
    connection.close()
    return rows


@pytest.mark.parametrize("version", postgres.VERSIONS)
def test_a_record_goes_to_a_server_and_back_and_no_row_differs(tmp_path: Path, version: str) -> None:
    places: list[dict[str, Any]] = [
        {"db_path": tmp_path / "one" / "state.db"},
        {"db_path": tmp_path / "two" / "state.db", "url": postgres.server(version).store(str(tmp_path))},
        {"db_path": tmp_path / "three" / "state.db"},
    ]
    first, server, last = (SessionDB(**place) for place in places)
    with first, server, last:
        rich(first)
        there = move(first, server)
        assert there.rounds == 2 and there.attachments == 1
        assert facts(server) == facts(first)
        assert server.check() == []
        back = move(server, last)
        assert (back.sessions, back.messages) == (there.sessions, there.messages)
        assert facts(last) == facts(first)
        assert last.check() == []
        (picture,) = [path for path in last.attachments_dir.rglob("*") if path.is_file()]
        assert picture.read_bytes() == PICTURE
    one, three = dump(tmp_path / "one" / "state.db"), dump(tmp_path / "three" / "state.db")
    for table in TABLES:
        assert one[table] == three[table] != [], table
    # What was given out once is given out nowhere again.
    first, server, last = (SessionDB(**place) for place in places)
    with first, server, last:
        assert len({db.append_message("b", "user", "one more") for db in (first, server, last)}) == 1
        assert len({received(GatewayDB(db), "plain", "e2", "key", "{}") for db in (first, server, last)}) == 1
    postgres.server(version).forget(str(tmp_path))


def test_what_changed_since_is_brought_over_and_what_is_gone_is_removed(tmp_path: Path, url: str) -> None:
    with SessionDB(tmp_path / "state.db") as file, SessionDB(tmp_path / "x" / "state.db", url=url) as server:
        rich(file)
        move(file, server)
        file.set_session_title("a", None)
        file.set_session_title("b", "work #2")  # a title that another session had
        file.delete_session("branch")
        file.append_message("b", "user", "a late heron")
        file.rewind("b", 0)
        moved = move(file, server)
        assert moved.removed > 0 and moved.written > 0
        assert facts(server) == facts(file)
        assert server.check() == []


def test_a_backup_of_a_server_is_a_file_of_one_moment(tmp_path: Path, url: str) -> None:
    """Two sessions always get their messages together; in the copy neither is ahead."""
    with (
        SessionDB(tmp_path / "x" / "state.db", url=url) as server,
        SessionDB(tmp_path / "y" / "state.db", url=url) as other,
    ):
        server.create_session("one", "cli")
        server.create_session("two", "cli")
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                with other._engine.write() as tx:
                    from hermes.store.records import messages

                    for name in ("one", "two"):
                        messages.append(tx, name, other._encoded({"role": "user", "content": f"heron {number}"}))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: server.message_count() > 20)
            server.backup(tmp_path / "copy.db")
        finally:
            stop.set()
            writer.join()
        with SessionDB(tmp_path / "copy.db") as copy:
            texts = [[m["content"] for m in copy.get_messages(name)] for name in ("one", "two")]
            assert texts[0] == texts[1] and len(texts[0]) > 10
            assert copy.check() == []
        with pytest.raises(InvalidInput):
            server.backup(tmp_path / "copy.db")


def test_the_same_place_and_strange_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with SessionDB(tmp_path / "state.db") as file, SessionDB(url=f"sqlite://{tmp_path}/state.db") as same:
        assert same.path == file.path
        with pytest.raises(InvalidInput, match="already"):
            move(file, same)
    for wrong in ("mysql://x/y", "state.db", "sqlite:", "", "postgresql"):
        with pytest.raises(InvalidInput, match="postgresql://"):
            SessionDB(url=wrong)
    with SessionDB(tmp_path / "x" / "state.db", url=url) as server, SessionDB(tmp_path / "state.db") as file:
        assert snapshot(server, file).sessions == 0


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def home(hermes_home: Path) -> Path:
    with SessionDB() as db:
        for number in range(40):
            db.create_session(f"s{number}", "cli")
            for line in range(60):
                db.append_message(f"s{number}", "user", f"heron {number} {line} " + "reeds " * 40)
        db.set_session_title("s39", "birds")
    return hermes_home


def test_a_migration_that_is_killed_goes_on_where_it_was(home: Path, url: str) -> None:
    going = start("sessions", "migrate", "--to", url, home=home)
    schema = url.rpartition("%3D")[2].partition("%2C")[0]

    def arrived() -> int:
        try:
            return int(postgres.server().sql(f"SELECT count(*) FROM {schema}.messages")[0][0])
        except Exception:  # the tables are not made yet
            return 0

    until(lambda: arrived() >= 200)
    os.kill(going.pid, signal.SIGKILL)
    going.communicate()
    before = arrived()
    assert 200 <= before < 2400
    done = run("sessions", "migrate", "--to", url, home=home)
    assert done.status == 0, done
    assert "has 40 sessions and 2,400 messages; every row was compared" in done.out
    with SessionDB() as db, SessionDB(home / "x" / "state.db", url=url) as server:
        assert server.export_all() == db.export_all()
        assert server.check() == []


def test_every_command_works_on_a_server(home: Path, url: str, tmp_path: Path) -> None:
    def hermes(*words: object, status: int = 0, **more: Any) -> str:
        done = run(*words, home=home, **more)
        assert done.status == status, (words, done)
        assert "Traceback" not in done.err and "password" not in done.out
        return done.out

    hermes("sessions", "migrate", "--to", url)
    hermes("config", "set", "store.url", url)
    (home / "state.db").rename(tmp_path / "old.db")
    assert "birds" in hermes("sessions", "list")
    assert "heron" in hermes("sessions", "search", "heron 7")
    assert "heron 39 0" in hermes("sessions", "show", "birds")
    assert json.loads(hermes("sessions", "stats", "--json"))["messages"] == 2400
    assert hermes("sessions", "check") == "sound: 40 sessions, 2,400 messages\n"
    assert "nothing to repair" in hermes("sessions", "repair")
    assert "repaired: rebuilt the full-text index" in hermes("sessions", "repair", "--rebuild-index")
    assert "→" in hermes("sessions", "optimize")
    hermes("sessions", "rename", "s2", "more birds")
    hermes("sessions", "prune", "--older-than", "1", "--yes")
    hermes("sessions", "export", tmp_path / "all.jsonl")
    assert "40" in hermes("sessions", "import", tmp_path / "all.jsonl")
    hermes("sessions", "backup", tmp_path / "copy.db")
    with SessionDB(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.message_count() == 2400
    shredded = run("sessions", "delete", "--shred", "s5", "--yes", home=home)
    assert shredded.status == 0 and "on other hosts" in shredded.err
    hermes("insights")
    doctor = run("doctor", home=home)
    assert "postgresql://" in doctor.out and "39 sessions, 2,340 messages" in doctor.out and doctor.err == "", doctor
    hermes("chat", "-q", "is there a heron?")
    assert not (home / "state.db").exists()
    hermes("sessions", "migrate", "--to", f"sqlite://{tmp_path}/back.db")
    with SessionDB(tmp_path / "back.db") as back:
        assert back.get_session_title("s2") == "more birds" and back.check() == []


def small_home(folder: Path) -> Path:
    """A home with one session in its file."""
    folder.mkdir()
    with SessionDB(db_path=folder / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "heron")
        db.set_session_title("s", "birds")
    return folder


def test_a_store_that_is_in_use_already_is_not_overwritten(tmp_path: Path, url: str) -> None:
    home = small_home(tmp_path / "home")
    at = {"HERMES_STORE_URL": url}
    assert run("sessions", "migrate", "--to", url, home=home).status == 0
    assert run("sessions", "rename", "s", "fishes", home=home, env=at).status == 0
    done = run("sessions", "migrate", "--to", url, home=home, env=at)
    assert done.status == 1 and "store.url" in done.err
    with SessionDB(url=url, db_path=home / "state.db") as db:
        assert [row["content"] for row in db.get_messages("s")] == ["heron"]
        assert db.get_session_title("s") == "fishes"


def test_a_password_in_the_command_works_and_is_warned_of(tmp_path: Path, new_store: Callable[[], str]) -> None:
    home = small_home(tmp_path / "home")
    plain = new_store()
    for url in (plain.replace("postgres@", "postgres:geh%40eim@", 1), f"{plain}&password=geheim"):
        done = run("sessions", "migrate", "--to", url, home=home)
        assert done.status == 0
        assert done.err.count("\n") == 1 and "others can see a password in --to" in done.err
        assert "geh" not in done.out and "${HERMES_DB_PASSWORD}" in done.out
    done = run("sessions", "migrate", "--to", plain.replace("postgres@", "postgres:${NOT_SET}@", 1), home=home)
    assert done.status != 0 and "NOT_SET" in done.err and "postgres:" not in done.err
    done = run("sessions", "migrate", "--to", plain, home=home)  # one that .pgpass or the server itself knows
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://me:geheim@host/db", "postgresql://me:${HERMES_DB_PASSWORD}@host/db"),
        ("postgresql://me:${MINE}@host/db", None),
        ("postgresql://me@host:5432/db", None),
        ("postgresql://host:5432/db?user=me&password=x&a=b", "postgresql://host:5432/db?user=me&password=${HERMES_DB_PASSWORD}&a=b"),
        ("postgresql://host/db?password=${MINE}", None),
        ("sqlite:////home/me/state.db", None),
        ("postgresql:///db?host=/run/postgresql:5432", None),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_password(given: str, shown: str | None) -> None:
    assert without_password(given) == (shown or given)


def test_a_server_that_is_not_there_is_one_line_without_the_password(home: Path) -> None:
    url = f"postgresql://me:geheim@127.0.0.1:{postgres.free_port()}/nothing"
    for words in (["sessions", "list"], ["sessions", "migrate", "--to", url], ["chat", "-q", "hello"]):
        done = run(*words, home=home, env={"HERMES_STORE_URL": url} if "--to" not in words else None)
        assert done.status != 0 and done.err.count("\n") == 1, done
        assert "can't be reached" in done.err and "geheim" not in done.err + done.out


def test_a_record_that_is_being_written_to_comes_right_in_the_end(tmp_path: Path, url: str) -> None:
    with (
        SessionDB(tmp_path / "state.db") as file,
        SessionDB(tmp_path / "state.db") as other,
        SessionDB(tmp_path / "x" / "state.db", url=url) as server,
    ):
        for number in range(30):
            file.create_session(f"s{number}", "cli")
            for line in range(20):
                file.append_message(f"s{number}", "user", f"heron {number} {line}")
        writer = threading.Thread(target=lambda: [other.append_message("s7", "user", f"late {n}") for n in range(25)])
        begun = threading.Event()

        def told(done: int, total: int) -> None:
            if not begun.is_set():
                begun.set()
                writer.start()

        move(file, server, told)
        writer.join()
        move(file, server)
        assert server.export_all() == file.export_all()
