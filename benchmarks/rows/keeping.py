"""Rows about the whole file: its size, bringing an old one up to date, and taking everything out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bench import KEYS, Bench
from benchmarks.cache import BuildError
from benchmarks.contestants import directory_bytes
from benchmarks.table import Cell, Goal, Row, Section, ahead, at_most, both, cells


def size(bench: Bench) -> Section:
    """Bytes of the database file (with what is left of its WAL) for each byte of text that came in."""
    section = Section()
    for corpus_size in (bench.size, "L") if bench.ten_times else (bench.size,):
        label = "bytes of state.db per byte of text" + (", ten times the messages" if corpus_size == "L" else "")
        text = bench.data.facts(bench.size)["text_bytes"] if corpus_size != "L" else None
        goal = at_most(1.1, "≤ 1.1") if corpus_size == "XS" else at_most(1.0, "≤ 1.0")
        section.rows.append(Row(label, "×", _sizes(bench, corpus_size, text), goal))
    try:
        section.remarks += _split(bench)
    except BuildError as error:
        section.remarks.append(f"No split of the size: {error}")
    return section


def _sizes(bench: Bench, corpus_size: str, text: int | None) -> dict[str, Cell]:
    found = {}
    for key in KEYS:
        if key not in bench.contestants or (
            corpus_size == "L" and key == "rival" and not bench.cache.has_store(bench.contestants[key], "L")
        ):
            continue
        try:
            store = bench.store(key, corpus_size)
            total = sum(path.stat().st_size for path in store.parent.glob("state.db*"))
            load = bench.cache.load_figures(bench.contestants[key], corpus_size)
            found[key] = Cell(total / (text or load["text_bytes"]), f"({total / 1e6:,.0f} MB)")
        except BuildError as error:
            found[key] = Cell(note=f"failed: {error}")
    return found


def _split(bench: Bench) -> list[str]:
    """What our bytes are spent on, table by table and index by index."""
    contestant = bench.contestants.get("ours")
    if contestant is None:
        return []
    store = bench.store("ours")
    answer = contestant.run("size", {"store": str(store)}, home=bench.cache.home, timeout=120)
    if "error" in answer:
        return [f"No split of the size: {answer['error']}"]
    parts = [f"{name} {pages / 1e6:,.1f}" for name, pages in answer["parts"].items() if pages >= 1e5]
    _, transcripts = directory_bytes(store.parent)
    return [
        "Ours by table and index, in MB: " + ", ".join(parts) + f"; free pages {answer['free'] / 1e6:,.1f}."
        f" Transcripts beside it (JSON Lines): {transcripts / 1e6:,.0f} MB."
    ]


def upgrade(bench: Bench) -> Section:
    """Open a version-6 file with the whole corpus in it."""
    facts = bench.data.facts(bench.size)
    old = bench.cache.version6(bench.contestants.get("ours") or bench.contestants["raw"], bench.size, bench.data)
    start = old.stat().st_size
    copies: dict[str, Path] = {}

    def config(key: str, _: int) -> dict[str, Any]:
        copies[key] = bench.cache.copy(old, f"upgrade-{key}")
        return {"store": str(copies[key]), "session": facts["long_session"], "query": facts["phrase"]}

    def beside(key: str) -> Path:
        return copies[key].parent

    rounds = bench.turns("upgrade", config, rounds=1, timeout=900, who=("rival", "ours"), watch=beside, settle=True)
    for copy in copies.values():
        bench.cache.drop(copy)
    usable = Goal("usable within 2 s", lambda ours, _: ours <= 2)
    rows = [
        Row(
            f"upgrade a version-6 file of {start / 1e6:,.0f} MB: until append and list work",
            "s",
            cells(rounds, lambda r: r["usable_seconds"]),
            usable,
        ),
        Row("· SessionDB() alone", "s", cells(rounds, lambda r: r["open_seconds"])),
        Row("· the first search then", "s", cells(rounds, lambda r: r["first_search_seconds"])),
        Row("· until everything is indexed (catch_up)", "s", cells(rounds, lambda r: r["caught_up_seconds"])),
        Row(
            "· peak size of all files, to the file's at start",
            "×",
            cells(rounds, lambda r: r["peak_all_bytes"] / start),
            at_most(1.3, "≤ 1.3×"),
        ),
        Row("· the same without transcripts", "×", cells(rounds, lambda r: r["peak_files_bytes"] / start)),
        Row("· peak memory", "MB", cells(rounds, lambda r: r["peak_rss_mb"])),
    ]
    remarks = [
        f"Upgrade: {key} found `{facts['phrase']}` {result['hits']} times at once,"
        f" {result['hits_after']} times at the end."
        for key, results in rounds.items()
        for result in results
        if "error" not in result
    ]
    return Section(rows, remarks)


def export(bench: Bench) -> Section:
    def config(key: str, _: int) -> dict[str, Any]:
        return {"store": str(bench.store(key)), "out": str(bench.cache.work / "export.jsonl")}

    rounds = bench.turns("export", config, timeout=180)
    return Section(
        [
            Row("export all as JSON Lines", "s", cells(rounds, lambda r: r["seconds"]), ahead()),
            Row(
                "· peak memory",
                "MB",
                cells(rounds, lambda r: r["peak_rss_mb"]),
                both(ahead(), at_most(100, "≤ 100 MB")),
            ),
        ]
    )


def checking(bench: Bench) -> Section:
    """Everything that `check` looks at (rows, index, transcripts), to SQLite's integrity check of the same file."""
    copies: dict[str, Path] = {}

    def config(key: str, _: int) -> dict[str, Any]:
        if key not in copies:
            copies[key] = bench.cache.copy(bench.store(key), f"checking-{key}")
        return {"store": str(copies[key])}

    rounds = bench.turns("checking", config, timeout=600, who=("ours",))
    for copy in copies.values():
        bench.cache.drop(copy)
    rows = [
        Row("check, with transcripts: processor time", "ms", cells(rounds, lambda r: r["check_ms"])),
        Row("· SQLite's integrity check alone", "ms", cells(rounds, lambda r: r["integrity_ms"])),
        Row(
            "· check to integrity check",
            "×",
            cells(rounds, lambda r: r["check_ms"] / r["integrity_ms"]),
            at_most(2.0, "≤ 2×"),
        ),
        Row("· findings", "", cells(rounds, lambda r: r["found"]), at_most(0, "0")),
    ]
    return Section(rows)
