"""Insights agree with themselves and with the lists: every plot adds up to its tile, in the terminal and in the page."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.support.browser import Browser
from tests.support.page import Page
from tests.support.program import run

NOW = datetime(2026, 3, 31, 22, 30, tzinfo=UTC).timestamp()  # in Berlin it is the first of April, half an hour old
HOUR, DAY = 3600.0, 86_400.0
CALL = [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}]


def fill(home: Path) -> None:
    """Conversations of every kind: compressed twice, with a branch; across midnight; without tokens in the messages;
    imported; archived; in the trash; a cron run, a single question and a sub-agent; one from before the period."""
    (home).mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text("timezone: Europe/Berlin\n")

    def held(name: str, source: str, ago: float, messages: int, **more: Any) -> None:
        db.create_session(name, source, model="m-1", started_at=NOW - ago, **more)
        for number in range(messages):
            at, role = NOW - ago + number * 600, ("user", "assistant")[number % 2]
            db.append_message(name, role, f"{name} {number}", timestamp=at, tool_calls=CALL if number == 1 else None)

    with SessionDB(home / "state.db") as db:
        held("first", "cli", 6 * HOUR, 8)
        ids = [row["id"] for row in db.get_messages("first")]
        db.compress_session("first", "second", summary="so far", head_until=ids[0], tail_from=ids[-2])
        ids = [row["id"] for row in db.get_messages("second")]
        db.compress_session("second", "third", summary="so far, too", head_until=ids[0], tail_from=ids[-1])
        db.branch_session("third", "branch")
        held("midnight", "telegram", 3 * DAY + 30 * 60, 12)
        db.update_token_counts(
            "midnight", input_tokens=1001, output_tokens=77, cache_read_tokens=5, estimated_cost_usd=0.31
        )
        held("archived", "cli", 2 * DAY, 3)
        db.archive_session("archived", True)
        held("gone", "cli", 2 * DAY, 40)
        db.trash_session("gone")
        held("nightly", "cron", 2 * DAY, 30)
        db.update_token_counts("nightly", input_tokens=50, estimated_cost_usd=7.5)
        held("once", "cli", DAY, 2)
        db.end_session("once", "oneshot")
        held("helper", "cli", 5 * HOUR, 4, parent_session_id="third", kind="subagent")
        held("older", "discord", 40 * DAY, 2)
        db.append_message("older", "assistant", "now", timestamp=NOW - HOUR, input_tokens=10, cost_usd=0.1)
        db.import_session(
            {"id": "codex", "source": "codex", "started_at": NOW - 4 * DAY, "model": "m-2", "input_tokens": 500,
             "messages": [{"role": "user", "content": "hi", "timestamp": NOW - 4 * DAY},
                          {"role": "assistant", "content": "ho", "timestamp": NOW - 4 * DAY + 60, "input_tokens": 300}]}
        )  # fmt: skip
        db.import_session(
            {"id": "uncounted", "source": "pi", "started_at": NOW - 4 * DAY, "model": "m-3",
             "messages": [{"role": "assistant", "content": "hm", "timestamp": NOW - 4 * DAY, "output_tokens": 40, "cost_usd": 0.2}]}
        )  # fmt: skip
        db.create_session("empty", "cli", started_at=NOW - DAY)
        db.update_token_counts("empty", output_tokens=9)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("insights") / "home"
    fill(home)
    return home


STILL = {"HERMES_NOW": str(NOW)}


def told(home: Path, *words: object, env: dict[str, str] = STILL) -> Any:
    done = run(*words, "--json", home=home, env=env)
    assert done.status == 0, done.err
    return json.loads(done.out)


def test_the_parts_add_up_to_the_whole(home: Path) -> None:
    found = told(home, "insights", "--days", 30)
    spent = sum(found["tokens"][name] for name in ("input", "output", "cache_read", "cache_write"))
    assert spent == 1001 + 77 + 5 + 50 + 10 + 500 + 40 + 9
    days = found["usage_by_day"]
    assert sum(day["tokens"] for day in days.values()) == spent
    assert math.isclose(math.fsum(day["cost_usd"] or 0 for day in days.values()), found["cost"]["usd"])
    assert sum(day["messages"] for day in days.values()) == found["messages"] == sum(map(sum, found["by_weekday_hour"]))
    for part in ("sessions", "conversations", "automated_runs", "messages", "tool_calls"):
        assert sum(row[part] for row in found["by_source"]) == found[part], part
    assert sum(row["calls"] for row in found["by_tool"]) == found["tool_calls"]
    for part in ("by_model", "by_source"):
        assert sum(sum(row["tokens"].values()) for row in found[part]) == sum(found["tokens"].values())
    # A conversation across midnight in the owner's time zone: its tokens are divided as its replies are.
    with SessionDB(home / "state.db", read_only=True) as db:
        alone = db.insights(30, "telegram", now=NOW, timezone="Europe/Berlin")["usage_by_day"]
    assert [(day["messages"], day["tokens"]) for day in alone.values()] == [(6, 541), (6, 542)]


def test_the_same_conversations_are_counted_as_the_lists_have(home: Path) -> None:
    found = told(home, "insights", "--days", 3650, env={})  # summaries are written by the machine's clock
    assert found["messages"] == told(home, "sessions", "stats")["messages"]
    assert found["sessions"] == told(home, "sessions", "stats")["sessions"]
    listed = told(home, "sessions", "list", "--limit", 100)
    archived = told(home, "sessions", "list", "--archived", "--limit", 100)
    assert found["conversations"] == len(listed) + len(archived)
    assert found["conversations"] + found["automated_runs"] == len(told(home, "sessions", "list", "--all"))
    hidden = re.search(r"(\d+) automated runs hidden", run("sessions", "list", home=home, env=STILL).out)
    assert hidden is not None and found["automated_runs"] == int(hidden[1])
    ids = {row["id"]: row["messages"] for row in [*listed, *archived]}
    assert all(ids[row["id"]] == row["messages"] for row in found["longest"])
    assert found["costliest"][0]["id"] == "nightly"
    assert "conversations, 3 automated runs" in run("insights", home=home, env=STILL).out


def test_a_compressed_conversation_is_one_with_the_cost_of_all_its_parts(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        for name, cost in (("whole", 1.5), ("part", 1.0)):
            db.create_session(name, "cli", started_at=NOW - HOUR)
            ids = [db.append_message(name, "user", f"{n}", timestamp=NOW - HOUR + n) for n in range(4)]
            db.update_token_counts(name, input_tokens=100, estimated_cost_usd=cost)
        db.compress_session("part", "rest", summary="so far", tail_from=ids[2])
        db.update_token_counts("rest", input_tokens=11, estimated_cost_usd=1.0)
        found = db.insights(3650)
    assert [(row["id"], row["cost_usd"]) for row in found["costliest"]] == [("rest", 2.0), ("whole", 1.5)]
    assert found["costliest"][0]["tokens"]["input"] == 111 and found["conversations"] == 2 and found["sessions"] == 3


def test_the_page_shows_what_the_terminal_says(home: Path) -> None:
    with Page(home, env=STILL) as page, Browser() as browser:
        for days in (1, 30, 365):
            assert page.get("/api/insights", days=days) == told(home, "insights", "--days", days)
        found = page.get("/api/insights", days=30)
        browser.open(page.link, 1280)
        browser.open(page.address + "/insights?days=30", 1280)
        browser.wait("document.querySelectorAll('figure').length >= 7")
        tiles = browser.value(
            "Object.fromEntries([...document.querySelectorAll('.number')].map(one => [one.querySelector('span').textContent,"
            " one.querySelector('strong').textContent]))"
        )
        assert tiles["conversations"] == str(found["conversations"])
        assert tiles["automated runs"] == str(found["automated_runs"])
        assert tiles["messages"] == str(found["messages"])

        def column(title: str, number: int) -> list[str]:
            rows: list[str] = browser.value(
                f"[...[...document.querySelectorAll('figure')].find(one => one.querySelector('h2').textContent === {title!r})"
                f".querySelectorAll('tbody tr')].map(row => row.children[{number}].textContent)"
            )
            return rows

        assert sum(int(one) for one in column("Messages", 1)) == found["messages"]
        spent = sum(found["tokens"].values())
        assert sum(int(one.replace(",", "")) for one in column("Tokens", 1)) == spent
        assert sum(int(one) for one in column("Sources, by messages", 1)) == found["conversations"]
        assert [column("Messages", 0)[0], column("Messages", 0)[-1]] == ["2026-03-03", "2026-04-01"]
        assert all(re.search(r"\d:\d\d", one) for one in column("Longest conversations", 1))
        assert "2026-03-03 00:00 to 2026-04-01 00:30, Europe/Berlin" in browser.value(
            "document.querySelector('main').innerText"
        )


def test_days_begin_at_the_owners_midnight(home: Path) -> None:
    with SessionDB(home / "state.db", read_only=True) as db:
        found = db.insights(2, now=NOW, timezone="Europe/Berlin", whole_days=True)
    first = datetime.fromisoformat(found["local"][0])
    assert first.hour == first.minute == 0 and first.timestamp() == found["since"]
    assert datetime.fromtimestamp(NOW, first.tzinfo).date() - first.date() == timedelta(days=1)
