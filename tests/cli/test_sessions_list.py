"""`hermes sessions list` and `stats`: the columns, the order, the widths, and that they start fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.cli.output import cells
from hermes_state import SessionDB
from tests.support import golden, seeds
from tests.support.program import PROGRAM, environment, run

NOW = {"HERMES_NOW": str(seeds.NOW)}


@pytest.mark.parametrize("screen", golden.SCREENS, ids=lambda one: one.name)
def test_the_screen_is_the_golden_one(screen: golden.Golden) -> None:
    assert screen.path.exists(), "python -m tests.support.golden --write"
    assert screen.printed() == screen.path.read_text()


def test_every_golden_file_belongs_to_a_screen() -> None:
    names = {screen.path.name for screen in golden.SCREENS}
    prefixes = {name.split("-")[0] for name in names}
    kept = {path.name for path in golden.FOLDER.glob("*.txt") if path.name.split("-")[0] in prefixes}
    assert kept == names


def listed(home: Path, *words: str, **more: Any) -> list[str]:
    done = run("sessions", "list", *words, home=home, env=NOW, **more)
    assert (done.status, done.err) == (0, "")
    return done.out.splitlines()


def test_with_a_title_the_columns_are_title_preview_last_active_id(hermes_home: Path) -> None:
    seeds.people(hermes_home)
    head, rule, *rows = listed(hermes_home)
    assert head.replace("Last Active", "Last_Active").split() == ["Title", "Preview", "Last_Active", "ID"]
    assert set(rule) == {"─"}
    assert len(rows) == 7
    assert [row.split()[-1] for row in rows][:2] == ["20250615_144000_5eed00", "20250615_100000_beef01"]
    assert rows[1].startswith("—")


def test_without_titles_the_columns_are_preview_last_active_src_id(hermes_home: Path) -> None:
    seeds.untitled(hermes_home)
    head, _, *rows = listed(hermes_home)
    assert head.replace("Last Active", "Last_Active").split() == ["Preview", "Last_Active", "Src", "ID"]
    assert [row.split()[-2] for row in rows] == ["homeassista…", "cli", "telegram", "cli"]


@pytest.mark.parametrize(
    ("age", "words"),
    [(30, "just now"), (5 * 60, "5m ago"), (2 * 3600 + 60, "2h ago"), (23.9 * 3600, "23h ago"), (25 * 3600, "yesterday"),
     (47.9 * 3600, "yesterday"), (3.5 * 86400, "3d ago"), (6.9 * 86400, "6d ago"), (8 * 86400, "2025-06-07")],
)  # fmt: skip
def test_ages_are_told_as_people_do(hermes_home: Path, age: float, words: str) -> None:
    seeds.fill(hermes_home, seeds.session("a", age, ("user", "hello")))
    assert words in listed(hermes_home)[2]


def test_the_order_is_by_last_activity_not_by_start(hermes_home: Path) -> None:
    seeds.fill(
        hermes_home,
        seeds.session("young", 3600, ("user", "x")),
        seeds.session("old", 86400 * 9, ("user", "y"), ended=None),
    )
    with SessionDB(hermes_home / "state.db") as db:
        db.append_message("old", "user", "again", timestamp=seeds.NOW - 60)
    assert [row.split()[-1] for row in listed(hermes_home)[2:]] == ["old", "young"]


def test_limit_source_tag_pinned_archived_and_all_choose(hermes_home: Path) -> None:
    seeds.people(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        db.pin_session("20250607_120000_c0ffee")
        db.archive_session("20250615_144000_5eed00")

    def ids(*words: str) -> list[str]:
        return [row.split()[-1] for row in listed(hermes_home, *words)[2:]]

    assert ids("--limit", "1") == ["20250615_100000_beef01"]
    assert ids("--source", "telegram") == ["20250614_110000_e0e0e0"]
    assert ids("--tag", "work") == ["20250612_091500_a1b2c3"]
    assert ids("--pinned") == ["20250607_120000_c0ffee"]
    assert ids("--archived") == ["20250615_144000_5eed00"]
    assert len(ids()) == 6
    assert len(ids("--all", "--limit", "2")) == 7
    nothing = listed(hermes_home, "--source", "nowhere")
    assert len(nothing) == 1 and "--all" in nothing[0]


def test_pins_and_tags_are_shown_where_there_are_any_and_stand_in_the_json(hermes_home: Path) -> None:
    with SessionDB(db_path=hermes_home / "state.db") as db:
        for name in ("plain", "marked"):
            db.create_session(name, "cli")
            db.append_message(name, "user", f"hello from {name}")
    assert "Marks" not in listed(hermes_home, width=160)[0]
    with SessionDB(db_path=hermes_home / "state.db") as db:
        db.pin_session("marked")
        db.tag_session("marked", "work", "disk")
    head, _, *lines = listed(hermes_home, width=160)
    assert "Marks" in head
    assert [line.split()[-3:-1] for line in lines if line.endswith("marked")] == [["#disk", "#work"]]
    assert next(line for line in lines if line.endswith("marked")).count("pinned") == 1
    rows = {row["id"]: row for row in json.loads(run("sessions", "list", "--json", home=hermes_home).out)}
    assert rows["marked"]["tags"] == ["disk", "work"] and rows["marked"]["pinned_at"] and rows["plain"]["tags"] == []


def test_json_is_the_rows_of_the_api(hermes_home: Path) -> None:
    seeds.people(hermes_home)
    rows = json.loads(run("sessions", "list", "--json", home=hermes_home).out)
    with SessionDB(hermes_home / "state.db") as db:
        wanted = db.list_sessions_rich(limit=20, order_by_last_active=True)
        assert rows == [
            {**row, "tags": db.get_tags(row["id"]), "messages": len(db.get_messages(row["id"]))} for row in wanted
        ]
    empty = run("sessions", "list", "--json", "--source", "nowhere", home=hermes_home)
    assert json.loads(empty.out) == []


def test_an_empty_store_says_how_to_start(hermes_home: Path) -> None:
    lines = listed(hermes_home)
    assert len(lines) == 1 and "`hermes`" in lines[0]


@pytest.mark.parametrize("width", [1, 8, 20, 33, 45, 60, 80, 200])
def test_no_width_cuts_an_id_or_leaves_the_lines_uneven(hermes_home: Path, width: int) -> None:
    seeds.people(hermes_home)
    lines = listed(hermes_home, width=width)
    assert lines[2].endswith("20250615_144000_5eed00")
    assert all(cells(line) <= max(width, 22) for line in lines)
    assert len({cells(line) for line in lines[2:]}) == 1, "ids of one length end in one column"


def test_titles_and_previews_can_do_nothing_to_the_terminal(hermes_home: Path) -> None:
    nasty = "a\x1b[31mb\x1b]0;title\x07c\x9b1md\u202ee\u2066f\x07g\rh\ni\u200ej\x00k\x1b"
    seeds.fill(hermes_home, seeds.session("s", 60, ("user", nasty), source="x\x1b[2Jy"))
    for words in (["list"], ["show", "s"], ["stats"], ["search", "abc"]):
        out = run("sessions", *words, home=hermes_home).out
        assert not [c for c in out if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f" or c in "\u202e\u2066\u200e"]


def test_the_list_imports_nothing_heavy(hermes_home: Path) -> None:
    seeds.people(hermes_home)
    script = (
        "import sys; from hermes.cli.main import main; status = main(['sessions', 'list']);"
        "heavy = {'rich', 'httpx', 'openai', 'prompt_toolkit', 'textual', 'mcp', 'yaml', 'genai_prices',"
        " 'asyncio', 'ssl', 'urllib.request', 'hermes.agent', 'hermes.chat'} & set(sys.modules);"
        "assert not heavy, heavy; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(hermes_home), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_stats_says_exactly_what_the_specification_says(hermes_home: Path) -> None:
    seeds.guide(hermes_home)
    lines = run("sessions", "stats", home=hermes_home).out.splitlines()
    assert lines[:4] == ["Total sessions: 5", "Total messages: 15", "  cli: 4 sessions", "  telegram: 1 session"]
    assert lines[4].startswith("Database size: 0.") and lines[4].endswith(" MB") and len(lines) == 5


def test_stats_as_json_has_the_same_numbers(hermes_home: Path) -> None:
    seeds.guide(hermes_home)
    told = json.loads(run("sessions", "stats", "--json", home=hermes_home).out)
    assert {key: told[key] for key in ("sessions", "messages", "sources")} == {
        "sessions": 5, "messages": 15, "sources": {"cli": 4, "telegram": 1},
    }  # fmt: skip
    assert told["database_bytes"] > 10_000 and told["path"] == str(hermes_home / "state.db")


def test_a_single_question_is_marked_from_120_columns_on(hermes_home: Path) -> None:
    hermes_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("20260101_080000_aaaaaa", "cli")
        db.append_message(
            "20260101_080000_aaaaaa", "user", "Why is the old parser so slow on very large files at night?"
        )
        db.set_session_title("20260101_080000_aaaaaa", "The old parser is slow on very large files at night")
        db.end_session("20260101_080000_aaaaaa", "oneshot")
    assert "one-shot" in run("sessions", "list", "--all", home=hermes_home, width=120).out


def test_a_closed_pipe_is_quiet(hermes_home: Path) -> None:
    seeds.fill(hermes_home, *(seeds.session(f"s{n}", n * 60.0, ("user", "word " * 30)) for n in range(2000)))
    command = " ".join([*PROGRAM, "sessions", "list", "--limit", "2000"]) + " | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env=environment(hermes_home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
