"""`hermes sessions delete`, `restore`, `trash` and `prune`: what goes, what is refused, and who is asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import seeds
from tests.support.program import in_terminal, run

PARSER = "20250612_091500_a1b2c3"


@pytest.fixture
def home(hermes_home: Path) -> Path:
    seeds.guide(hermes_home)
    return hermes_home


def ids(home: Path) -> set[str]:
    with SessionDB(home / "state.db") as db:
        return {row["id"] for row in db.list_sessions_rich(limit=100)}


def answered(home: Path, answer: str, *words: str) -> tuple[int, str]:
    """Run with a terminal and type an answer when asked."""
    return in_terminal(*words, home=home, answer=lambda seen: f"{answer}\n" if "[y/N]" in seen else None)


# ── delete, restore, trash ──


def test_delete_puts_in_the_trash_and_says_until_when(home: Path) -> None:
    done = run("sessions", "delete", "Parser rewrite", "--yes", home=home)
    assert done.status == 0 and done.err == ""
    until = datetime.fromtimestamp(time.time() + 7 * 86_400, UTC).strftime("%Y-%m-%d")
    assert done.out.startswith(f'"Parser rewrite" ({PARSER}) is in the trash until {until}; `hermes sessions restore')
    assert PARSER not in ids(home)
    assert run("sessions", "search", "slowest", home=home).status == 1
    trash = run("sessions", "trash", home=home).out.splitlines()
    assert (
        trash[0].split() == ["Title", "Preview", "Deleted", "Until", "ID"] and until in trash[2] and PARSER in trash[2]
    )
    assert [row["id"] for row in json.loads(run("sessions", "trash", "--json", home=home).out)] == [PARSER]


def test_the_days_in_the_trash_are_the_configured_ones(home: Path) -> None:
    (home / "config.yaml").write_text("sessions:\n  trash_days: 30\ntimezone: Asia/Tokyo\n")
    out = run("sessions", "delete", PARSER, "-y", home=home).out
    from zoneinfo import ZoneInfo

    assert datetime.fromtimestamp(time.time() + 30 * 86_400, ZoneInfo("Asia/Tokyo")).strftime("%Y-%m-%d") in out


@pytest.mark.parametrize("name", [PARSER, "20250612", "Parser rewrite"])
def test_restore_takes_an_id_a_prefix_or_the_title_it_had(home: Path, name: str) -> None:
    before = ids(home)
    assert run("sessions", "delete", PARSER, "--yes", home=home).status == 0
    back = run("sessions", "restore", name, home=home)
    assert (back.status, back.out) == (0, f'"Parser rewrite" ({PARSER}) is restored\n')
    assert ids(home) == before


def test_restoring_what_is_not_in_the_trash_is_status_1(home: Path) -> None:
    assert "in the trash" in run("sessions", "restore", PARSER, home=home).err
    unknown = run("sessions", "restore", "nobody", home=home)
    assert unknown.status == 1 and "hermes sessions trash" in unknown.err
    run("sessions", "delete", PARSER, "20250614", "--yes", home=home)
    several = run("sessions", "restore", "2025", home=home)
    assert several.status == 2 and PARSER in several.err


def test_without_a_terminal_nothing_goes_without_yes(home: Path) -> None:
    before = ids(home)
    for words in (["delete", PARSER], ["prune", "--older-than", "1"]):
        done = run("sessions", *words, home=home)
        assert done.status == 1 and "--yes" in done.err and done.err.count("\n") == 1
    assert ids(home) == before


def test_on_a_terminal_it_asks_and_no_changes_nothing(home: Path) -> None:
    before = ids(home)
    status, seen = answered(home, "n", "sessions", "delete", PARSER)
    assert status == 1 and "Parser rewrite" in seen and "7 messages" in seen and "nothing was changed" in seen
    assert ids(home) == before
    status, seen = answered(home, "y", "sessions", "delete", PARSER)
    assert status == 0 and "is in the trash" in seen
    assert ids(home) == before - {PARSER}


def test_several_go_at_once_or_none(home: Path) -> None:
    before = ids(home)
    assert run("sessions", "delete", PARSER, "nobody", "--yes", home=home).status == 1
    assert ids(home) == before
    assert run("sessions", "delete", PARSER, "Deploy trouble", "--yes", home=home).status == 0
    assert len(ids(home)) == 3


def test_a_live_session_is_refused_by_delete_and_left_by_prune(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        assert db.hold_session(PARSER, "somebody")
        db.pin_session("20250614_110000_d4e5f6")
        done = run("sessions", "delete", PARSER, "--yes", home=home)
        assert done.status == 1 and "in use" in done.err
        assert run("sessions", "prune", "--older-than", "1", "--yes", home=home).status == 0
    # live, pinned, and not ended
    assert ids(home) == {PARSER, "20250614_110000_d4e5f6", "20250615_125000_0badc0"}


EARLIER, NEWEST = "20250614_080000_0000aa", "20250614_100000_0000bb"


@pytest.mark.parametrize("name", ["Store design", EARLIER, NEWEST])
def test_a_compressed_conversation_goes_whole_and_comes_back_whole(hermes_home: Path, name: str) -> None:
    seeds.lineage(hermes_home)
    called = f'"Store design #2" ({NEWEST}) with its 1 earlier part'
    done = run("sessions", "delete", name, "--yes", home=hermes_home)
    assert done.status == 0 and done.out.startswith(f"{called} is in the trash until ")
    assert done.out.endswith(f"`hermes sessions restore {NEWEST}` brings it back\n")
    assert "No sessions yet" in run("sessions", "list", home=hermes_home).out
    trash = run("sessions", "trash", home=hermes_home).out.splitlines()
    assert len(trash) == 3 and "Store design #2" in trash[2] and NEWEST in trash[2]
    back = run("sessions", "restore", "20250614", home=hermes_home)
    assert (back.status, back.out) == (0, f"{called} is restored\n")
    with SessionDB(hermes_home / "state.db") as db:
        assert db.get_compression_chain(EARLIER) == [EARLIER, NEWEST] and db.check() == []
        assert db.get_session_title(EARLIER) == "Store design"


def test_a_conversation_is_live_if_any_part_of_it_is(hermes_home: Path) -> None:
    seeds.lineage(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        assert db.hold_session(NEWEST, "somebody")
        done = run("sessions", "delete", EARLIER, "--yes", home=hermes_home)
        assert done.status == 1 and "in use" in done.err
        assert ids(hermes_home) == {NEWEST}


def test_delete_now_skips_the_trash(hermes_home: Path) -> None:
    seeds.lineage(hermes_home)
    status, seen = answered(hermes_home, "y", "sessions", "delete", "Store design", "--now")
    assert status == 0 and "5 messages, for good?" in seen and "is deleted for good" in seen
    with SessionDB(hermes_home / "state.db") as db:
        assert db.list_trash() == [] and db.message_count() == 0 and db.session_count() == 0 and db.check() == []
        assert {row["by"] for row in db.audit_log()} == {"hermes sessions delete"}


def test_the_trash_can_be_emptied_for_good(home: Path) -> None:
    assert run("sessions", "trash", home=home).out == "The trash is empty.\n"
    run("sessions", "delete", PARSER, "--yes", home=home)
    assert run("sessions", "trash", "--empty", home=home).status == 1
    done = run("sessions", "trash", "--empty", "--yes", home=home)
    assert done.status == 0 and "1 session for good" in done.out
    assert run("sessions", "restore", PARSER, home=home).status == 1
    assert run("sessions", "check", home=home).status == 0


# ── prune ──


def test_prune_shows_what_would_go_and_a_dry_run_changes_nothing(home: Path) -> None:
    before = ids(home)
    done = run("sessions", "prune", "--dry-run", home=home)
    assert done.status == 0
    assert "PHONY" in done.out and re.search(r"^4 sessions would be removed", done.out, re.MULTILINE)
    assert "20250615_125000_0badc0" not in done.out, "it has not ended"
    assert ids(home) == before


def test_older_than_and_source_choose(home: Path) -> None:
    out = run("sessions", "prune", "--dry-run", "--source", "telegram", home=home).out
    assert "1 session " in out and "water the plants" in out
    age = (time.time() - seeds.NOW) / 86_400
    out = run("sessions", "prune", "--dry-run", "--older-than", str(int(age) + 50), home=home).out
    assert "1 session " in out and "PHONY" in out
    nothing = run("sessions", "prune", "--older-than", "900000", home=home)
    assert nothing.status == 0 and "Nothing to prune" in nothing.out
    for wrong in ("soon", "-1", "nan", "1e30"):
        assert run("sessions", "prune", "--older-than", wrong, home=home).status == 2


def test_prune_puts_in_the_trash_and_now_deletes_for_good(home: Path) -> None:
    done = run("sessions", "prune", "--source", "telegram", "--yes", home=home)
    assert done.status == 0 and "put 1 session in the trash" in done.out
    with SessionDB(home / "state.db") as db:
        assert len(db.list_trash()) == 1
    done = run("sessions", "prune", "--now", "--yes", home=home)
    assert done.status == 0 and "3 sessions for good" in done.out
    assert ids(home) == {"20250615_125000_0badc0"}
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        assert {row["by"] for row in db.audit_log()} == {"hermes sessions prune"}


def test_what_was_reopened_while_the_question_stood_stays(home: Path) -> None:
    def reopen_then_agree(seen: str) -> str | None:
        if "[y/N]" not in seen:
            return None
        with SessionDB(home / "state.db") as db:
            db.reopen_session(PARSER)
        return "y\n"

    status, seen = in_terminal("sessions", "prune", home=home, answer=reopen_then_agree)
    assert status == 0 and "3 sessions in the trash" in seen
    assert PARSER in ids(home)


def test_prune_takes_a_compressed_conversation_whole_or_leaves_it(hermes_home: Path) -> None:
    seeds.lineage(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        db.append_message(NEWEST, "user", "still at it")
    assert "Nothing to prune" in run("sessions", "prune", "--yes", home=hermes_home).out
    done = run("sessions", "prune", "--older-than", "0", "--now", "--yes", home=hermes_home)
    assert NEWEST in done.out and EARLIER not in done.out and "1 session for good" in done.out
    with SessionDB(hermes_home / "state.db") as db:
        assert db.session_count() == 0 and db.message_count() == 0


# ── shred ──


def test_shred_leaves_no_word_in_any_file_of_the_home(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        typed = db.append_message(PARSER, "user", "xqvarnium is what I typed")
        assert typed and db.check() == []
    (home / "history").write_text("\n# 2026-01-01 10:00:00\n+/help\n")
    refused = run("sessions", "delete", "--shred", "Parser rewrite", home=home)
    assert refused.status == 1 and "add --yes" in refused.err and PARSER in ids(home)
    done = run("sessions", "delete", "--shred", "Parser rewrite", "--yes", home=home)
    assert (done.status, done.err) == (0, f"hermes: may still be in {home / 'history'}\n")
    assert re.fullmatch(rf'"Parser rewrite" \({PARSER}\) is shredded: \d+ messages\n', done.out)
    for path in (one for one in home.rglob("*") if one.is_file()):
        data = path.read_bytes()
        assert b"varnium" not in data and b"Parser rewrite" not in data, path
    again = run("sessions", "delete", "--shred", PARSER, "--yes", home=home)
    assert again.status == 1 and PARSER in again.err and "`hermes sessions list`" in again.err


def test_shred_takes_from_the_trash(home: Path) -> None:
    assert run("sessions", "delete", PARSER, "--yes", home=home).status == 0
    done = run("sessions", "delete", "--shred", "Parser rewrite", "--yes", home=home)
    assert done.status == 0 and "is shredded" in done.out
    assert json.loads(run("sessions", "trash", "--json", home=home).out) == []


def test_shred_refuses_what_a_branch_shows(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.branch_session(PARSER, "a-branch")
    done = run("sessions", "delete", "--shred", PARSER, "--yes", home=home)
    assert done.status == 1 and done.out == ""
    assert all(word in done.err for word in (PARSER, "a-branch", "can't be shredded")) and done.err.count("\n") == 1
    assert PARSER in ids(home)
    branch = run("sessions", "delete", "--shred", "a-branch", "--yes", home=home)
    assert f"shared with {PARSER} stay there" in branch.err
    assert run("sessions", "delete", "--shred", PARSER, "--yes", home=home).status == 0


def test_shred_says_what_to_do_about_a_reader_and_ends_when_asked_again(home: Path) -> None:
    code = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); c.execute('BEGIN'); c.execute('SELECT 1 FROM messages').fetchone()"
    words = [sys.executable, "-c", code + "; print(flush=True); sys.stdin.read()", str(home / "state.db")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdout.readline()
        done = run("sessions", "delete", "--shred", PARSER, "--yes", home=home)
        reader.communicate()
    assert done.status == 1 and len(done.err.splitlines()) == 1
    assert f"process {reader.pid}" in done.err and f"`hermes sessions delete --shred {PARSER}`" in done.err
    again = run("sessions", "delete", "--shred", PARSER, home=home)  # it was confirmed the first time
    assert again.status == 0 and again.out.startswith(f"{PARSER} is shredded: ")


def test_a_session_in_the_trash_is_named_as_such(home: Path) -> None:
    assert run("sessions", "delete", "Parser rewrite", "--yes", home=home).status == 0
    for words in (PARSER, "Parser rewrite", PARSER[:-2]):
        again = run("sessions", "delete", words, "--yes", home=home)
        assert again.status == 1 and "in the trash" in again.err and f"restore {PARSER}" in again.err
    for words in (("show", PARSER[:16]), ("rename", "Parser rewrite", "x")):
        assert "in the trash" in run("sessions", *words, home=home).err
    assert run("sessions", "delete", "--now", PARSER, "--yes", home=home).status == 0
    assert PARSER not in run("sessions", "trash", home=home).out
    assert "no session matches" in run("sessions", "delete", PARSER, "--yes", home=home).err
