"""Rows about search: how long each class of query takes, how much is found, and the same at ten times the
messages.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bench import KEYS, Bench
from benchmarks.table import Cell, Goal, Pick, Rounds, Row, Section, ahead, at_least, at_most, both, cells

_FAST = at_most(10, "≤ 10 ms")
_FASTER = both(ahead(), _FAST)  # where the rival finds as much
CLASSES: dict[str, tuple[str, Goal | None]] = {
    "rare_term": ("rare word", _FASTER),
    "two_common": ("two common words", _FASTER),
    "phrase": ("phrase", _FASTER),
    "prefix": ("prefix", _FASTER),
    "or": ("OR", _FASTER),
    "code_identifier": ("identifier", _FAST),
    "cjk2": ("CJK, two characters", _FAST),
    "cjk3plus": ("CJK, three or more", _FAST),
    "infix_substring": ("substring inside a word", _FAST),
    "question": ("question", None),  # by the size of the store: QUESTION
    "no_hit": ("nothing found", at_most(1, "≤ 1 ms")),
}
QUESTION = {"XS": _FAST, "S": at_most(20, "≤ 20 ms")}
RECALL: dict[str, Goal | None] = {
    "code_identifier": None,
    "cjk2": at_least(100, "100 %"),
    "cjk3plus": at_least(100, "100 %"),
    "infix_substring": at_least(95, "≥ 95 %"),
}


def searching(bench: Bench) -> Section:
    rounds = _timed(bench, bench.size, KEYS)
    recalls = _recall(bench)
    section = Section(remarks=_missed(recalls))
    for name, (label, goal) in CLASSES.items():
        goal = QUESTION[bench.size] if name == "question" else goal
        section.rows.append(Row(f"search, 20 hits, p50: {label}", "ms", cells(rounds, _p50(name)), goal))
        section.rows.append(Row("· slowest of the class", "ms", cells(rounds, _longest(name))))
        if name in RECALL:
            found = {key: _found(results, name) for key, results in recalls.items()}
            section.rows.append(Row("· recall", "%", found, RECALL[name]))
    if bench.ten_times:
        section.rows += _ten_times(bench, rounds)
    return section


def _timed(bench: Bench, size: str, who: tuple[str, ...]) -> Rounds:
    def config(key: str, _: int) -> dict[str, Any]:
        asked = {"queries": str(bench.data.queries(size)), "questions": str(bench.data.questions(size))}
        return {"store": str(bench.store(key, size)), **asked}

    return bench.turns("search", config, who=who, timeout=240)


def _recall(bench: Bench) -> Rounds:
    def config(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key)), "truth": str(bench.data.truth(bench.size))}

    return bench.turns("recall", config, who=("rival", "ours"), rounds=1, timeout=300)


def _p50(name: str) -> Pick:
    return lambda result: result["classes"].get(name, {}).get("p50_ms")


def _longest(name: str) -> Pick:
    return lambda result: result["classes"].get(name, {}).get("longest_ms")


def _found(results: list[dict[str, Any]], name: str) -> Cell:
    for result in results:
        if "error" in result:
            return Cell(note=f"failed: {result['error']}")
        counts = result["classes"][name]
        if counts["wanted"]:
            return Cell(100 * counts["found"] / counts["wanted"], f"({counts['found']:,} of {counts['wanted']:,})")
    return Cell()


def _missed(recalls: Rounds) -> list[str]:
    """What ours missed most, by class: where to look next."""
    remarks = []
    for result in recalls.get("ours", []):
        for name, counts in result.get("classes", {}).items():
            for query, found, wanted in counts["worst"][:1]:
                remarks.append(f"Ours, least complete answer of {name}: `{query}` found {found} of {wanted}.")
    return remarks


def _ten_times(bench: Bench, at_s: Rounds) -> list[Row]:
    """The same queries on L; the goal compares ours with itself. The rival only if its L store is there."""
    rival = bench.contestants.get("rival")
    who = KEYS if rival and bench.cache.has_store(rival, "L") else ("raw", "ours")
    rounds = _timed(bench, "L", who)
    rows = []
    for name, (label, _) in CLASSES.items():
        before = cells(at_s, _p50(name)).get("ours", Cell()).value
        rows.append(Row(f"ten times the messages: {label}", "ms", cells(rounds, _p50(name)), _twice(before)))
    return rows


def _twice(before: float | None) -> Goal:
    text = "≤ 2× of a tenth" if before is None else f"≤ 2× of a tenth ({before:.2f} ms)"
    return Goal(text, lambda ours, _: None if before is None else ours <= 2 * before)
