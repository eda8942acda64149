"""Rows about finding and loading a session, opening the file, and importing the module."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench
from benchmarks.data import MANY_SESSIONS
from benchmarks.table import Row, Section, ahead, at_least, at_most, both, cells


def listing(bench: Bench) -> Section:
    def config(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key))}

    def config_many(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key, "many"))}

    few, many = bench.turns("listing", config), bench.turns("listing", config_many)
    count = bench.data.facts(bench.size)["sessions"]
    goal = both(ahead(), at_most(1, "≤ 1 ms, flat"))
    return Section(
        [
            Row(f"list 20 by last activity, {count:,} sessions", "ms", cells(few, lambda r: r["p50_ms"]), goal),
            Row(f"· {MANY_SESSIONS:,} sessions", "ms", cells(many, lambda r: r["p50_ms"]), goal),
        ]
    )


def resolving(bench: Bench) -> Section:
    def config(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key)), "corpus": str(bench.data.sessions(bench.size))}

    def config_many(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key, "many")), "corpus": str(bench.data.many())}

    goal = both(ahead(), at_most(0.3, "≤ 0.3 ms"))
    section = Section()
    count = bench.data.facts(bench.size)["sessions"]
    for number, rounds in (
        (count, bench.turns("resolving", config)),
        (MANY_SESSIONS, bench.turns("resolving", config_many)),
    ):
        title, prefix = (cells(rounds, lambda r, what=what: r[what]["p50_ms"]) for what in ("title", "prefix"))
        section.rows.append(Row(f"resolve a title, {number:,} sessions", "ms", title, goal))
        section.rows.append(Row("· an id prefix", "ms", prefix, goal))
        for key, cell in cells(rounds, lambda r: r["wrong"], max).items():
            if cell.value:
                section.remarks.append(f"Resolving: {cell.value:.0f} answers of {key} were wrong.")
    return section


def conversation(bench: Bench) -> Section:
    facts = bench.data.facts(bench.size)

    def config(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key)), "session": facts["long_session"]}

    rounds = bench.turns("conversation", config)
    label = f"load a {facts['long_messages']}-message conversation"
    remarks = [
        f"{label}: {key} returned {result['messages']} messages."
        for key, results in rounds.items()
        for result in results[:1]
        if result.get("messages", facts["long_messages"]) != facts["long_messages"]
    ]
    return Section(
        [Row(label, "ms", cells(rounds, lambda r: r["p50_ms"]), both(ahead(), at_most(5, "≤ 5 ms")))], remarks
    )


def opening(bench: Bench) -> Section:
    def config(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key))}

    rounds = bench.turns("opening", config)
    return Section(
        [
            Row(
                "open an existing file and close it, p50",
                "ms",
                cells(rounds, lambda r: r["p50_ms"]),
                at_most(2, "≤ 2 ms"),
            ),
        ]
    )


def importing(bench: Bench) -> Section:
    bench.turns("importing", lambda _key, _round: {}, rounds=1)  # writes the bytecode and warms the disk cache
    rounds = bench.turns("importing", lambda _key, _round: {}, rounds=7)
    return Section(
        [
            Row(
                "`import hermes_state` in a fresh process (raw: sqlite3)",
                "ms",
                cells(rounds, lambda r: r["ms"]),
                ahead(),
            ),
            Row("· modules it loads", "", cells(rounds, lambda r: r["modules"])),
            *_histories(bench),
        ]
    )


def _histories(bench: Bench) -> list[Row]:
    """Histories of another program, imported by `hermes sessions import`."""
    count = 10_000 if bench.size == "XS" else 100_000

    def config(_key: str, _round: int) -> dict[str, Any]:
        return {"work": str(bench.cache.work / "history"), "messages": count}

    rounds = bench.turns("history", config, rounds=1, timeout=600, who=("ours",))
    return [
        Row(
            f"import a history of {count:,} messages, with the index: messages a second of processor time",
            "",
            cells(rounds, lambda r: r["messages"] / r["processor"]),
            at_least(2000, "≥ 2,000"),
        ),
        Row("· by the clock", "", cells(rounds, lambda r: r["messages"] / r["seconds"])),
        Row("· peak memory", "MB", cells(rounds, lambda r: r["rss_mb"]), at_most(200, "≤ 200 MB")),
    ]
