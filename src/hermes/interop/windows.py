"""Read a JSON-lines history in windows: a long one in bounded memory, a growing one from where the last reading ended.

A window begins at a record before which all messages are complete, so that the format's own `read` makes the same messages of
it as of the whole file, and it begins one message before the end of the last window, which shows that they fit together. A
format takes part with a class `Trail`, which sees every record once. What a trail can't place (a rewind to a message before the
window) and what does not fit together ends in reading the whole file, as formats without a trail always do.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from hermes.interop.formats import Found, Problem
from hermes.interop.histories import CARRIED
from hermes.interop.json_reading import Reading, Record, Window, is_spread, json_lines, open_text
from hermes.store.exchange.ingest import PARTIAL, OutOfPlace

WINDOW = 8 << 20  # bytes
_BLOCK = 4096
# How a trail classes a record: plain, a window may begin with it, a compaction, every window needs the last one like it,
# or it changes what came before the window.
ON, BEGINS, CUTS, KEPT, BREAKS = "on", "begins", "cuts", "kept", "breaks"


class Trail:
    """Follows the records of a file, from its beginning or from a place where a window begins."""

    has_header = False  # every window needs the first line of the file

    def __init__(self, before: str | None = None, *, at_start: bool = True) -> None:
        self.before = self._first = before  # the record that the last one, and the first one, follows
        self._known: set[Any] | None = None if at_start else {before}

    def take(self, record: Record) -> str:
        """The meaning of a record for windows: one of the words above."""
        raise NotImplementedError

    def knows(self, name: Any) -> bool:
        """Whether a record is in the window; None names no record."""
        return name is None or self._known is None or name in self._known

    def follows(self, name: Any, parent: Any) -> bool:
        """Note a record, and say whether the one that it follows is known."""
        known = self.knows(parent)
        if self._known is not None:
            self._known.discard(self._first)  # another one that follows it would be a rewind
            self._known.add(name)
        self.before = parent if isinstance(parent, str) else None
        return known


class Place(msgspec.Struct, frozen=True):
    """A place in a file at which a window can begin."""

    offset: int = 0
    line: int = 0  # how many lines come before it
    before: str | None = None
    kept: tuple[tuple[int, int], ...] = ()  # offset and line of earlier records that the window needs


class Mark(msgspec.Struct, frozen=True):
    """A place up to which a file was read, with what is needed to continue from there."""

    place: Place
    part: int  # which part of the session has the place: compactions cut a session into parts
    end: int
    digest: str  # of the last bytes before the end
    base: str  # the id of the first part
    joint: tuple[str, str]  # the last message: its part's id, and its own
    title: str


_START = Mark(Place(), 1, 0, "", "", ("", ""), "")


def mark_in(text: str, path: Path) -> Mark | None:
    """The mark that `Windows.mark_text` wrote; None where the file no longer begins with what was read of it."""
    try:
        mark = msgspec.json.decode(text, type=Mark)
        return mark if path.stat().st_size >= mark.end and _digest(path, mark.end) == mark.digest else None
    except (OSError, ValueError):
        return None


class Windows:
    """The sessions of a file, read window by window."""

    def __init__(
        self, module: ModuleType, path: Path, folder: Path | None, problems: list[Problem], mark: Mark | None = None
    ) -> None:
        """With a mark, only what comes after it is read, as long as it fits."""
        self._module, self._path, self._folder, self._problems = module, path, folder, problems
        self._trail: type[Trail] | None = getattr(module, "Trail", None) if path.suffix != ".zst" else None
        self._mark = mark
        start = mark or _START
        self._base, self._joint, self._title = start.base, start.joint, start.title
        self._first = self._part = start.part  # the parts of the window's first and last session
        self._end: tuple[Place, int, int] | None = None  # where to go on, in which part, and how far windows were read
        self._misplaced = False

    def misplaced(self, error: Exception) -> bool:
        """Whether the record refused a session because it does not fit: then the whole file is read."""
        self._misplaced = self._misplaced or isinstance(error, OutOfPlace)
        return isinstance(error, OutOfPlace)

    def sessions(self) -> Iterator[Found]:
        """The sessions, or the parts of them that a window has."""
        if self._trail is None or (self._mark is None and not self._is_long()):
            yield from self._whole()
            return
        place, is_over = (self._mark or _START).place, False
        while not is_over:
            try:
                place, end, is_over = self._scanned(self._trail, begin := place)
                yield from self._window(begin, end)
            except OutOfPlace:
                self._misplaced = True
            if is_over and not self._misplaced:
                yield from self._titles()
            if self._misplaced:
                yield from self._whole()
                return
            if place != begin:
                self._first = self._part
        self._end = place, self._first, end

    def _is_long(self) -> bool:
        if self._path.stat().st_size <= WINDOW:
            return False
        with open_text(self._path) as stream:
            return not is_spread(stream)

    def _whole(self) -> Iterator[Found]:
        self._base, self._joint, self._part = "", ("", ""), 1
        for found in self._module.read(self._path, self._folder, self._problems):
            if self._trail is not None:
                self._note(found.session)
            yield found

    def _window(self, begin: Place, end: int) -> Iterator[Found]:
        joint, window = self._joint, Window(self._path)
        is_joined = not joint[0]
        window.kept, window.start, window.line, window.end = begin.kept, begin.offset, begin.line, end
        problems: list[Problem] = []
        for found in self._module.read(window, self._folder, problems):
            session, number = found.session, self._number(found.session["id"])
            if number is not None:
                is_shared = number == 1 and (session.get("kind") == "branch" or CARRIED in session)
                session = self._renamed(session)
                names = [one.get("platform_message_id") for one in session["messages"]]
                is_joined = is_joined or (session["id"] == joint[0] and joint[1] in names)
                if is_shared:
                    raise OutOfPlace(session["id"])
                session = {**session, PARTIAL: number == 1 and bool(joint[0])}
            elif begin.offset:
                raise OutOfPlace(session["id"])
            self._note(session)
            yield found._replace(session=session)
            if self._misplaced:
                return
        if not is_joined or not self._joint[0]:
            raise OutOfPlace(str(self._path))
        self._problems += [one for one in problems if one.unknown is not None or one not in self._problems]

    def _titles(self) -> Iterator[Found]:
        """The parts of the session once more, with nothing but the title that all of them have."""
        mark = self._mark
        if self._title and (mark is None or (mark.title, mark.joint[0]) != (self._title, self._joint[0])):
            for part in range(1, self._part + 1):
                yield Found(0, {"id": self._part_id(part), "title": self._title, "messages": [], PARTIAL: True})

    def _part_id(self, part: int) -> str:
        return self._base if part == 1 else f"{self._base}.{part}"

    def _number(self, session_id: str) -> int | None:
        """The number of the part, of the window's first session, that has this id; None for another session."""
        self._base = self._base or session_id
        rest = session_id.removeprefix(self._base)
        if session_id == self._base:
            return 1
        return int(rest[1:]) if rest != session_id and rest[:1] == "." and rest[1:].isdecimal() else None

    def _renamed(self, session: Mapping[str, Any]) -> dict[str, Any]:
        """A session of a window with the ids that its parts have in the whole file."""

        def name(session_id: str) -> str:
            number = self._number(session_id)
            return session_id if number is None else self._part_id(self._first + number - 1)

        meta = {**session["meta"], "imported": {**session["meta"]["imported"]}}
        meta["imported"].pop("title", None)
        renamed = {**session, "id": name(session["id"]), "meta": meta}
        self._title = renamed.pop("title", self._title)
        if "parent_session_id" in session:
            renamed["parent_session_id"] = name(session["parent_session_id"])
        if CARRIED in session:
            renamed[CARRIED] = [{**group, "owner": name(group["owner"])} for group in session[CARRIED]]
        return renamed

    def _note(self, session: Mapping[str, Any]) -> None:
        number = self._number(session["id"])
        last = session["messages"][-1].get("platform_message_id") if session["messages"] else None
        if number is not None and last:
            self._part, self._joint = number, (session["id"], last)
            self._title = session.get("title") or self._title

    def mark_text(self) -> str:
        """The mark of this reading as text for `mark_in`; empty where reading can't continue from there."""
        if self._trail is None or not self._joint[1]:
            return ""
        if self._end is None:
            place, end, _ = self._scanned(self._trail, Place(), is_read=True)
            self._end = place, self._part if place.offset else 1, end
        place, part, end = self._end
        if place.offset < 0:
            return ""
        mark = Mark(place, part, end, _digest(self._path, end), self._base, self._joint, self._title)
        return msgspec.json.encode(mark).decode()

    def _scanned(self, kind: type[Trail], begin: Place, *, is_read: bool = False) -> tuple[Place, int, bool]:
        """The place where the next window begins, the end of this one, and whether that is the end of the file.

        Of a file that is read already, only the end matters: it is looked at as a whole, and what breaks a window is passed.
        """
        trail = kind(begin.before, at_start=not begin.offset)
        places: deque[Place] = deque(maxlen=2)
        kept = dict(enumerate(begin.kept or (((0, 0),) if kind.has_header else ())))
        offset, number, otherwise = begin.offset, begin.line, begin
        window = Window(self._path)
        window.start, window.line = begin.offset, begin.line
        reading = Reading(self._path)
        for line, record in json_lines(window, reading):
            step = trail.take(record)
            if step is BREAKS:
                if not is_read:
                    raise OutOfPlace(str(self._path))
                trail, otherwise = kind(trail.before, at_start=False), Place(-1)
                places.clear()
                step = trail.take(record)
            if step is BEGINS:
                is_full = offset - begin.offset > WINDOW and not is_read
                if is_full and places and places[-1].offset > begin.offset:
                    return places[-1], offset, False
                places.append(Place(offset, number, trail.before, tuple(kept.values())))
            elif step is CUTS:
                places.clear()
            elif step is KEPT:
                kept[1] = (offset, number)
            offset, number = reading.position, line
        return places[0] if len(places) == 2 else otherwise, offset, True


def _digest(path: Path, end: int) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, end - _BLOCK))
        return hashlib.sha256(stream.read(min(end, _BLOCK))).hexdigest()[:32]
