"""Rows about PostgreSQL beside SQLite, both with the same rows in them and both safe against power loss.

Resuming is loading a long conversation; at ten times the messages everything is asked again, and compared with itself.
"""

from __future__ import annotations

from typing import Any

from benchmarks import contestants
from benchmarks.bench import Bench, say
from benchmarks.rows.searching import CLASSES
from benchmarks.rows.writing import EACH, WRITERS
from benchmarks.server import Server
from benchmarks.table import POSTGRES, Cell, Goal, Pick, Rounds, Row, Section, at_least, at_most, cells

BOTH = ("ours", "postgres")
FAST = 10.0  # milliseconds a search may take
RATES = (0, 50, 200, 400)  # messages a second
SECONDS = 10.0
WORK = "· processor time, ours and the server's"
INDEXED = "· with the index caught up: messages/s"
Stores = dict[str, str]


def postgres(bench: Bench) -> Section:
    """Appends, eight writers, searches, lists and resuming; with --size L reading at ten times the messages as well."""
    bench.contestants.setdefault("ours", contestants.ours())
    contestant = contestants.Contestant("postgres", *_ours_python())
    bench.contestants["postgres"] = contestant
    try:
        with Server(bench.cache, contestant, say) as server:
            section = Section(_reading(bench, server, bench.size, None))
            if bench.ten_times:
                section.rows += _reading(bench, server, "L", section.rows)
            with server.copy(bench.size) as copy:
                stores = {"ours": str(bench.working_copy("ours")), "postgres": copy}
                section.rows += _writing(bench, server, stores)
                section.rows += _searching(bench, stores)
            section.remarks += _per_message(bench, server)
    finally:
        del bench.contestants["postgres"]
    return section


def _ours_python() -> tuple[str, str | None]:
    mine = contestants.ours()
    return mine.python, mine.pythonpath


def _stores(bench: Bench, server: Server, size: str) -> Stores:
    file = bench.store("ours", size)
    return {"ours": str(file), "postgres": server.store(size, file)}


def _reading(bench: Bench, server: Server, size: str, before: list[Row] | None) -> list[Row]:
    stores = _stores(bench, server, size)
    long_session = bench.data.facts(bench.size)["long_session"]  # the sessions of S are in L, too
    asked = {"queries": str(bench.data.queries(size)), "questions": str(bench.data.questions(size))}
    _turns(bench, "search", stores, rounds=1, **asked)  # a server that has just begun has read nothing
    found = _turns(bench, "search", stores, **asked)
    rows: list[Row] = []
    for name, (label, _) in CLASSES.items():
        rows.append(_row(f"search, 20 hits, p50: {label}", "ms", found, _of_class(name, "p50_ms")))
        rows.append(_row(WORK, "ms", found, _of_class(name, "cpu_ms")))
    listed = _turns(bench, "listing", stores)
    loaded = _turns(bench, "conversation", stores, session=long_session)
    for label, rounds in (("list 20 by last activity", listed), ("resume: load a 522-message conversation", loaded)):
        rows.append(_row(label, "ms", rounds, lambda r: r["p50_ms"]))
        rows.append(_row(WORK, "ms", rounds, lambda r: r["cpu_ms"]))
    if before is None:
        return [_with_goal(row, at_most(FAST, f"≤ {FAST:g} ms")) for row in rows]
    return [_ten_times(row, then) for row, then in zip(rows, before, strict=True)]


def _writing(bench: Bench, server: Server, stores: Stores) -> list[Row]:
    sample = str(bench.data.sample())

    def appended(key: str, number: int) -> dict[str, Any]:
        skip = number * bench.append_count
        return {"store": stores[key], "sample": sample, "skip": skip, "count": bench.append_count}

    def written(key: str, number: int) -> dict[str, Any]:
        return {
            "store": stores[key],
            "sample": sample,
            "writers": WRITERS,
            "tag": f"pg{number}",
            "skip": 0,
            "count": WRITERS * EACH,  # few messages would mostly write images of pages they are the first to change
        }

    one = bench.turns("append", appended, who=BOTH, timeout=300, settle=True)
    eight = bench.turns("writers", written, who=BOTH, timeout=600, settle=True)
    wrong = cells(eight, lambda r: r["lost"] + r["doubled"] + r["disordered"] + r["failed"], lambda v: sum(v))
    for result in eight["postgres"]:
        if "wal" in result:
            result["images_kb"] = server.page_images(*result["wal"]) / result["messages"] / 1e3
    fast, many = at_least(1000, "≥ 1,000/s"), at_least(4000, "≥ 4,000/s")
    return [
        _row("append, one process: messages/s", "/s", one, lambda r: r["per_second"], fast),
        _row(INDEXED, "/s", one, lambda r: r["per_second_indexed"]),
        _row(WORK, "ms", one, lambda r: r["cpu_ms"]),
        _row("· p50", "ms", one, lambda r: r["p50_ms"]),
        _row("· p99", "ms", one, lambda r: r["p99_ms"]),
        _row(
            f"{WRITERS} writer processes, {EACH:,} messages each: messages/s",
            "/s",
            eight,
            lambda r: r["per_second"],
            many,
        ),
        _row(INDEXED, "/s", eight, lambda r: r["per_second_indexed"]),
        _row("· p99", "ms", eight, lambda r: r["p99_ms"]),
        _row("· WAL a message, words included", "KB", eight, lambda r: r["wal_kb"], at_most(30, "≤ 30 KB")),
        _row("· of it images of pages, by which checkpoints decide", "KB", eight, lambda r: r.get("images_kb")),
        Row("· failed, lost, doubled or out of order", "", wrong, at_most(0, "0"), POSTGRES),
    ]


def _searching(bench: Bench, stores: Stores) -> list[Row]:
    """Searches while messages come in."""
    sample, queries = str(bench.data.sample()), str(bench.data.queries(bench.size))
    rows: list[Row] = []
    for rate in RATES:

        def asked(key: str, number: int, rate: int = rate) -> dict[str, Any]:
            return {
                "store": stores[key], "sample": sample, "queries": queries, "skip": 0, "count": bench.append_count,
                "rate": rate, "seconds": SECONDS, "tag": f"{rate}_{number}",
            }  # fmt: skip

        found = bench.turns("searching", asked, who=BOTH, timeout=300, settle=True)
        goal = at_most(150, "≤ 150 ms") if rate == 200 else None
        rows += [
            _row(f"search while {rate} messages/s come in: p50", "ms", found, lambda r: r["p50_ms"]),
            _row("· p99", "ms", found, lambda r: r["p99_ms"], goal),
            _row(WORK, "ms", found, lambda r: r["cpu_ms"]),
        ]
    return rows


def _turns(bench: Bench, job: str, stores: Stores, rounds: int | None = None, **config: Any) -> Rounds:
    return bench.turns(job, lambda key, _: {"store": stores[key], **config}, who=BOTH, rounds=rounds, timeout=600)


def _row(label: str, unit: str, rounds: Rounds, pick: Pick, goal: Goal | None = None) -> Row:
    return Row(label, unit, cells(rounds, pick), goal, POSTGRES)


def _with_goal(row: Row, goal: Goal) -> Row:
    return row if row.label == WORK else Row(row.label, row.unit, row.cells, goal, row.columns)


def _of_class(name: str, figure: str) -> Pick:
    return lambda result: result["classes"].get(name, {}).get(figure)


def _ten_times(row: Row, before: Row) -> Row:
    """The same at ten times the messages: within twice the goal, and (said, not judged) what it was at a tenth."""
    if row.label == WORK:
        return row
    then = before.cells.get("postgres", Cell()).value
    text = f"≤ {2 * FAST:g} ms" + ("" if then is None else f" (a tenth: {then:.2f} ms)")
    return Row(f"ten times the messages: {row.label}", row.unit, row.cells, at_most(2 * FAST, text), row.columns)


def _per_message(bench: Bench, server: Server) -> list[str]:
    """What a message costs on disk, by table and index: what docs/scale.md counts with."""
    remarks = []
    for size in (bench.size, "L") if bench.ten_times else (bench.size,):
        sizes = server.sizes(size)
        facts = bench.data.facts(bench.size)
        messages = facts["messages"] * (10 if size == "L" else 1)
        shown = ", ".join(
            f"{name} {bytes_ / messages:,.0f}" for name, bytes_ in sizes.items() if bytes_ / messages >= 1
        )
        remarks.append(f"PostgreSQL, bytes a message at {size}: {shown}; in all {sum(sizes.values()) / messages:,.0f}.")
    return remarks
