"""Rows about an encrypted store beside the same store unencrypted: searching, appending, listing."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import contestants
from benchmarks.bench import Bench
from benchmarks.rows.searching import CLASSES
from benchmarks.table import ENCRYPTED, Cell, Goal, Pick, Rounds, Row, Section, cells

BOTH = ("ours", "encrypted")
TIMES = 1.3


def encryption(bench: Bench) -> Section:
    """Both take turns, twice as many rounds as elsewhere: the goal is a ratio close to 1."""
    mine = contestants.ours()
    bench.contestants.setdefault("ours", mine)
    bench.contestants["encrypted"] = contestants.Contestant("encrypted", mine.python, mine.pythonpath)
    try:
        stores = {key: bench.cache.copy(bench.store("ours"), f"encryption-{key}") for key in BOTH}
        _encrypt(bench, stores["encrypted"])
        return Section(_searching(bench, stores) + _appending(bench, stores))
    finally:
        del bench.contestants["encrypted"]


def _encrypt(bench: Bench, store: Any) -> None:
    from hermes.store import encryption, keys

    encryption.encrypt(store, lambda: keys.by_file(store.parent / "the key"))


def _searching(bench: Bench, stores: dict[str, Any]) -> list[Row]:
    asked = {"queries": str(bench.data.queries(bench.size)), "questions": str(bench.data.questions(bench.size))}
    rounds = _turns(bench, "search", stores, **asked)
    rows = []
    for name, (label, _) in CLASSES.items():
        rows.append(_row(f"search, 20 hits, p50: {label}", "ms", cells(rounds, _of(name, "p50_ms"))))
        rows.append(_row("· processor time", "ms", cells(rounds, _of(name, "cpu_ms"), min)))
    whole = cells(rounds, lambda result: statistics.fmean(one["p50_ms"] for one in result["classes"].values()))
    goal = Goal(f"≤ {TIMES}× of the time without", lambda encrypted, plain: plain and encrypted <= TIMES * plain)
    return [Row("search, 20 hits, p50: mean of all classes", "ms", whole, goal, ENCRYPTED), *rows]


def _appending(bench: Bench, stores: dict[str, Any]) -> list[Row]:
    rounds = _turns(bench, "append", stores, count=bench.append_count, sample=str(bench.data.sample()))
    return [
        _row("append, one process, power-loss safe (FULL): messages/s", "/s", cells(rounds, lambda r: r["per_second"])),
        _row("· p50", "ms", cells(rounds, lambda r: r["p50_ms"])),
        _row("· processor time of an append, p50", "ms", cells(rounds, lambda r: r["cpu_p50_ms"], min)),
    ]


def _turns(bench: Bench, job: str, stores: dict[str, Any], **config: Any) -> Rounds:
    def of(key: str, number: int) -> dict[str, Any]:
        return {"store": str(stores[key]), "skip": number * bench.append_count, **config}

    return bench.turns(job, of, who=BOTH, rounds=2 * bench.rounds, timeout=240)


def _row(label: str, unit: str, figures: dict[str, Cell]) -> Row:
    return Row(label, unit, figures, columns=ENCRYPTED)


def _of(name: str, figure: str) -> Pick:
    return lambda result: result["classes"].get(name, {}).get(figure)
