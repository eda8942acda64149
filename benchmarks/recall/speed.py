"""How long questions and keyword searches take in a store of long dialogues, and what a vector costs.

    python -m benchmarks.recall.speed [--messages 10000 40000 100000] [--postgres | --store FILE_OR_URL] [--indexing]
    python -m benchmarks.recall.speed --tool-output [--messages 4000 61000] [--postgres | --store FILE_OR_URL]

The store is filled the first time and kept where `--store` is given; `--postgres` starts a server for the run. Every search
asks for 20 hits; printed are the median and the 95th percentile of the waiting time and the median of the processor time, on
a server that of its connections beside ours, and the load of the machine: a busy one changes waiting times, processor times
little. `--statements` prints, too, where a question's time goes on a server.
Texts repeat in a store of this size, and each is encoded once: `--indexing` measures the encoding itself, on distinct messages,
with a store that is appended to at the same time: what an append waits with the indexer at work and without it.
`--tool-output` fills the store with agents' sessions of long tool output (benchmarks/corpus.py) in place of dialogues, and asks
by words alone: at rest, and after each burst of 60 appended messages, of which some are not indexed yet.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import percentile, quiet_gc
from benchmarks.jobs.processor import server_meter
from benchmarks.recall.dialogues import dialogues
from benchmarks.recall.labelled_set import BETWEEN, Chat

MESSAGES_OF_A_PAIR = 319
ASKED = 120  # questions of each kind of search
KEYWORDS = {
    "one word": ["pottery", "Reykjavik", "accordion", "chemotherapy", "marshmallows", "penicillin", "physiotherapy", "Paddington"],
    "two words": ["children thrilled", "repair cost", "neighbours tolerant", "teacher patient", "passwords locks", "colours calm"],
    "phrase": ['"the best part of the whole trip"', '"read every label twice"', '"gift from heaven"', '"stole a sock"'],
    "prefix": ["physio*", "volunt*", "camp*", "allerg*", "celebrat*"],
    "OR": ["tomatoes OR strawberries", "guitar OR cello OR clarinet", "Lisbon OR Kyoto"],
    "inside a word": ["iotherap", "arshmallo", "eykjavi", "ccordio"],
    "nothing found": ["xylophonist", "zeppelins", "quokka"],
}  # fmt: skip


FILTERED: dict[str, dict[str, Any]] = {
    "one word, role assistant": {"role_filter": ["assistant"]},
    "one word, role tool": {"role_filter": ["tool"]},
}


class Remembered:
    """An encoder that reads a text only once."""

    def __init__(self, encoder: Any) -> None:
        self._encoder, self._known = encoder, {}  # type: ignore[var-annotated]
        self.name = encoder.name

    def suits(self, text: str) -> bool:
        return bool(self._encoder.suits(text))

    def passages(self, texts: Sequence[str]) -> tuple[Any, list[int]]:
        import numpy as np

        if fresh := list({text for text in texts if text not in self._known}):
            self._known.update(zip(fresh, zip(*self._encoder.passages(fresh), strict=True), strict=True))
        found = [self._known[text] for text in texts]
        return np.array([vector for vector, _ in found]), [size for _, size in found]


def opened(store: str) -> Any:
    from hermes_state import SessionDB

    return SessionDB(**({"url": store} if "://" in store else {"db_path": Path(store)}))


def exported(chats: Sequence[Chat]) -> Iterator[dict[str, Any]]:
    """The sessions as they are imported."""
    for chat in chats:
        messages = [
            {"role": role, "content": text, "timestamp": chat.started + BETWEEN * number}
            for number, (role, text) in enumerate(chat.messages)
        ]
        yield {"id": chat.id, "source": "telegram", "started_at": chat.started, "messages": messages}


def filled(db: Any, messages: int) -> list[str]:
    """Fill an empty store; the questions to ask."""
    chats, questions = dialogues(round(messages / MESSAGES_OF_A_PAIR))
    if not db.message_count():
        db.import_sessions(exported(chats))
        db.catch_up()
    step = max(1, len(questions) // ASKED)
    return [question.text for question in questions[::step]][:ASKED]


def tool_output(store: str, messages: int) -> None:
    """Print how long questions take among long tool output, at rest and right after bursts of appends."""
    from benchmarks import corpus
    from benchmarks.data import QUESTIONS, Data

    data = Data(None, Path(os.environ.get("HERMES_BENCH_CACHE") or ".bench"), print)
    pool = corpus.load_pool(str(data.pool()))
    held: Counter[str] = Counter()
    count = 0

    def sessions() -> Iterator[dict[str, Any]]:
        nonlocal count
        for session in corpus.iter_sessions(pool, 0, corpus.SIZES["L"]):
            if count >= messages:
                return
            count += len(session["messages"])
            for message in session["messages"]:
                held.update(set(re.findall(r"[^\W_]+", (message["content"] or "").lower())))
            yield {**session, "parent_session_id": None, "title": None}

    with opened(store) as db:
        if db.message_count():
            deque(sessions(), maxlen=0)
        else:
            made = [*sessions()]
            before = time.process_time()
            db.import_sessions(made)
            db.catch_up()
            spent = (time.process_time() - before) * 1e3 / count
            print(f"stored and indexed: {spent:.2f} ms of our processor time a message")
        words = sorted(one for one, n in held.items() if one.isascii() and one.isalpha() and 4 <= len(one) <= 12
                       and count * 0.002 < n < count * 0.02)  # fmt: skip
        rng = random.Random("questions")
        questions = [pattern.format(*rng.sample(words, 3)) for _ in range(3) for pattern in QUESTIONS]
        if "://" in store:
            db.vacuum()
        print(f"{db.message_count()} messages, {db.session_count()} sessions; load {os.getloadavg()[0]:.1f}")
        print(f"{'':<28}{'p50 ms':>9}{'p95 ms':>9}{'processor':>11}{'ours':>7}{'server':>9}")
        by_words = partial(db.search_messages, by="words")
        print(f"{'questions':<28}{measured(store, by_words, questions)}", flush=True)
        db.create_session("burst", "cli")
        new = (one for session in corpus.iter_sessions(pool, 9_000, 9_100) for one in session["messages"])

        def burst() -> None:
            for one in islice(new, 60):
                db.append_message("burst", one["role"], one["content"], tool_name=one.get("tool_name"))

        print(f"{'  right after a burst':<28}{measured(store, by_words, questions[:20], burst)}")
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)


def with_vectors(db: Any) -> list[str]:
    """Make the vectors that are missing; the models."""
    try:
        from hermes.store.search import encoders, vectors
        from hermes.store.search.vectors import VectorIndexer
    except ImportError:  # an older version is measured
        return []
    found = encoders.installed()
    if found:
        vectors.prepare(db._engine)
        for encoder in found:
            VectorIndexer(db._engine).make(Remembered(encoder))  # type: ignore[arg-type]
    return [encoder.name for encoder in found]


def measured(store: str, ask: Callable[[str], Any], queries: Sequence[str], first: Callable[[], None] = int) -> str:
    """A row of the table. `first` is called before each query, and not measured."""
    for query in queries[:3]:
        ask(query)
    server, clock, own = server_meter(store), time.perf_counter, time.process_time
    taken, ours, theirs = [], [], []
    with quiet_gc():
        for query in queries:
            first()
            before, work, served = clock(), own(), server()
            ask(query)
            taken.append(clock() - before)
            ours.append(own() - work)
            theirs.append(server() - served)
    both = [one + other for one, other in zip(ours, theirs, strict=True)]
    shown = (percentile(taken, 0.5), percentile(taken, 0.95), *(percentile(one, 0.5) for one in (both, ours, theirs)))
    return "".join(f"{one * 1e3:>9.2f}" for one in shown)


def searches(store: str, messages: int, statements: bool) -> None:
    """Print the table of searches."""
    with opened(store) as db:
        questions = filled(db, messages)
        if "://" in store:
            db.vacuum()  # as a server's own housekeeping has done a minute later
        print(f"{db.message_count()} messages, {db.session_count()} sessions; load {os.getloadavg()[0]:.1f}")
        print(f"{'':<28}{'p50 ms':>9}{'p95 ms':>9}{'processor':>11}{'ours':>7}{'server':>9}")
        for name, queries in KEYWORDS.items():
            print(f"{name:<28}{measured(store, db.search_messages, queries * 6)}")
        for name, filters in FILTERED.items():
            print(f"{name:<28}{measured(store, partial(db.search_messages, **filters), KEYWORDS['one word'] * 6)}")
        by_words = partial(db.search_messages, by="words") if hasattr(db, "index_meaning") else db.search_messages
        print(f"{'questions, words':<28}{measured(store, by_words, questions)}", flush=True)
        models = with_vectors(db)
        if models:
            db.search_messages("Is a model loaded before the first question?")
            print(f"{'questions, words and vectors':<28}{measured(store, db.search_messages, questions)}")
            since = partial(db.search_messages, since=_middle(db))
            print(f"{'  of the second half':<28}{measured(store, since, questions)}")
            for name in ("one word", "two words"):
                print(f"{name + ', with vectors':<28}{measured(store, db.search_messages, KEYWORDS[name] * 6)}")
            print("models: " + ", ".join(models))
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        if statements and "://" in store:
            with counted_statements() as told:
                for question in questions:
                    db.search_messages(question)
            for sql, (calls, seconds, rows) in sorted(told.items(), key=lambda one: -one[1][1]):
                share = len(questions)
                print(f"{calls / share:6.1f} times{seconds / share * 1e3:8.2f} ms{rows / share:9.1f} rows  {sql[:110]}")


def _middle(db: Any) -> float:
    """A time with about half of all messages after it."""
    with db._engine.read() as tx:
        half = int(tx.value("SELECT count(*) FROM messages")) // 2
        return float(tx.value("SELECT timestamp FROM messages ORDER BY timestamp LIMIT 1 OFFSET ?", (half,)))


@contextmanager
def counted_statements() -> Iterator[dict[str, list[float]]]:
    """How often each statement is sent to a server, how long its answer takes, and how many rows that has."""
    from hermes.store.engines.postgres.connection import PostgresTx

    told: dict[str, list[float]] = {}
    asked = PostgresTx.rows

    def counting(self: PostgresTx, statement: str, *rest: Any, **options: Any) -> list[Any]:
        before = time.perf_counter()
        rows = asked(self, statement, *rest, **options)
        one = told.setdefault(statement, [0, 0.0, 0])
        one[0], one[1], one[2] = one[0] + 1, one[1] + time.perf_counter() - before, one[2] + len(rows)
        return rows

    PostgresTx.rows = counting  # type: ignore[method-assign, assignment]
    try:
        yield told
    finally:
        PostgresTx.rows = asked  # type: ignore[method-assign]


@contextmanager
def a_server(folder: Path) -> Iterator[Callable[[int], str]]:
    """A PostgreSQL server in a folder; a call gives the URL of a new database."""
    from benchmarks.server import SETTINGS
    from tests.support.postgres import Cluster

    folder.chmod(0o755)
    cluster = Cluster("18", folder / "postgres", SETTINGS)
    cluster.make()
    cluster.start()

    def database(messages: int) -> str:
        cluster.sql(f"CREATE DATABASE asked_{messages}")
        return cluster.url(f"asked_{messages}")

    try:
        yield database
    finally:
        cluster.stop()


def indexing(folder: Path) -> None:
    """Print what a vector costs, and what an append waits while vectors are made."""
    from hermes.store.search import encoders

    texts = list(dict.fromkeys(text for chat in dialogues(20, speakers=True)[0] for _, text in chat.messages))[:2000]
    with opened(str(folder / "indexing.db")) as db:
        db.import_session(next(exported([Chat("distinct", 0.0, [("user", text) for text in texts])])))
        for encoder in encoders.installed():
            encoder.questions(["Is the model loaded?"])
            before = time.process_time()
            with_only(db, encoder)
            spent = (time.process_time() - before) * 1000 / len(texts)
            print(f"{encoder.name}: {spent:.2f} ms of processor time a message ({len(texts)} messages)", flush=True)
    for busy in (False, True):
        with opened(str(folder / f"appends-{busy}.db")) as db:
            db.import_session(next(exported([Chat("distinct", 0.0, [("user", text) for text in texts])])))
            worker = threading.Thread(target=db.index_meaning)
            if busy:
                worker.start()
                time.sleep(1.0)
            db.create_session("appends", "cli")
            taken = []
            for number in range(100):
                before = time.perf_counter()
                db.append_message("appends", "user", f"message {number}")
                taken.append(time.perf_counter() - before)
                time.sleep(0.005)
            assert not busy or worker.is_alive(), (
                "the machine is too busy: the vectors were made before the appends ended"
            )
            during = "while vectors are made" if busy else "alone"
            print(
                f"append {during}: p50 {percentile(taken, 0.5) * 1e3:.2f} ms, p99 {percentile(taken, 0.99) * 1e3:.2f} ms"
            )
            if busy:
                worker.join()


def with_only(db: Any, encoder: Any) -> None:
    """Make the vectors of one model, as the program does it."""
    from hermes.store.search import vectors
    from hermes.store.search.vectors import VectorIndexer

    vectors.prepare(db._engine)
    VectorIndexer(db._engine).make(encoder)


def main(arguments: list[str] | None = None) -> int:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, nargs="+", default=[100_000], help="one or more sizes (default 100000)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", help="a file or an empty PostgreSQL database, kept; a new file unless given")
    where.add_argument("--postgres", action="store_true", help="on a PostgreSQL server that is started for this run")
    parser.add_argument("--statements", action="store_true", help="where a question's time goes on a server")
    parser.add_argument("--indexing", action="store_true", help="what a vector costs, in place of searches")
    parser.add_argument(
        "--tool-output", action="store_true", help="sessions of long tool output, in place of dialogues"
    )
    options = parser.parse_args(arguments)
    run = tool_output if options.tool_output else partial(searches, statements=options.statements)
    if options.store and len(options.messages) > 1:
        parser.error("--store holds one size")
    with tempfile.TemporaryDirectory() as folder:
        if options.indexing:
            indexing(Path(folder))
        elif options.postgres:
            with a_server(Path(folder)) as database:
                for messages in options.messages:
                    run(database(messages), messages)
        else:
            for messages in options.messages:
                run(options.store or str(Path(folder) / f"{messages}.db"), messages)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
