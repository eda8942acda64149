"""The histories of other programs on this machine: follow them; continue a session of theirs here, or one of ours there.

What a followed program writes is in the record a moment later. A file's size and time when it was last read are kept in the
record, so that a start after a stop reads only what has changed since. Reading is an import, and an import is repeat-safe: a
kill between the two costs nothing but reading a file again. A file that can't be read is skipped until it changes; a store that
fails ends `run` with its error.

Files of other programs are read, and new ones written beside them; one that exists is never changed. A session that is written
there names the session and the messages it comes from, so that `arrivals` continues that session when it is imported.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, InvalidInput, StoreError
from hermes.home import project_folder, write_whole
from hermes.interop import formats
from hermes.interop.arrivals import alone, arriving, copied_id
from hermes.interop.formats import Export, Format, Problem
from hermes.interop.histories import HERE, ORIGIN
from hermes.interop.histories.make import as_uuid
from hermes.interop.json_reading import Record, first_objects, from_json
from hermes.interop.windows import Windows, mark_in
from hermes.store.exchange.ingest import IMPORTED_FILE
from hermes.texts import one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import ExportedSession

_PAUSE = 2.0  # seconds between two looks at sizes and times
_PAUSE_SHARE = 50  # a pause is this many times as long as the look before it: at most 2 % of a core
_LONGEST_PAUSE = 30.0
_BEAT = 0.5  # seconds after which a stop is noticed
_WEEK = 7 * 86400.0
_LOOKED_AT = 20  # objects at the beginning of a file, among which one names the folder
Report = Callable[[Format, Path, dict[str, int]], None]


def usual_places() -> list[Path]:
    """The folders in which the programs of this machine keep their histories, installed or not."""
    return [place for history in formats.histories() for place in history.usual_places()]


def expiring(db: SessionDB) -> Iterator[tuple[str, int]]:
    """The programs that will delete sessions of theirs within a week, and how many of those are here. Each comes once a week."""
    now = time.time()
    for history in formats.histories():
        if (found := getattr(history.load(), "expiring", None)) is None:
            continue
        key = f"{IMPORTED_FILE}expiring:{history.name}"
        if float(db.get_meta(key) or 0) < now - _WEEK and (
            number := sum(db.get_session(name) is not None for name in found(now + _WEEK))
        ):
            db.set_meta(key, str(now))
            yield history.program, number


class HistoryWatcher:
    """Imports what other programs write below some folders (the usual places, if none are named)."""

    def __init__(
        self,
        db: SessionDB,
        folders: Iterable[Path] = (),
        report: Report | None = None,
        trouble: Callable[[Problem], None] | None = None,
    ) -> None:
        """`report` is called for each file with new messages, `trouble` once for each problem with a file."""
        self._db, self._report, self._trouble = db, report, trouble
        self._folders = [folder.resolve() for folder in folders]
        self._states: dict[tuple[str, Path], str] = {}  # how a file was when it was last imported, refused or not ours
        self._reported: set[tuple[Path | None, str]] = set()
        self._stopped: Callable[[], bool] = lambda: False
        # Machines that share a store may have different files at the same path.
        self._key = f"{IMPORTED_FILE}{socket.gethostname()}:" if db.is_shared else IMPORTED_FILE

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Follow until `stopped` says so."""
        self._stopped = stopped
        while not stopped():
            began = time.monotonic()
            imported = self.catch_up(self.found())
            now = time.monotonic()
            rest = (
                0.0 if imported else (now - began) * _PAUSE_SHARE
            )  # a look that imports says little about the next one
            until = now + min(max(_PAUSE, rest), _LONGEST_PAUSE)
            while not stopped() and time.monotonic() < until:
                time.sleep(_BEAT)

    def found(self) -> Iterator[tuple[Format, Path]]:
        """Every history, except files that are as they were when this watcher last looked at them."""
        for history in formats.histories():
            for path in history.files(self._folders or history.usual_places()):
                now = _state(path)
                if now is not None and self._states.get((history.name, path)) != now:
                    if self._is_ours(history, path):
                        yield history, path
                    else:
                        self._states[history.name, path] = now

    def _is_ours(self, chosen: Format, path: Path) -> bool:
        try:
            return bool(chosen.load().sniff(path))
        except Exception as error:  # one file of another program stops no other
            self._problem(Problem(0, f"{type(error).__name__}: {error}", path))
            return False

    def catch_up(self, sources: Iterable[tuple[Format, Path]]) -> int:
        """Import the files that have changed since they were last read; returns the number of new messages."""
        imported = 0
        for chosen, path in sources:
            if self._stopped():
                break
            try:
                imported += self._take(chosen, path)
            except StoreError:  # the record failed, not this file
                raise
            except Exception as error:  # one file of another program stops no other
                text = str(error) if isinstance(error, (HermesError, OSError)) else f"{type(error).__name__}: {error}"
                self._problem(Problem(0, text, path))
        return imported

    def _take(self, chosen: Format, path: Path) -> int:
        key = f"{self._key}{path}"
        with alone(path):
            now = _state(path)
            if now is None:
                return 0
            known, _, mark = (self._db.get_meta(key) or "").partition("\n")
            if known == now:
                self._states[chosen.name, path] = now
                return 0
            problems: list[Problem] = []
            is_alone = known.split()[1:] == now.split()[1:]  # nothing that lies beside the file has changed
            windows = Windows(chosen.load(), path, None, problems, mark_in(mark, path) if is_alone else None)
            cut_short = False

            def sessions() -> Iterator[Mapping[str, Any]]:
                nonlocal cut_short
                for found in windows.sessions():
                    if self._stopped():
                        cut_short = True
                        return
                    yield found.session

            def refused(session: Mapping[str, Any], error: Exception) -> None:
                if windows.misplaced(error):
                    return
                reason = str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"
                problems.append(Problem(0, f"session {session['id']}: {reason}", path))

            counts: Counter[str] = Counter()
            self._states[chosen.name, path] = now  # also if it fails: it is read again when it changes
            try:
                arrived = arriving(self._db, sessions(), counts)
                counts.update(self._db.import_sessions(arrived, update=True, again=False, refused=refused))
            except StoreError:
                del self._states[chosen.name, path]
                raise
            if not cut_short:
                self._db.set_meta(key, f"{now}\n{windows.mark_text()}".strip())
        for problem in problems:
            if problem.unknown is None:
                self._problem(problem)
        if self._report is not None and (counts["messages"] or counts["updated"]):
            self._report(chosen, path, counts)
        return counts["messages"]

    def _problem(self, problem: Problem) -> None:
        """Report a problem once, although every reading of its file finds it again."""
        key = (problem.path, f"{problem.line} {problem.reason}")
        if self._trouble is not None and key not in self._reported:
            self._reported.add(key)
            self._trouble(Problem(problem.line, one_line(problem.reason), problem.path))


def _state(path: Path) -> str | None:
    """The sizes and times by which a change shows: of the file, and of its journal or its sub-agents."""
    beside = path.with_suffix("").glob("subagents/*")
    others = " ".join(map(_mark, sorted((path.with_name(path.name + "-wal"), *beside)))).strip()
    digest = hashlib.sha256(others.encode()).hexdigest()[:16] if others else ""
    return f"{_mark(path)} {digest}".strip() or None


def _mark(path: Path) -> str:
    """A file's size and time; empty where it is gone: the program may remove its files at any time."""
    try:
        seen = path.stat()
    except OSError:
        return ""
    return f"{seen.st_size}/{seen.st_mtime_ns}"


# ------------------------------------------------------------------------------------------------- continuing


def programs() -> dict[str, Format]:
    """The programs whose sessions belong to folders, by every name of theirs; the shortest one first."""
    found = [one for one in formats.histories() if one.by_folder]
    return {name: one for one in found for name in sorted((one.name, *one.aliases), key=len)}


def names() -> list[str]:
    """A short name for each program that any session can be written for; others resume only what came from them."""
    return [name for name, one in _short_names().items() if one.writes]


def _short_names() -> dict[str, Format]:
    return {min((one.name, *one.aliases), key=len): one for one in programs().values()}


# ------------------------------------------------------------------------------------------------- from there


def named(name: str) -> Format:
    """The program of this name; InvalidInput where there is none."""
    if (chosen := programs().get(name)) is None:
        raise InvalidInput(f"unknown program @{name}; there are @{', @'.join(_short_names())}")
    return chosen


def newest(db: SessionDB, name: str, folder: Path) -> str:
    """Import the newest session that a program has of a folder, or of the git repository around it; its id here."""
    chosen = named(name)
    module, project = chosen.load(), project_folder(folder)
    places = chosen.usual_places()
    for path in sorted(chosen.files(places), key=_changed, reverse=True):
        session_folder = _named_folder(path)
        if session_folder is not None and not _is_of(project, session_folder):
            continue
        if module.sniff(path) and (found := _imported(db, module, path, project)):
            return found
    looked = ", ".join(map(str, places)) or "no usual place"
    raise InvalidInput(f"{chosen.program} has no session of {project} (looked in {looked})")


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # the program may remove its files at any time
        return 0.0


def _named_folder(path: Path) -> str | None:
    """The folder that a JSON-lines file names at its beginning: most files are of another folder, and need not be read."""
    for line in first_objects(path, _LOOKED_AT) if path.suffix == ".jsonl" else ():
        payload = line.object("payload") or line.object("data")
        for record in (line, payload, payload.object("context")):
            if folder := record.text("cwd"):
                return folder
    return None


def _is_of(project: Path, folder: Any) -> bool:
    """Whether a session's folder is this one, or lies in this repository."""
    if folder == str(project):
        return True
    return isinstance(folder, str) and project in Path(folder).parents and (project / ".git").exists()


def _imported(db: SessionDB, module: ModuleType, path: Path, project: Path) -> str | None:
    """Import the sessions of a file that belong to a project; the id of the newest, None where there are none."""
    found: list[tuple[float, str, str | None]] = []
    refusals: list[Exception] = []

    def sessions() -> Iterator[Mapping[str, Any]]:
        for _, session, _ in module.read(path, None, []):
            if _is_of(project, session.get("cwd")):
                if session.get("kind") != "subagent":
                    found.append((session["ended_at"], session["id"], session.get(ORIGIN)))
                yield session

    with alone(path):
        prepared = arriving(db, sessions(), Counter())
        db.import_sessions(prepared, update=True, refused=lambda session, error: refusals.append(error))
    if not found:
        return None
    _, session_id, origin = max(found)
    for candidate in (session_id, origin):
        if candidate is not None and db.get_session(candidate) is not None:
            return candidate
    if refusals:
        raise refusals[0]
    raise InvalidInput(
        f"{session_id} was deleted here: `hermes sessions restore {session_id}` brings it back from the trash,"
        f" `hermes sessions import --again {path}` from there"
    )


# ------------------------------------------------------------------------------------------------- to there


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that another program can resume."""

    folder: Path
    words: list[str]  # the command, to be run in that folder
    written: Path | None  # the new file; None where the program had it all
    left_out: Mapping[str, int]


def opened_in(db: SessionDB, session_id: str, chosen: Format, folder: Path) -> Opened:
    """Give a session to another program. `folder` is where it works, if the session's own folder is gone."""
    session = db.export_session(session_id)
    if session is None or not session["messages"]:
        raise InvalidInput(f"{session_id} has no messages: there is nothing to continue")
    if session["cwd"] and Path(session["cwd"]).is_dir():
        folder = Path(session["cwd"])
    session["cwd"] = str(folder)
    came_from = Record.of(from_json(session.get("meta"))).object("imported")
    own_id = str(came_from["id"]).partition(".")[0] if came_from.get("from") == chosen.name else None
    if not chosen.writes:
        is_whole = all(one.get("platform_message_id") for one in session["messages"])
        if own_id is None or not is_whole or not chosen.resume:
            writable = ", ".join(one.name for one in formats.histories() if one.writes)
            raise InvalidInput(f"{session_id} can't be written for {chosen.program}; it can for {writable}")
        return Opened(folder, _words(chosen, own_id), None, {})
    module = chosen.load()
    for number in count():
        name = as_uuid(f"{session_id}/{number}" if number else own_id or session_id)
        existing = _file_of(module, name)
        if existing is None:
            break
        if _holds(module, existing, session):
            return Opened(folder, _words(chosen, name), None, {})
    export = Export(sessions=[session], attachments=db.read_attachment, name=name)
    target: Path = module.kept_at(name, session)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, formats.written(chosen, export))
    return Opened(folder, _words(chosen, name), target, export.left_out)


def _words(chosen: Format, name: str) -> list[str]:
    return [*chosen.resume.split(), name]


def _file_of(module: ModuleType, name: str) -> Path | None:
    """The file that a program has of a session."""
    files = (path for place in module.usual_places() for path in place.rglob(f"*{name}.jsonl*"))
    return next((path for path in files if path.is_file()), None)


def _holds(module: ModuleType, path: Path, session: ExportedSession) -> bool:
    """Whether a file there has everything that a session shows."""
    here: set[Any] = set()
    known: set[Any] = set()
    for _, other, _ in module.read(path, None, []):
        for message in other["messages"]:
            here.add(message.get(HERE) if other.get(ORIGIN) == session["id"] else None)
            known |= {message.get("platform_message_id"), copied_id(other["id"], message)}
    spoken = [message for message in session["messages"] if message.get("content") or message.get("tool_calls")]
    return all(message["id"] in here or (message.get("platform_message_id") or "") in known for message in spoken)
