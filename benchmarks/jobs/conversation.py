"""Load one long conversation in the form in which it is sent to a model again."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, latencies, main, repeat
from benchmarks.jobs.processor import meter
from benchmarks.jobs.stores import open_store


def conversation(config: Config) -> dict[str, Any]:
    store = open_store(config)
    count = len(store.conversation(config["session"]))
    ran = meter(config["store"])
    work = ran()
    taken = repeat(store.conversation, [config["session"]], most=60, seconds=2.0)
    each = (ran() - work) / (len(taken) + 1)
    store.close()
    return {"messages": count, "cpu_ms": each * 1e3, **latencies(taken)}


if __name__ == "__main__":
    main(conversation)
