"""What every job shares: its one JSON argument, its one JSON answer, percentiles, the corpus."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks import corpus

Config = dict[str, Any]

MESSAGE_FIELDS = (
    "content",
    "tool_name",
    "tool_calls",
    "tool_call_id",
    "token_count",
    "finish_reason",
    "reasoning",
    "timestamp",
)


def main(job: Callable[[Config], dict[str, Any]]) -> None:
    """Run `job` on the JSON in argv[1] and print its answer, with this process's peak memory, as JSON."""
    config = json.loads(sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr):  # what a contestant prints must not mix with the answer
        answer = job(config)
        answer["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(answer))


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank); 0.0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def latencies(seconds: list[float]) -> dict[str, float]:
    """p50, p99 and the longest of a list of durations, in milliseconds."""
    return {
        "p50_ms": percentile(seconds, 0.50) * 1e3,
        "p99_ms": percentile(seconds, 0.99) * 1e3,
        "longest_ms": max(seconds, default=0.0) * 1e3,
    }


def sessions(config: Config) -> Iterator[dict[str, Any]]:
    """The corpus's sessions: from a file ("corpus"), or made on the way ("pool", "lo", "hi")."""
    if config.get("corpus"):
        yield from corpus.read_jsonl(config["corpus"])
    else:
        yield from corpus.iter_sessions(corpus.load_pool(config["pool"]), config["lo"], config["hi"])


def message_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of append_message for one message of the corpus."""
    return {name: message[name] for name in MESSAGE_FIELDS if message.get(name) is not None}


def sample(config: Config) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(session, message) pairs of the sample file, in its order: `count` of them after the first `skip`."""
    pairs = ((session, message) for session in corpus.read_jsonl(config["sample"]) for message in session["messages"])
    return list(itertools.islice(pairs, config["skip"], config["skip"] + config["count"]))


def repeat(call: Callable[[Any], Any], arguments: list[Any], most: int = 100, seconds: float = 2.0) -> list[float]:
    """Durations of `call` over the arguments in turn, after a warm-up, for `most` calls or `seconds`."""
    call(arguments[0])
    taken: list[float] = []
    clock = time.perf_counter
    with quiet_gc():
        end = clock() + seconds
        for argument in itertools.islice(itertools.cycle(arguments), most):
            before = clock()
            call(argument)
            after = clock()
            taken.append(after - before)
            if after > end and len(taken) >= 5:
                break
    return taken


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No cyclic garbage collection of the benchmark's own heap inside the timed part."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
