"""This store, the rival and raw SQLite, measured in turns in one run and printed as one table.

The first run installs the rival, makes the corpus and loads the stores, all kept in .bench/ (which git
ignores); later runs take about a quarter of an hour at size S, a few minutes with --quick.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import contestants, machine
from benchmarks.bench import KEYS, Bench, say
from benchmarks.cache import Cache
from benchmarks.data import Data, missing_packages
from benchmarks.rows import (
    encryption,
    gateway,
    histories,
    keeping,
    postgres,
    programs,
    reading,
    searching,
    web,
    why,
    writing,
)
from benchmarks.table import Row, Section, at_least, failed, render

GROUPS: dict[str, Callable[[Bench], Section]] = {
    "append": writing.append_full,
    "normal": writing.append_normal,
    "writers": writing.writers,
    "prune": writing.pruning,
    "size": keeping.size,
    "search": searching.searching,
    "list": reading.listing,
    "resolve": reading.resolving,
    "conversation": reading.conversation,
    "open": reading.opening,
    "upgrade": keeping.upgrade,
    "export": keeping.export,
    "import": reading.importing,
    "histories": histories.histories,
    "long-session": histories.long_session,
    "why": why.why,
    "web": web.web,
    "check": keeping.checking,
    "encryption": encryption.encryption,
    "program": programs.programs,
    "gateway": gateway.gateway,
    "postgres": postgres.postgres,
    "gateway-message": gateway.one_message,  # the last rows of "gateway", without the rest
}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    cache = Cache(options.cache, say, options.keep_stores)
    try:
        bench = _bench(options, cache)
        report = _report(options, bench)
    finally:
        cache.clean()
    print(report)
    if options.out:
        options.out.write_text(report + "\n", encoding="utf-8")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--size", choices=("XS", "S", "L"), default="S", help="L: S, and search and size at ten times S"
    )
    parser.add_argument("--only", metavar="GROUP,...", help="of: " + ", ".join(GROUPS))
    parser.add_argument("--without", metavar="NAME,...", default="", help="leave out: rival, raw or ours")
    parser.add_argument("--quick", action="store_true", help="size XS, fewer rounds and messages")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (default 3, quick 2)")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the report there too")
    parser.add_argument("--data", type=Path, help="a directory with pool.jsonl.gz, S.jsonl, XS.jsonl, queries.json")
    environment = os.environ.get
    cache = Path(environment("HERMES_BENCH_CACHE") or contestants.ROOT / ".bench")
    parser.add_argument("--cache", type=Path, default=cache, help="where stores are kept (HERMES_BENCH_CACHE; .bench)")
    rival = environment("HERMES_BENCH_RIVAL")
    parser.add_argument("--rival-python", default=rival, help="an interpreter with the rival (HERMES_BENCH_RIVAL)")
    parser.add_argument("--keep-stores", action="store_true", help="use our loaded store though the code has changed")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else [name for name in GROUPS if name != "gateway-message"]
    if unknown := [name for name in options.only if name not in GROUPS]:
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    options.cache = options.cache.resolve()
    return options


def _bench(options: argparse.Namespace, cache: Cache) -> Bench:
    without = options.without.split(",") if _stores_matter(options) else list(KEYS)
    taking_part = {"raw": contestants.raw(), "ours": contestants.ours()}
    if "rival" not in without:
        taking_part["rival"] = contestants.Contestant("rival", cache.rival_python(options.rival_python))
    quick = options.quick or options.size == "XS"
    return Bench(
        contestants={key: taking_part[key] for key in KEYS if key in taking_part and key not in without},
        cache=cache,
        data=Data(options.data.resolve() if options.data else None, options.cache, say),
        size="XS" if quick else "S",
        ten_times=options.size == "L" and not quick,
        rounds=options.rounds or (2 if quick else 3),
        append_count=800 if quick else 2000,
    )


def _report(options: argparse.Namespace, bench: Bench) -> str:
    rows: list[Row] = []
    remarks: list[str] = []
    for name in options.only:
        section = _measure(name, bench)
        rows += section.rows
        remarks += section.remarks
    if bench.slow_turns:
        remarks.append("The disk was slow (throttled?) at the end of these turns: " + ", ".join(bench.slow_turns) + ".")
    judged = [row.met() for row in rows]
    lines = [
        f"    {_command()}",
        "",
        machine.line(contestants.ours(), bench.contestants.get("rival"), bench.cache.disk),
        "",
        *([_corpus_line(bench), ""] if _stores_matter(options) else []),
        render(rows),
        "",
        f"Goals met: {judged.count('yes')} of {sum(met != '–' for met in judged)}.",
    ]
    if missing := missing_packages():
        remarks.append(
            "Not the reference corpus, these documentation packages are missing: " + ", ".join(missing) + "."
        )
    return "\n".join([*lines, *(["", *(f"- {remark}" for remark in remarks)] if remarks else [])])


def _stores_matter(options: argparse.Namespace) -> bool:
    """Whether anything is measured on loaded stores; these groups make one of their own, and are measured alone."""
    return not set(options.only) <= {"gateway", "gateway-message", "histories", "long-session", "web"}


def _corpus_line(bench: Bench) -> str:
    facts = bench.data.facts(bench.size)
    return (
        f"Corpus {bench.size}: {facts['sessions']:,} sessions, {facts['messages']:,} messages,"
        f" {facts['text_bytes'] / 1e6:,.0f} MB of text."
        f" {bench.rounds} rounds, the contestants in turns; medians of the rounds,"
        ' the worst round for "longest".'
        f" Appends: {bench.append_count:,} messages a round onto the loaded store."
    )


def _measure(name: str, bench: Bench) -> Section:
    """One group; what goes wrong outside of a job still becomes a row that says so."""
    try:
        return GROUPS[name](bench)
    except Exception as error:  # one broken group must not cost the others, nor be hidden
        traceback.print_exc()
        return Section([failed(name, f"{type(error).__name__}: {error}", KEYS, at_least(1, "to be measured"))])


def _command() -> str:
    """The command as it can be typed again, without paths of this machine."""
    kept, skip = [], False
    for argument in sys.argv[1:]:
        if skip or argument in ("--data", "--cache", "--rival-python", "--out"):
            skip = not skip
            continue
        if not argument.startswith(("--data=", "--cache=", "--rival-python=", "--out=")):
            kept.append(argument)
    return shlex.join(["python", "-m", "benchmarks.run", *kept])


if __name__ == "__main__":
    sys.exit(main())
