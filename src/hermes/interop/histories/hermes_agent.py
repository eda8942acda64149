"""The public Hermes Agent: state.db of schema 12 and later in its home, which is often the home of this program as well.

Sessions keep the ids they have there. Its messages have numbers only, so the number becomes the id by which a later import knows
a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.home import get_hermes_home
from hermes.interop.formats import Found, Problem

NAME = "hermes-agent"


def usual_places() -> list[Path]:
    """Its database in this home and in the usual one, where it has one."""
    homes = dict.fromkeys((get_hermes_home(), Path.home() / ".hermes"))
    return [path for home in homes if sniff(path := home / "state.db")]


def sniff(path: Path) -> bool:
    """Whether a file is a database that Hermes Agent wrote."""
    from hermes.store.check import agent_store

    return agent_store(path) is not None


def files(folder: Path) -> Iterator[Path]:
    """The database in a home of Hermes Agent."""
    if sniff(folder / "state.db"):
        yield folder / "state.db"


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The sessions of the database, which is not changed."""
    from hermes.store.db import SessionDB

    with SessionDB(db_path=path, read_only=True) as other:
        for session in other.iter_export():
            imported: dict[str, Any] = {"from": NAME, "id": session["id"]}
            if session.get("title"):
                imported["title"] = session["title"]
            if rewinds := session.get("rewinds"):
                imported["hidden"] = [batch for batch, _ in rewinds]
            lists = {
                key: [
                    {**one, "platform_message_id": one.get("platform_message_id") or f"{NAME}-{one['id']}"}
                    for one in rows
                ]
                for key in ("messages", "rewound_messages")
                if (rows := dict[str, Any](session).get(key))
            }
            yield Found(0, {**session, "messages": [], **lists, "meta": {"imported": imported}})
