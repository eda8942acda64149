"""Sessions of Claude Code that were forked: `--fork-session` copies the lines, with their uuids, into a new file.

Files of one folder that begin with the same line tell the same conversation up to where they part. The one that went on first
(or did not go on) has what they share; the other one is a branch of it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from hermes.interop.histories.conversation import as_uuid, text
from hermes.interop.json_reading import Skipped, first_objects, json_lines

_SPOKEN = ("user", "assistant")
_LOOKED_AT = 20  # objects at the beginning of a file, among which the first message is


def copied(path: Path, first: str, name: str) -> dict[str, str]:
    """The lines of a session that another one has, each with the name of that one; `first` is the uuid of its first line."""
    if not _is_named(path) or path.stem != name:
        return {}
    try:
        alike = _beginnings(path.parent, path.parent.stat().st_mtime_ns).get(first, [])
        if path not in alike:  # its first line was written after the folder's last change
            _beginnings.cache_clear()
            alike = _beginnings(path.parent, path.parent.stat().st_mtime_ns).get(first, [])
        return _owners(path, [one for one in alike if one != path]) if len(alike) > 1 else {}
    except OSError:  # the program may remove its files at any time
        return {}


def _owners(path: Path, others: list[Path]) -> dict[str, str]:
    lines = _spoken(path)
    shared = {one: lines.keys() & _spoken(one).keys() for one in others}
    before = [one for one in others if shared[one] and _went_on(one, shared[one]) < _went_on(path, shared[one])]
    if not before:
        return {}
    origin = max(before, key=lambda one: (len(shared[one]), one.stem))
    further = _owners(origin, [one for one in before if one != origin])
    return {uuid: further.get(uuid, origin.stem) for uuid in shared[origin]}


def _went_on(path: Path, shared: set[str]) -> tuple[str, str]:
    """When a session first said something that the other one lacks; names decide between two that say the same."""
    return min((at for uuid, at in _spoken(path).items() if uuid not in shared), default=""), path.stem


def _is_named(path: Path) -> bool:
    return as_uuid(path.stem) == path.stem.lower()


@lru_cache(maxsize=8)
def _beginnings(folder: Path, changed: int) -> dict[str, list[Path]]:
    """The sessions of a folder by their first line. `changed` is the time of its last change."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if _is_named(path):
            spoken = (
                one
                for one in first_objects(path, _LOOKED_AT)
                if one.get("type") in _SPOKEN and not one.get("isSidechain")
            )
            if (first := next(spoken, None)) is not None and text(first.get("uuid")):
                found.setdefault(first["uuid"], []).append(path)
    return found


def _spoken(path: Path) -> dict[str, str]:
    """The lines of a session's file that say something, each with its time."""
    seen = path.stat()
    return _spoken_in(path, seen.st_size, seen.st_mtime_ns)


@lru_cache(maxsize=16)
def _spoken_in(path: Path, size: int, changed: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for _, line, _ in json_lines(path, Skipped(path, [])):
        if line.get("type") in _SPOKEN and not line.get("isSidechain") and text(line.get("uuid")):
            found.setdefault(line["uuid"], str(line.get("timestamp") or ""))
    return found
