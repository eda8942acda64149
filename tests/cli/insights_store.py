"""A month of conversations, the same each time, for the screens of `hermes insights`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NOW = datetime(2026, 3, 31, 20, 0, tzinfo=UTC).timestamp()
DAY, HOUR = 86_400.0, 3600.0

# source, model, days ago, hour, exchanges, tools, tokens in, out, cost, title
TALKS: list[tuple[str, str | None, int, int, int, list[str], int, int, float | None, str | None]] = [
    (
        "cli",
        "gpt-5-mini",
        0,
        9,
        12,
        ["terminal", "terminal", "session_search"],
        182_000,
        21_400,
        0.41,
        "Parser rewrite",
    ),
    ("cli", "gpt-5-mini", 1, 10, 8, ["terminal"], 96_000, 9_100, 0.19, "Docker on the Raspberry Pi"),
    (
        "cli",
        "claude-sonnet-4-5",
        2,
        11,
        30,
        ["terminal", "web_search", "memory"],
        1_250_000,
        88_000,
        5.07,
        "服务器部署配置",
    ),
    ("telegram", "gpt-5-mini", 2, 22, 3, [], 4_100, 700, 0.0021, None),
    ("telegram", "gpt-5-mini", 5, 7, 5, ["memory"], 9_800, 1_300, 0.0046, "Einkaufsliste 🛒 für Samstag"),
    ("discord", "qwen3:30b-a3b-instruct-2507-q4_K_M", 8, 14, 6, ["web_search"], 22_000, 4_000, None, "שלום עולם"),
    ("cli", "smollm2", 9, 14, 2, [], 800, 240, None, None),
    ("cli", None, 20, 16, 4, ["terminal"], 0, 0, None, "A note without a model"),
]


def fill(db: Any, talks: list[Any] | None = None) -> None:
    for number, (source, model, days, hour, exchanges, tools, tokens_in, tokens_out, cost, title) in enumerate(
        TALKS if talks is None else talks
    ):
        started = (NOW // DAY) * DAY - days * DAY + hour * HOUR
        name = f"202603{31 - days:02}_{hour:02}0000_{number:06x}"
        db.create_session(name, source, model=model, started_at=started)
        for exchange in range(exchanges):
            at = started + exchange * 300
            db.append_message(name, "user", f"Question {exchange} of conversation {number}", timestamp=at)
            calls = [
                {"id": f"c{n}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
                for n, tool in enumerate(tools)
            ]
            db.append_message(name, "assistant", "An answer", tool_calls=calls or None, model=model, timestamp=at + 20)
        db.update_token_counts(
            name, input_tokens=tokens_in, output_tokens=tokens_out, cache_read_tokens=tokens_in // 2,
            reasoning_tokens=tokens_out // 4, estimated_cost_usd=cost, api_call_count=exchanges if tokens_in else 0,
        )  # fmt: skip
        if title is not None:
            db.set_session_title(name, title)


def store_in(home: Path, talks: list[Any] | None = None) -> Path:
    from hermes_state import SessionDB

    with SessionDB(home / "state.db", durability="normal", transcripts="off") as db:
        fill(db, talks)
    return home
