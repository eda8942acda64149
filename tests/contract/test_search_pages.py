"""Pages of a search: together they are all its hits, each once, in the order of one big page."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.sizes import size

SEEDS = range(size(1, 5))
SESSIONS, MESSAGES = size(20, 40), 30  # in each: more than the newest matches that are ranked together
WORDS = """docker dockerfile podman getUserById user_id owner_id id_card deploy deployment kubernetes frankfurt berlin database
部署服务器完成 服务器 moved server_log logs""".split()


def has(*words: str) -> Callable[[list[str]], bool]:
    return lambda said: all(any(word in one for one in said) for word in words)


QUERIES: dict[str, Callable[[list[str]], bool] | None] = {  # None: a question, whose answers are a matter of rank
    "docker": has("docker"),
    "docker podman": has("docker", "podman"),
    "docker OR kubernetes": lambda said: has("docker")(said) or has("kubernetes")(said),
    "docker NOT podman": lambda said: has("docker")(said) and not has("podman")(said),
    "podman NOT UserById": lambda said: has("podman")(said) and not has("getUserById")(said),
    '"moved to frankfurt"': lambda said: "moved to frankfurt" in " ".join(said),
    "deploy*": has("deploy"),
    "serById": has("serById"),
    "user_id": has("user_id"),
    "er_id": has("er_id"),
    "服务": has("服务"),
    "器完": has("器完"),
    "部署 docker": has("部署", "docker"),
    "::": has("::"),
    "frankfurt kubernetes podman nowhere": None,
    "where was the database moved to": None,
    "服务器部署完成了吗?": None,
}


def fill(db: Any, seed: int) -> dict[int, list[str]]:
    """Store random messages; returns the words of each by its id."""
    dice = random.Random(seed)
    told: dict[int, list[str]] = {}
    for number in range(SESSIONS):
        rows = []
        for _ in range(MESSAGES):
            words = dice.choices(WORDS, k=dice.randrange(2, 12)) + ["more"] * dice.randrange(30)
            words += ["moved to frankfurt"] * (dice.random() < 0.3) + ["std::map"] * (dice.random() < 0.4)
            dice.shuffle(words)
            role = dice.choice(["user", "assistant", "tool"])
            rows.append({"role": role, "content": " ".join(words), "timestamp": 1e9 + dice.randrange(10**6)})
        db.import_session({"id": f"s{number}", "source": "cli", "started_at": 1e9, "messages": rows})
        told.update((row["id"], row["content"].split(" ")) for row in db.get_messages(f"s{number}"))
    return told


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_of_any_size_are_one_big_page_cut_up(db, seed):
    told, dice = fill(db, seed), random.Random(seed)
    for query, matches in QUERIES.items():
        whole = [(hit["id"], hit["score"], hit["reason"]) for hit in db.search_messages(query, limit=None)]
        ids = [one[0] for one in whole]
        assert len(ids) == len(set(ids)), query
        if matches is not None:
            assert set(ids) == {one for one, said in told.items() if matches(said)}, query
        assert len(ids) > 10, query
        pages: list[Any] = []
        while page := db.search_messages(query, limit=dice.choice([1, 3, 7, 20, 100, 450]), offset=len(pages)):
            pages += [(hit["id"], hit["score"], hit["reason"]) for hit in page]
        assert pages == whole, query
        first = db.search_messages(query, limit=dice.randrange(1, 20))
        assert [hit["id"] for hit in first] == ids[: len(first)], query
