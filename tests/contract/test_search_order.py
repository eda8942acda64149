"""Every engine gives the hits of a search in the same order, whether they are indexed or still wait for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.support.sizes import size

WORDS = """docker dockerfile podman getUserById user_id owner_id id_card deploy deployment kubernetes frankfurt berlin database
部署服务器完成 服务器 moved server_log logs naïve über café""".split()
QUERIES = """docker|frankfurt|docker podman|deploy database berlin|docker OR kubernetes|docker NOT podman|podman NOT UserById
"moved to frankfurt"|"id card"|deploy*|"moved to"*|serById|ocker|user_id|er_id|er_i|erver_lo|服务|器完|部署 docker|uber
terminal|docker terminal|frankfurt kubernetes podman nowhere|where was the database moved to|服务器部署完成了吗?""".replace(
    "\n", "|"
)


def fill(db: Any, seed: int) -> dict[int, int]:
    """Store random messages; returns the place of each by its id."""
    dice = random.Random(seed)
    made: list[int] = []
    for number in range(8):
        db.create_session(f"s{number}", "cli", started_at=1e9 + number)
        for _ in range(dice.randrange(5, 40)):
            words = dice.choices(WORDS, k=dice.randrange(1, 8)) * dice.choice([1, 1, 1, 4])  # some hold a word often
            words += ["more"] * dice.choice([0, 3, 30, 300, 3_000]) + ["moved to frankfurt"] * (dice.random() < 0.3)
            dice.shuffle(words)
            if dice.random() < 0.02:
                words += [
                    f"w{dice.randrange(900)}" for _ in range(20_000)
                ]  # more than a row of a PostgreSQL index holds
            role = dice.choice(["user", "assistant", "tool", "system"])
            calls = [{"id": "c1", "function": {"name": "terminal", "arguments": '{"command": "docker ps"}'}}]
            made.append(
                db.append_message(
                    f"s{number}", role, " ".join(words), tool_name="terminal" if role == "tool" else None,
                    tool_calls=calls if role == "assistant" and dice.random() < 0.3 else None,
                    timestamp=1e9 + dice.randrange(1_000),
                )
            )  # fmt: skip
    return {message_id: place for place, message_id in enumerate(made)}


def orders(db: Any, places: dict[int, int]) -> dict[str, list[tuple[int, float, str]]]:
    """The hits of every query in their order."""
    return {
        query: [(places[hit["id"]], hit["score"], hit["reason"]) for hit in db.search_messages(query, limit=None)]
        for query in QUERIES.split("|")
    }


@pytest.mark.parametrize("seed", range(size(1, 4)))
def test_hits_are_in_the_same_order_on_every_engine(db: Any, tmp_path: Path, seed: int) -> None:
    with SessionDB(db_path=tmp_path / "other" / "state.db") as file:
        places = fill(file, seed)
        file.catch_up()
        expected = orders(file, places)
    assert [query for query, hits in expected.items() if not hits] == []
    places = fill(db, seed)
    for _ in range(2):
        found = orders(db, places)
        for query, hits in expected.items():
            assert found[query] == hits, query
        db.catch_up()


@pytest.mark.parametrize("query", ["walrus", "walrus floe", "alru", "where does the walrus sleep now?"])
def test_equal_hits_are_in_the_order_of_their_times_whenever_they_were_stored(db, query):
    for number in range(6):  # an import stores the older ones later
        db.create_session(f"s{number}", "cli")
        db.append_message(f"s{number}", "user", "the walrus sleeps on the ice floe", timestamp=9000.0 - number)
    assert [hit["session_id"] for hit in db.search_messages(query)] == [f"s{number}" for number in range(6)]
