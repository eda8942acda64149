"""Files of other programs for tests, and what an import makes of them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hermes.store.records.file_changes import hashes_in
from hermes_state import SessionDB
from tests.support import program

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # a picture of one dot


def lines(path: Path, records: Iterable[Any]) -> Path:
    """A JSON-lines file; a text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
    return path


def brought_in(path: Path, home: Path, *options: str, status: int = 0) -> str:
    """Import a file or folder with the program itself; what it printed."""
    done = program.run("sessions", "import", path, *options, home=home)
    assert done.status == status, done
    return str(done.out + done.err)


def sessions(home: Path) -> dict[str, dict[str, Any]]:
    """Every session, its messages as (role, text) with the rest beside them."""
    with SessionDB(home / "state.db", read_only=True) as db:
        return {one["id"]: one for one in db.iter_export()}


def told(session: dict[str, Any]) -> list[tuple[str, Any]]:
    """The shown messages of a session as (role, text)."""
    return [(one["role"], one["content"]) for one in session["messages"]]


def hidden(session: dict[str, Any]) -> list[Any]:
    """The texts of the messages that a session has hidden."""
    return [one["content"] for one in session.get("rewound_messages", ())]


def changed(home: Path) -> dict[str, int]:
    """Each file that a tool call changed, with how many lines it added: what `hermes why` knows of it."""
    with SessionDB(home / "state.db", read_only=True) as db:
        return {one["path"]: len(hashes_in(one["lines"])) for one in db.file_changes()}


def database(path: Path, *statements: tuple[str, list[tuple[Any, ...]]]) -> Path:
    """A database with these tables and rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    for sql, rows in statements:
        if rows:
            connection.executemany(sql, rows)
        else:
            connection.execute(sql)
    connection.commit()
    connection.close()
    return path


def unchanged(path: Path) -> tuple[str, list[str]]:
    """A hash of a file and the names beside it, to compare before and after an import, which changes neither."""
    return hashlib.sha256(path.read_bytes()).hexdigest(), sorted(one.name for one in path.parent.iterdir())
