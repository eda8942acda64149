"""Ways to damage a database file, each with a name: where, and what is done there. The same name, the same damage."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from . import size

Harm = Callable[[bytearray, random.Random], None]
PAGE = 2048  # bytes of a page of a new file
EACH = size(1, 3)  # places of each kind


def pages_of(path: Path) -> dict[str, list[int]]:
    """The pages (counted from 0) of each table and index: its inner ones, leaves and overflow pages."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        found: dict[str, list[int]] = {}
        for name, kind, number in connection.execute("SELECT name, pagetype, pageno FROM dbstat"):
            found.setdefault(f"{name} {kind}", []).append(number - 1)
        return found
    finally:
        connection.close()


def flip(data: bytearray, place: int, bit: int) -> None:
    data[place] ^= 1 << bit


def header(place: int) -> Harm:
    return lambda data, dice: flip(data, place, dice.randrange(8))


def in_page(kind: str, what: str) -> Harm:
    """Harm to one page of a kind that dbstat names."""

    def harm(data: bytearray, dice: random.Random) -> None:
        start = dice.choice(data.pages[kind]) * PAGE or 100  # type: ignore[attr-defined]  # after the file's header
        end = start - start % PAGE + PAGE
        if what == "flag":
            flip(data, start, dice.randrange(8))
        elif what == "pointer":
            flip(data, start + 8 + dice.randrange(8), dice.randrange(8))
        elif what == "body":
            for _ in range(3):
                flip(data, dice.randrange(start + PAGE // 2, end), dice.randrange(8))
        else:
            data[start:end] = bytes(end - start) if what == "zeros" else dice.randbytes(end - start)

    return harm


def cut(length: Callable[[int], int]) -> Harm:
    def harm(data: bytearray, _: random.Random) -> None:
        wanted = length(len(data))
        if wanted <= len(data):
            del data[wanted:]
        else:
            data.extend(b"\xa5" * (wanted - len(data)))

    return harm


def swap(data: bytearray, dice: random.Random) -> None:
    """Two pages that were written to each other's place."""
    one, other = (PAGE * number for number in dice.sample(range(2, len(data) // PAGE), 2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


HEADER = {"magic": 0, "page-size": 16, "read-version": 19, "page-count": 30, "encoding": 59, "user-version": 63}
PLACES: dict[str, tuple[str, ...]] = {
    "sqlite_schema leaf": ("flag", "body", "zeros"),
    "messages leaf": ("flag", "pointer", "body", "zeros", "noise"),
    "messages internal": ("flag", "zeros"),
    "messages overflow": ("pointer", "body"),
    "sessions leaf": ("body", "zeros"),
    "sqlite_autoindex_sessions_1 leaf": ("body", "zeros"),
    "messages_fts_data leaf": ("body", "zeros"),
    "messages_fts_docsize leaf": ("zeros",),
    "messages_fts_trigram_data leaf": ("zeros",),
    "words leaf": ("body",),
    "state_meta leaf": ("body", "zeros"),
    "session_refs leaf": ("zeros",),
    "system_prompts leaf": ("body",),
}

HARMS: dict[str, Harm] = {f"header {name}": header(place) for name, place in HEADER.items()}
HARMS |= {
    f"{kind} {what} {number}".replace(" leaf", "").removesuffix(" 0"): in_page(kind, what)
    for kind, whats in PLACES.items()
    for what in whats
    for number in range(EACH)
}
HARMS |= {
    "cut to nothing": cut(lambda _: 0),
    "cut within the header": cut(lambda _: 70),
    "cut to a page": cut(lambda _: PAGE),
    "cut in half": cut(lambda length: length // 2 // PAGE * PAGE),
    "cut by a byte": cut(lambda length: length - 1),
    "longer than it was": cut(lambda length: length + 3 * PAGE),
}
HARMS |= {f"swapped pages {number}": swap for number in range(2 * EACH)}


class _Data(bytearray):
    pages: dict[str, list[int]]


def harm(path: Path, name: str, pages: dict[str, list[int]]) -> bool:
    """Do it; False when the file has no such place."""
    kind = next((f"{one}" for one in PLACES if name.startswith(one.replace(" leaf", "") + " ")), None)
    if kind is not None and kind not in pages:
        return False
    data = _Data(path.read_bytes())
    data.pages = pages
    HARMS[name](data, random.Random(name))
    path.write_bytes(data)
    return True
