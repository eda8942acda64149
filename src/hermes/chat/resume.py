"""Resuming a session, and leaving one: finding it, whether another process has it, restoring its folder and model, and
the line that resumes it."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.commands.session_choice import continued, message_count
from hermes.commands.session_commands import USER_EXIT
from hermes.errors import InvalidInput
from hermes.home import project_folder
from hermes.store.leases import is_gone, is_ours
from hermes.texts import harmless, shortened_line
from hermes.times import duration

if TYPE_CHECKING:
    from hermes.agent.model import Model
    from hermes.store.db import SessionDB
    from hermes.store.rows import SessionRow


def latest(db: SessionDB, folder: Path | None) -> str:
    """The `cli` session used last (in `folder`), where it continues; InvalidInput where there is none."""
    rows = db.list_sessions_rich(
        source="cli", limit=1, order_by_last_active=True, cwd=None if folder is None else str(folder)
    )
    if not rows:
        where = "" if folder is None else f"in {folder} "
        raise InvalidInput(f"there is no conversation {where}to continue yet: `hermes` begins one")
    return continued(db, rows[0]["id"])


def other_folder(db: SessionDB, session_id: str) -> str | None:
    """A note that the session belongs to another project than the current folder; None where it does not."""
    row = db.get_session(session_id)
    project = project_folder(Path.cwd())
    if row is None or not row["cwd"] or f"{row['cwd']}/".startswith(f"{project}/".replace("//", "/")):
        return None
    return (
        f"This conversation belongs to {shortened_line(row['cwd'], 200)}; `hermes -c --here` continues the latest one of"
        f" {project}."
    )


def is_elsewhere(db: SessionDB, session_id: str, patience: float = 1.5) -> bool:
    """Whether another running process holds the session.

    A gateway that has just answered holds it for a moment longer, so a held session is looked at again for `patience`
    seconds. A process that crashed on another machine counts as running until its lease expires.
    """
    end = time.monotonic() + patience
    while (holder := db.session_holder(session_id)) is not None and not is_gone(holder) and not is_ours(holder):
        if time.monotonic() >= end:
            return True
        time.sleep(0.05)
    return False


@dataclass(slots=True)
class Restored:
    """What was restored of a session."""

    cwd: Path
    model: Model
    notices: list[str] = field(default_factory=list)


def model_used(db: SessionDB, row: SessionRow) -> str | None:
    """The model that answered last in a session: /model may have changed it since the session began."""
    used = db.get_messages(row["id"])
    last: str | None = next((message["model"] for message in reversed(used) if message["role"] == "assistant"), None)
    first = row["model"]
    if last is None or (first and re.fullmatch(re.escape(first) + r"-\d[\d-]*", last)):
        return first  # endpoints report a model with the date of its version
    return last


def restore(row: SessionRow, model: Model, *, cwd: bool, keep_model: bool, used: str | None) -> Restored:
    """The folder and the model a session used, as far as they still exist; `used` is the model."""
    back = Restored(Path.cwd(), model)
    if cwd and row["cwd"]:
        if os.path.isdir(row["cwd"]):
            back.cwd = Path(row["cwd"])
        else:
            import shlex

            gone = shortened_line(row["cwd"], 200)
            move = f"hermes sessions move-folder {shlex.quote(gone)} NEW"
            back.notices.append(f"The folder {gone} is gone; continuing in {back.cwd}. If it was moved: `{move}`.")
    if used and not keep_model:
        from hermes.agent.model_choice import model_again

        again, remedy = model_again(model, used, row["model_config"] if used == row["model"] else None)
        if again is not None:
            back.model = again
        else:
            was = f"{shortened_line(used, 80)}, which is not available{f' ({remedy})' if remedy else ''}"
            back.notices.append(f"This conversation used {was}; continuing with {model.name}.")
    return back


def end(db: SessionDB, session_id: str, reason: str = USER_EXIT) -> bool:
    """End a session, if it has messages; whether it has."""
    if db.get_session(session_id) is None:
        return False
    db.end_session(session_id, reason)
    return True


def farewell(db: SessionDB, session_id: str, since: float) -> list[str]:
    """The lines shown on leaving: id, duration, messages, and the command that resumes it. [] without messages."""
    row = db.get_session(session_id)
    if row is None:
        return []
    return [
        f"Session   {session_id}",
        f"Title     {harmless(row['title'] or '—')}",
        f"Duration  {duration(time.time() - since)}",
        f"Messages  {message_count(db, row):,}",
        f"Resume    {resume_line(session_id)}",
    ]


def resume_line(session_id: str) -> str:
    """The shell command that continues a session, in any shell of this user."""
    import shlex

    return f"{program()} -r {shlex.quote(session_id)}"


def program() -> str:
    """The shell words that start this program: `hermes` where the shell finds this one under that name, else its path."""
    import shlex
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), "hermes")
    scripts = [path for path in (os.path.abspath(sys.argv[0]), beside) if _is_program(path)]
    if not scripts:
        return f"{shlex.quote(sys.executable)} -m hermes.cli.main"
    found = shutil.which("hermes")
    if found is not None and os.path.realpath(found) in map(os.path.realpath, scripts):
        return "hermes"
    path, home = scripts[0], os.path.expanduser("~")
    inside = path.removeprefix(home + os.sep)
    return f"~/{shlex.quote(inside)}" if home != os.sep and inside != path else shlex.quote(path)


def _is_program(path: str) -> bool:
    return os.path.basename(path) == "hermes" and os.path.isfile(path) and os.access(path, os.X_OK)
