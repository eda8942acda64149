"""Entries of a session that form a tree: each names the one it follows (`parentId`); going back starts another branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Entry = dict[str, Any]


def relink(entries: dict[str, Entry], may_begin: Callable[[Entry], bool]) -> None:
    """Where the entry that another one follows is damaged or not named, the one before it in the file takes its place.

    One that names none begins another conversation if `may_begin` says so.
    """
    before: str | None = None
    for key, entry in entries.items():
        parent = entry.get("parentId")
        begins = parent is None and may_begin(entry)
        if not begins and not (isinstance(parent, str) and parent in entries):
            entry["parentId"] = before
        before = key


def path(entries: dict[str, Entry]) -> list[str]:
    """From the first entry to the last of the file: what the program would go on with."""
    found: dict[str, None] = {}
    at: Any = next(reversed(entries), None)
    while at in entries and at not in found:
        found[at] = None
        at = entries[at].get("parentId")
    return [*reversed(found)]


def left(entries: dict[str, Entry], on_path: set[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Each branch beside the path: the entry of the path that it follows, and its entries."""
    groups: dict[str, tuple[str | None, list[str]]] = {}
    root_of: dict[str, str] = {}
    for key, entry in entries.items():
        if key in on_path:
            continue
        parent = entry.get("parentId")
        root = root_of[key] = root_of.get(str(parent), key)
        if root == key:
            groups[root] = (parent if parent in on_path else None, [])
        groups[root][1].append(key)
    yield from groups.values()
