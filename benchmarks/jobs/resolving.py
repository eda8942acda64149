"""From a title, and from the beginning of an id, to the session."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, latencies, main, repeat, sessions
from benchmarks.jobs.stores import open_store

PREFIX_LENGTH = 20  # of 24 characters: date, time and the first digits of the random part
ASKED = 40


def resolving(config: Config) -> dict[str, Any]:
    titled = [(session["title"], session["id"]) for session in sessions(config) if session["title"]]
    chosen = [pair for pair in titled if " #" not in pair[0]][:: max(1, len(titled) // ASKED)]
    titles, ids = [title for title, _ in chosen], [session_id for _, session_id in chosen]
    store = open_store(config)
    by_title = repeat(store.by_title, titles, most=200, seconds=2.0)
    by_prefix = repeat(store.by_prefix, [session_id[:PREFIX_LENGTH] for session_id in ids], most=200, seconds=2.0)
    continued = {title.rpartition(" #")[0] for title, _ in titled}
    wrong = sum(store.by_title(title) != session_id for title, session_id in chosen if title not in continued)
    wrong += sum(store.by_prefix(session_id[:PREFIX_LENGTH]) != session_id for session_id in ids)
    store.close()
    return {"title": latencies(by_title), "prefix": latencies(by_prefix), "wrong": wrong}


if __name__ == "__main__":
    main(resolving)
