"""`hermes sessions search`: every filter, the highlighting, and what happens when there is nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import seeds
from tests.support.program import in_terminal, run

NOW = {"HERMES_NOW": str(seeds.NOW)}


def ids(home: Path, *words: str) -> list[str]:
    """The sessions found, in the order shown; none when nothing was."""
    done = run("sessions", "search", *words, "--json", home=home)
    hits = json.loads(done.out)
    assert done.status == (0 if hits else 1)
    return [hit["session_id"] for hit in hits]


@pytest.fixture
def home(hermes_home: Path) -> Path:
    seeds.guide(hermes_home)
    return hermes_home


PARSER, KYOTO, DEPLOY, PLANTS = (
    "20250612_091500_a1b2c3", "20250614_110000_d4e5f6", "20250615_125000_0badc0", "20250608_203000_91f0aa3c",
)  # fmt: skip


def test_hits_stand_under_their_session_with_the_match_marked(home: Path) -> None:
    done = run("sessions", "search", "parser", home=home, env=NOW)
    assert done.status == 0 and done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == f"Parser rewrite · cli · 3d ago · {PARSER}"
    assert any("**parser**" in line and line.strip().startswith("user") for line in lines)
    assert re.fullmatch(r"\d+ hits in 1 session", lines[-1])
    assert "\x1b" not in done.out


def test_words_need_no_quotes(home: Path) -> None:
    assert ids(home, "maples", "begin") == [KYOTO]
    assert ids(home, "maples begin") == [KYOTO]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["the", "--role", "user", "--source", "telegram"], {PLANTS}),
        (["the", "--role", "tool"], set()),
        (["will", "--role", "assistant", "--role", "user", "--user", "4711"], {PLANTS}),
        (["parser", "--session", "Parser rewrite"], {PARSER}),
        (["parser", "--session", KYOTO], set()),
        (["parser", "--model", "gpt-4o"], {PARSER}),
        (["parser", "--model", "other"], set()),
        (["parser", "--tag", "work"], {PARSER}),
        (["maples", "--tag", "work"], set()),
        (["slowest", "--tool", "terminal"], {PARSER}),
        (["slowest", "--tool", "memory"], set()),
        (["deploy", "--title", "trouble"], {DEPLOY}),
        (["deploy", "--title", "parser"], set()),
        (["October", "--since", "2025-06-14", "--until", "2025-06-14"], {KYOTO}),
        (["October", "--since", "2025-06-15"], set()),
        (["October", "--until", "2025-06-13"], set()),
        (["October", "--since", "2025-06", "--until", "2025"], {KYOTO}),
        (["October", "--since", "2025-06-14 11:00", "--until", "2025-06-14 11:01"], {KYOTO}),
        (["October", "--since", "7d"], set()),
        (["October", "--until", "yesterday"], {KYOTO}),
    ],
)
def test_each_filter_narrows(home: Path, words: list[str], found: set[str]) -> None:
    assert set(ids(home, *words)) == found


def test_ages_and_day_names_are_measured_from_now(hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("s", "cli")
        for days in (0.0, 3, 30):
            db.append_message("s", "user", f"walnut {days:g}", timestamp=time.time() - days * 86_400)

    def found(*words: str) -> int:
        return len(ids(hermes_home, "walnut", *words))

    assert found("--since", "1h") == 1
    assert found("--since", "7d") == 2
    assert found("--since", "5w") == 3
    assert found("--until", "2d") == 2
    assert found("--since", "yesterday") == 1
    assert found("--since", "today", "--until", "today") == 1


def test_limit_is_the_most_hits(home: Path) -> None:
    assert len(ids(home, "the", "--limit", "2")) == 2
    shown = run("sessions", "search", "the", "--limit", "2", home=home).out.splitlines()[-1]
    assert shown.endswith("; there may be more: --limit 10")


def test_json_is_what_the_api_finds(home: Path) -> None:
    hits = json.loads(run("sessions", "search", "parser", "--json", home=home).out)
    with SessionDB(home / "state.db") as db:
        assert hits == db.search_messages("parser")


def test_nothing_found_is_status_1_and_one_line(home: Path) -> None:
    done = run("sessions", "search", "xylophone", home=home)
    assert (done.status, done.out) == (1, "")
    assert done.err == "hermes: no messages match 'xylophone'\n"


def test_a_question_without_a_full_match_says_that_these_come_nearest(home: Path) -> None:
    done = run("sessions", "search", "which database listens on port when deploying zebras", home=home)
    assert done.status == 0
    assert "these come closest" in done.err and "Deploy trouble" in done.out


def test_a_question_about_a_person_nobody_knows_says_that_nothing_matches(home: Path) -> None:
    done = run("sessions", "search", "which port did Veronica choose for the deploy", home=home)
    assert done.status == 0
    assert "Nothing closely matches" in done.err and "Deploy trouble" in done.out


def test_arrows_in_the_text_itself_are_not_taken_for_marks(hermes_home: Path) -> None:
    seeds.fill(hermes_home, seeds.session("s", 60, ("user", ">>> import walnut\n<<< done >>>")))
    out = run("sessions", "search", "walnut", home=hermes_home).out
    assert ">>> import **walnut** <<< done >>>" in out


def test_on_a_terminal_the_match_is_coloured_and_no_color_is_honoured(home: Path) -> None:
    status, seen = in_terminal("sessions", "search", "parser", "slow", home=home, env=NOW, width=50)
    assert status == 0
    assert "\x1b[1;33mparser\x1b[0m" in seen and "**" not in seen and ">>>" not in seen
    status, seen = in_terminal("sessions", "search", "parser", "slow", home=home, env={**NOW, "NO_COLOR": "1"})
    assert status == 0 and "\x1b[" not in seen and "**parser**" in seen
