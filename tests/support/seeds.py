"""Small stores with a history that never changes: for golden screens and for the pages of the guide.

Every time is fixed; with HERMES_NOW set to NOW, what the commands print is the same on each day and machine.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from hermes_state import SessionDB

NOW = 1_750_000_000.0  # 2025-06-15 15:06:40 UTC
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

Turn = tuple[str, str] | dict[str, Any]


def session(
    session_id: str, age: float, *turns: Turn, ended: str | None = "user_exit", **columns: Any
) -> dict[str, Any]:
    """An exported session; a turn is (role, text), one minute each.

    It began when its id says (20250612_091500_…); with another id, its last message is so many seconds old.
    """
    started = NOW - age - MINUTE * (len(turns) - 1)
    if session_id[:8].isdigit():
        started = datetime.strptime(session_id[:15] + "+0000", "%Y%m%d_%H%M%S%z").timestamp()
    last = started + MINUTE * (len(turns) - 1)
    messages = []
    for number, turn in enumerate(turns):
        message = {"role": turn[0], "content": turn[1]} if isinstance(turn, tuple) else dict(turn)
        messages.append({"timestamp": started + MINUTE * number, **message})
    end = {"ended_at": last, "end_reason": ended} if ended else {}
    return {"id": session_id, "source": "cli", "started_at": started, **end, **columns, "messages": messages}


def fill(home: Path, *sessions: dict[str, Any]) -> None:
    """A store in this home with these sessions."""
    home.mkdir(parents=True, exist_ok=True)
    with SessionDB(home / "state.db") as db:
        db.import_sessions(sessions)


def call(name: str, arguments: str, text: str = "") -> dict[str, Any]:
    """An assistant's message that calls a tool."""
    made = {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": text, "tool_calls": [made]}


def nobody(home: Path) -> None:
    """No sessions at all."""
    fill(home)


def untitled(home: Path) -> None:
    """Sessions of several sources, none with a title."""
    fill(
        home,
        session("20250610_101500_0a1b2c", 0, ("user", "Summarise yesterday's notes in three points"), ("assistant", "…")),
        session("20250614_090000_9f8e7d6c", 0, ("user", "日本語のテキストも幅を正しく数えてほしい、とても長い行でも"), source="telegram"),
        session("20250615_130000_aabbcc", 0, ("user", "Fix\n\tthe   build 🛠️ please"), source="cli"),
        session("20250615_150000_ddeeff11", 0, ("user", "مرحبا، كيف حالك اليوم؟"), source="homeassistant-voice"),
    )  # fmt: skip


def people(home: Path) -> None:
    """Titles in many scripts, one session without, a compressed one, tool calls."""
    fill(
        home,
        session("20240131_080000_000001", 0, ("user", "The oldest of all"), title="Old plans"),
        session("20250607_120000_c0ffee", 0, ("user", "Plan a week in Kyoto"), title="京都旅行の計画と予算について話し合った長い題名"),
        session("20250612_091500_a1b2c3", 0, *_parser(), title="Parser rewrite", model="gpt-4o", tags=["work"]),
        session("20250613_180000_fa111e", 0, ("user", "كيف أكتب بريدا رسميا؟"), title="رسالة رسمية إلى المدير"),
        session("20250614_110000_e0e0e0", 0, ("user", "Photos of 👨‍👩‍👧‍👦 sorted by 🇯🇵 and 🏳️‍🌈 please"), title="Family 👨‍👩‍👧‍👦 photos 🏳️‍🌈", source="telegram"),
        session("20250615_100000_beef01", 0, ("user", "cafe\u0301 \x1b[31mred\x1b[0m \u202eoverride\u202c and\ttabs"), source="discord"),
        session("20250615_144000_5eed00", 0, ("user", "Good morning"), ("assistant", "Good morning! What shall we do?"), title="Morning", ended=None),
    )  # fmt: skip


def _parser() -> list[Turn]:
    return [
        ("system", "You are a careful engineer.\nAnswer briefly."),
        ("user", "The old parser is slow on large files. What did we measure, and what shall we do about it?"),
        call("terminal", '{"command": "pytest tests/parser -q --durations=3", "timeout": 60}', "I'll look at the slowest tests."),
        {"role": "tool", "tool_name": "terminal", "tool_call_id": "call_terminal", "content": "41 passed in 12.80s\n\nslowest:\n8.1s test_large\n2.2s test_deep\n"},
        ("assistant", "## Findings\n\n- `test_large` takes **8.1 s**\n- backtracking is the cause\n\nDecision: **recursive descent**, no backtracking.\n\n```python\ndef parse(text: str) -> Tree: ...\n```"),
        ("user", "好的，就这么办。Please keep the old one behind a flag."),
        ("assistant", "Done: `--legacy-parser` keeps it."),
    ]  # fmt: skip


def lineage(home: Path) -> None:
    """A conversation that was compressed once."""
    fill(
        home,
        session("20250614_080000_0000aa", 0, ("user", "Let us design the store"), ("assistant", "One SQLite file."),
                title="Store design", ended="compression"),
        session("20250614_100000_0000bb", 0, ("user", "Summary: one SQLite file was chosen."), ("user", "And the index?"),
                ("assistant", "FTS5."), title="Store design #2", parent_session_id="20250614_080000_0000aa", kind="compression"),
    )  # fmt: skip


def guide(home: Path) -> None:
    """The store of docs/guide/sessions.md and search.md: a week of somebody's work."""
    fill(
        home,
        session("20250302_101000_7c1d2e", 0, ("user", "What does a Makefile's .PHONY do?"),
                ("assistant", "It marks targets that are not files.")),
        session("20250608_203000_91f0aa3c", 0, ("user", "Remind me to water the plants on Friday"),
                ("assistant", "I will."), source="telegram", user_id="4711"),
        session("20250612_091500_a1b2c3", 0, *_parser(), title="Parser rewrite", model="gpt-4o", tags=["work"]),
        session("20250614_110000_d4e5f6", 0, ("user", "Plan a week in Kyoto in October"),
                ("assistant", "October is a good choice: mild days, and the maples begin to turn."), title="京都旅行"),
        session("20250615_125000_0badc0", 0, ("user", "The deploy fails: port 5432 already in use"),
                ("assistant", "Another PostgreSQL is listening there. Shall I look which one?"), title="Deploy trouble",
                ended=None),
    )  # fmt: skip
