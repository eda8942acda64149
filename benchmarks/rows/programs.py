"""Rows about whole commands of the terminal, each a fresh process."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench
from benchmarks.data import MANY_SESSIONS
from benchmarks.table import Cell, Goal, Row, Section, cells


def programs(bench: Bench) -> Section:
    def version(_key: str, _round: int) -> dict[str, Any]:
        return {"words": ["--version"]}

    def listing(key: str, _round: int) -> dict[str, Any]:
        return {"words": ["sessions", "list"], "store": str(bench.store(key, "many")) if key != "raw" else None}

    versions = bench.turns("program", version, rounds=3)
    lists = bench.turns("program", listing, rounds=3)
    bare = cells(versions, lambda r: r["wall_ms"]).get("raw", Cell()).value
    third = Goal("≤ a third of the rival's", lambda ours, rival: None if rival is None else ours <= rival / 3)
    thrice = Goal("< 3× bare Python", lambda ours, _rival: None if bare is None else ours < 3 * bare)
    return Section(
        [
            Row("`hermes --version` (raw: bare Python), wall", "ms", cells(versions, lambda r: r["wall_ms"]), thrice),
            Row(
                f"`hermes sessions list`, {MANY_SESSIONS:,} sessions, wall",
                "ms",
                cells(lists, lambda r: r["wall_ms"]),
                third,
            ),
            Row("· CPU", "ms", cells(lists, lambda r: r["cpu_ms"]), third),
            Row("· peak memory", "MB", cells(lists, lambda r: r["peak_mb"])),
        ]
    )
