"""Continue a session of another program here, or one of ours there, in one step.

Files of other programs are read, and new ones written beside them; one that exists is never changed. A session that is written
there names the session and the messages it comes from, so that `arrivals` continues that session when it is imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput
from hermes.home import project_folder
from hermes.interop import formats
from hermes.interop.arrivals import alone, arriving, copied_id
from hermes.interop.formats import Export, Format
from hermes.interop.histories.conversation import HERE, ORIGIN
from hermes.interop.histories.make import as_uuid
from hermes.interop.json_reading import Record, first_objects, from_json
from hermes.whole_files import write_whole

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import ExportedSession

_LOOKED_AT = 20  # objects at the beginning of a file, among which one names the folder


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
    places: list[Path] = module.usual_places()
    for path in sorted(formats.files_at(module, places), key=_changed, reverse=True):
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
