"""How many of the messages that contain a string are found when one asks for it: once, not timed.

The truth is a list of (session, place in the session) made by plain substring comparison on the corpus; a hit
counts only if it is on that list, so noise cannot raise the figure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main
from benchmarks.jobs.stores import SessionStore, message_places, open_store

LIMIT = 5000


def recall(config: Config) -> dict[str, Any]:
    truth = json.loads(Path(config["truth"]).read_text(encoding="utf-8"))
    places = {number: (session, place) for number, session, place in message_places(Path(config["store"]))}
    store = open_store(config)
    assert isinstance(store, SessionStore)
    classes: dict[str, Any] = {}
    for name, by_query in truth.items():
        wanted = found = 0
        worst: list[Any] = []
        for query, where in by_query.items():
            true = {(session, place) for session, place in where}
            hits = {places.get(hit["id"]) for hit in store.search(query, limit=LIMIT)} & true
            wanted += len(true)
            found += len(hits)
            if len(hits) < len(true):
                worst.append((query, len(hits), len(true)))
        worst.sort(key=lambda item: item[1] - item[2])
        classes[name] = {"found": found, "wanted": wanted, "worst": worst[:3]}
    store.close()
    return {"classes": classes}


if __name__ == "__main__":
    main(recall)
