"""`hermes sessions rename`, `tag`, `pin`, `archive` and their opposites: by name and by filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.support import seeds
from tests.support.program import run

PARSER, KYOTO, DEPLOY, PLANTS, PHONY = (
    "20250612_091500_a1b2c3", "20250614_110000_d4e5f6", "20250615_125000_0badc0", "20250608_203000_91f0aa3c",
    "20250302_101000_7c1d2e",
)  # fmt: skip


@pytest.fixture
def home(hermes_home: Path) -> Path:
    seeds.guide(hermes_home)
    return hermes_home


def stored(home: Path, session_id: str) -> dict[str, Any]:
    with SessionDB(home / "state.db") as db:
        return {**(db.get_session(session_id) or {}), "tags": db.get_tags(session_id)}


# ── rename ──


def test_the_words_of_a_title_need_no_quotes(home: Path) -> None:
    done = run("sessions", "rename", "20250302", "What", "PHONY", "means", home=home)
    assert (done.status, done.out) == (0, f'{PHONY} is now called "What PHONY means"\n')
    assert stored(home, PHONY)["title"] == "What PHONY means"
    again = run("sessions", "rename", "What PHONY means", "  Make:\ttargets ", home=home)
    assert again.status == 0 and stored(home, PHONY)["title"] == "Make: targets"


def test_a_clash_is_an_error_that_names_the_holder(home: Path) -> None:
    done = run("sessions", "rename", PHONY, "Parser", "rewrite", home=home)
    assert done.status == 1 and PARSER in done.err and done.err.count("\n") == 1
    assert stored(home, PHONY)["title"] is None


def test_an_empty_title_takes_it_away_and_a_long_one_is_refused(home: Path) -> None:
    assert run("sessions", "rename", PARSER, "", home=home).out == f"{PARSER} has no title now\n"
    assert stored(home, PARSER)["title"] is None
    assert run("sessions", "rename", PARSER, "x" * 101, home=home).status == 1
    assert run("sessions", "rename", PARSER, home=home).status == 2
    assert run("sessions", "rename", "nobody", "x", home=home).status == 1


# ── marks ──


def test_tag_and_untag_one_session(home: Path) -> None:
    done = run("sessions", "tag", "Parser rewrite", "slow", "two words", home=home)
    assert (done.status, done.out) == (0, f'"Parser rewrite" ({PARSER}) is tagged slow, two words\n')
    assert stored(home, PARSER)["tags"] == ["slow", "two words", "work"]
    done = run("sessions", "untag", "20250612", "slow", "work", home=home)
    assert (done.status, done.out) == (0, f'"Parser rewrite" ({PARSER}) is no longer tagged slow, work\n')
    assert stored(home, PARSER)["tags"] == ["two words"]


@pytest.mark.parametrize(
    ("filtered", "chosen"),
    [
        (["--source", "telegram"], {PLANTS}),
        (["--source", "cli"], {PARSER, KYOTO, DEPLOY, PHONY}),
        (["--with-tag", "work"], {PARSER}),
        (["--search", "maples OR parser"], {PARSER, KYOTO}),
        (["--older-than", "1"], {PARSER, KYOTO, DEPLOY, PLANTS, PHONY}),
        (["--source", "cli", "--search", "the"], {PARSER, KYOTO, DEPLOY}),
    ],
)
def test_a_filter_chooses_many(home: Path, filtered: list[str], chosen: set[str]) -> None:
    everything = {PARSER, KYOTO, DEPLOY, PLANTS, PHONY}
    assert run("sessions", "tag", *filtered, "x", home=home).status == 0
    assert {one for one in everything if "x" in stored(home, one)["tags"]} == chosen
    assert run("sessions", "pin", *filtered, home=home).status == 0
    assert {one for one in everything if stored(home, one)["pinned_at"]} == chosen
    assert run("sessions", "archive", *filtered, home=home).status == 0
    assert {one for one in everything if stored(home, one)["archived_at"]} == chosen
    for command in ("unpin", "unarchive"):
        assert run("sessions", command, *filtered, home=home).status == 0
    assert run("sessions", "untag", *filtered, "x", home=home).status == 0
    for one in everything:
        row = stored(home, one)
        assert (row["pinned_at"], row["archived_at"], "x" in row["tags"]) == (None, None, False)


def test_pin_archive_and_back_by_name(home: Path) -> None:
    done = run("sessions", "pin", PARSER, "京都旅行", home=home)
    assert (done.status, done.out) == (0, "2 sessions are pinned\n")
    assert stored(home, KYOTO)["pinned_at"]
    assert run("sessions", "unpin", KYOTO, home=home).out == f'"京都旅行" ({KYOTO}) is no longer pinned\n'
    assert stored(home, KYOTO)["pinned_at"] is None and stored(home, PARSER)["pinned_at"]
    assert run("sessions", "archive", "20250614", home=home).status == 0
    assert KYOTO not in run("sessions", "list", home=home).out
    assert KYOTO in run("sessions", "search", "maples", home=home).out
    assert run("sessions", "unarchive", KYOTO, home=home).status == 0
    assert KYOTO in run("sessions", "list", home=home).out


def test_a_compressed_conversation_is_marked_whole_and_counts_once(hermes_home: Path) -> None:
    seeds.lineage(hermes_home)
    parts = ("20250614_080000_0000aa", "20250614_100000_0000bb")
    done = run("sessions", "tag", "--search", "design the store", "record", home=hermes_home)
    assert (done.status, done.out) == (0, f'"Store design #2" ({parts[1]}) is tagged record\n')
    assert [stored(hermes_home, part)["tags"] for part in parts] == [["record"], ["record"]]
    assert run("sessions", "archive", parts[0], home=hermes_home).status == 0
    assert "Store design" not in run("sessions", "list", home=hermes_home).out
    with SessionDB(hermes_home / "state.db") as db:
        db.append_message(parts[1], "user", "still at it")
    assert run("sessions", "pin", "--older-than", "1", home=hermes_home).status == 1, "its newest part is of today"


def test_a_search_that_only_comes_near_marks_nothing(home: Path) -> None:
    done = run("sessions", "archive", "--search", "which database listens on port when deploying zebras", home=home)
    assert done.status == 1 and "nothing was changed" in done.err
