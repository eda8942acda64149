"""Rows about writing: one process, eight processes, and others writing while one prunes."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.bench import Bench
from benchmarks.table import Cell, Rounds, Row, Section, at_least_times, at_most, cells

WRITERS = 8
EACH = 1_100  # messages a writer: the rival's upkeep comes every 1,000 writes of a process, and belongs to its cost
OTHERS = 2
TIMES = {"XS": 3, "S": 12}  # as many messages as the rival appends, by the size of the store


def append_full(bench: Bench) -> Section:
    """Appends that survive power loss (synchronous=FULL), as the rival's do."""
    rounds = _append(bench, "full")
    name = "append, one process, power-loss safe (FULL)"
    rows = [
        Row(f"{name}: messages/s", "/s", cells(rounds, lambda r: r["per_second"]), at_least_times(TIMES[bench.size])),
        Row("· with the index caught up: messages/s", "/s", cells(rounds, lambda r: r["per_second_indexed"])),
        Row("· p50", "ms", p50 := cells(rounds, lambda r: r["p50_ms"]), at_most(0.4, "≤ 0.4 ms")),
        Row("· · to raw SQLite's", "×", _to_raw(p50)),
        Row("· p99", "ms", cells(rounds, lambda r: r["p99_ms"]), at_most(6, "≤ 6 ms")),
        Row("· longest stall", "ms", cells(rounds, lambda r: r["longest_ms"], max), at_most(100, "≤ 0.1 s")),
        Row("· processor time of an append, p50", "ms", cpu := cells(rounds, lambda r: r["cpu_p50_ms"], min)),
        Row("· · to raw SQLite's", "×", _to_raw(cpu)),
        Row("· processor time of all, indexing included, mean", "ms", cells(rounds, lambda r: r["cpu_ms"], min)),
    ]
    return Section(rows, _missing(rounds) + _whole_load(bench))


def _to_raw(figures: dict[str, Cell]) -> dict[str, Cell]:
    """Each contestant's figure as so many times that of raw SQLite."""
    raw = figures.get("raw", Cell()).value
    return {
        key: Cell(None if cell.value is None else cell.value / raw)
        for key, cell in figures.items()
        if raw and key != "raw"
    }


def append_normal(bench: Bench) -> Section:
    """Appends that survive a crash of the process (synchronous=NORMAL); the rival has FULL only."""
    rounds = _append(bench, "normal")
    name = "append, crash safe (NORMAL; the rival has FULL only)"
    rows = [
        Row(f"{name}: messages/s", "/s", cells(rounds, lambda r: r["per_second"])),
        Row("· with the index caught up: messages/s", "/s", cells(rounds, lambda r: r["per_second_indexed"])),
        Row("· p50", "ms", cells(rounds, lambda r: r["p50_ms"])),
        Row("· p99", "ms", cells(rounds, lambda r: r["p99_ms"])),
        Row("· longest stall", "ms", cells(rounds, lambda r: r["longest_ms"], max)),
    ]
    return Section(rows, _missing(rounds))


def _append(bench: Bench, durability: str) -> Rounds:
    """All rounds go on from where the one before stopped, on one copy of the loaded store."""
    first = 0 if durability == "full" else bench.rounds * bench.append_count

    def config(key: str, number: int) -> dict[str, Any]:
        return {
            "store": str(bench.working_copy(key)),
            "sample": str(bench.data.sample()),
            "durability": durability,
            "skip": first + number * bench.append_count,
            "count": bench.append_count,
        }

    return bench.turns("append", config, timeout=300, settle=True)


def _missing(rounds: Rounds) -> list[str]:
    lost = {key: sum(result.get("missing", 0) for result in results) for key, results in rounds.items()}
    return [
        f"append: {count} acknowledged messages of {key} are not in its file" for key, count in lost.items() if count
    ]


def _whole_load(bench: Bench) -> list[str]:
    """The whole corpus appended to an empty file, when the cached store was built: for orientation."""
    remarks = []
    for key in ("rival", "ours"):
        if key in bench.contestants and bench.cache.has_store(bench.contestants[key], bench.size):
            load = bench.cache.load_figures(bench.contestants[key], bench.size)
            how = "FULL" if key == "rival" else "NORMAL, index included"
            remarks.append(
                f"Loading all {load['messages']:,} messages when the cached store of {key} was built"
                f" ({how}): {load['messages'] / load['seconds']:,.0f}/s,"
                f" longest append {load['longest_ms'] / 1e3:.2f} s."
            )
    return remarks


def writers(bench: Bench) -> Section:
    """Eight processes at once."""

    def config(key: str, number: int) -> dict[str, Any]:
        return {
            "store": str(bench.working_copy(key)),
            "sample": str(bench.data.sample()),
            "writers": WRITERS,
            "tag": number,
            "skip": 0,
            "count": WRITERS * EACH if bench.append_count >= EACH else bench.append_count,
        }

    rounds = bench.turns("writers", config, timeout=600, settle=True)
    wrong = cells(rounds, lambda r: r["lost"] + r["doubled"] + r["disordered"] + r["failed"], lambda v: sum(v))
    rows = [
        Row(
            f"{WRITERS} writer processes, {EACH:,} messages each: messages/s",
            "/s",
            cells(rounds, lambda r: r["per_second"]),
            at_least_times(1.8),
        ),
        Row("· p99", "ms", cells(rounds, lambda r: r["p99_ms"]), at_most(60, "≤ 60 ms")),
        Row("· longest append", "ms", cells(rounds, lambda r: r["longest_ms"], max), at_most(150, "≤ 0.15 s")),
        Row("· failed, lost, doubled or out of order", "", wrong, at_most(0, "0")),
    ]
    return Section(rows, _failures("8 writers", rounds))


def pruning(bench: Bench) -> Section:
    """Others write while one process prunes half of the sessions."""
    facts = bench.data.facts(bench.size)
    median_start, loaded = facts["median_start"], facts["sessions"]

    def config(key: str, number: int) -> dict[str, Any]:
        return {
            "store": str(bench.working_copy(key)),
            "sample": str(bench.data.sample()),
            "skip": 0,
            "count": 500,
            "others": OTHERS,
            "older_than_days": (time.time() - median_start) / 86400,
        }

    rounds = bench.turns("pruning", config, rounds=1, timeout=300, who=("rival", "ours"), settle=True)
    failed = cells(rounds, lambda r: r["failed"] + r["lost"], lambda v: sum(v))
    failed = {key: _of(cell, rounds[key]) for key, cell in failed.items()}
    rows = [
        Row(f"{OTHERS} others write while one prunes half: failed", "", failed, at_most(0, "0 failed")),
        Row(
            "· longest write by the others",
            "ms",
            cells(rounds, lambda r: r["longest_ms"], max),
            at_most(200, "≤ 0.2 s"),
        ),
        Row("· p99 of the others", "ms", cells(rounds, lambda r: r["p99_ms"])),
        Row("· the pruning itself", "s", cells(rounds, lambda r: r["prune_seconds"])),
    ]
    remarks = [
        f"Pruning: {key} removed {result['pruned']} of the {loaded:,} loaded sessions."
        for key, results in rounds.items()
        for result in results
        if "error" not in result
    ]
    return Section(rows, remarks + _failures("pruning", rounds))


def _of(cell: Cell, results: list[dict[str, Any]]) -> Cell:
    writes = sum(result.get("writes", 0) for result in results)
    return cell if cell.value is None else Cell(cell.value, f"of {writes:,} {cell.note}".rstrip())


def _failures(where: str, rounds: Rounds) -> list[str]:
    return [
        f"A failed write ({where}, {key}): `{result['failure']}`"
        for key, results in rounds.items()
        for result in results
        if result.get("failure")
    ][:3]
