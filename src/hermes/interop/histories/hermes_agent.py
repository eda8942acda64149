"""The public Hermes Agent: state.db of schema 12 and later in its home, which is often the home of this program as well.

Sessions keep the ids they have there. Its messages have numbers only, so the number becomes the id by which a later import knows
a message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from hermes.home import get_hermes_home
from hermes.interop.formats import Found, Problem
from hermes.interop.json_reading import Record, from_json

NAME = "hermes-agent"


def usual_places() -> list[Path]:
    """Its database in this home and in the usual one, where it has one."""
    homes = dict.fromkeys((get_hermes_home(), Path.home() / ".hermes"))
    return [path for home in homes if sniff(path := home / "state.db")]


def sniff(path: Path) -> bool:
    """Whether a file is a database that Hermes Agent wrote."""
    from hermes.store.upkeep.check import agent_store

    return agent_store(path) is not None


def files(folder: Path) -> Iterator[Path]:
    """The database in a home of Hermes Agent."""
    if sniff(folder / "state.db"):
        yield folder / "state.db"


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The sessions of the database, which is not changed."""
    from hermes.store.api.session_db import SessionDB
    from hermes.store.engines.sqlite.foreign import ForeignDatabase

    used = defaultdict[str, list[dict[str, Any]]](list)
    with ForeignDatabase(path) as database:
        for row in database.rows("session_model_usage", order=("first_seen",)):
            used[row["session_id"]].append({name: row[name] for name in row if row[name] and name != "session_id"})
    with SessionDB(db_path=path, read_only=True) as other:
        for session in other.iter_export():
            imported: dict[str, Any] = {"from": NAME, "id": session["id"], "end": session.get("end_reason")}
            if session.get("title"):
                imported["title"] = session["title"]
            if rewinds := session.get("rewinds"):
                imported["hidden"] = [batch for batch, _ in rewinds]
            stored_meta = Record.of(from_json(session.get("meta")))
            by_model = {"model_usage": used[session["id"]]} if session["id"] in used else {}
            meta = {**stored_meta, **by_model, "imported": imported}
            yield Found(0, {**session, **_messages(dict(session)), "meta": meta})


def _messages(session: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """A session's messages, each once and in the order in which that program shows them.

    A message that a compaction kept stands there twice: archived, and again after the summary. It has the name of the first one.
    """
    names: dict[str, str] = {}
    lists: dict[str, list[dict[str, Any]]] = {}
    all_rows = sorted((*session["messages"], *session.get("rewound_messages", ())), key=itemgetter("id"))
    for row in all_rows:
        key = _shown_as(row)
        names.setdefault(key, row.get("platform_message_id") or f"{NAME}-{row['id']}")
    shown = {_shown_as(row) for row in session["messages"]}
    last = {_shown_as(row): row["id"] for row in all_rows}
    for kind in ("messages", "rewound_messages"):
        rows = session.get(kind, ())
        if kind != "messages":
            rows = [row for row in rows if _shown_as(row) not in shown and last[_shown_as(row)] == row["id"]]
        lists[kind] = [{**row, "platform_message_id": names[_shown_as(row)]} for row in rows]
    about = [Record.of(from_json(row.get("meta"))) for row in lists["messages"]]
    if all(isinstance(meta.get("display_order"), (int, float)) for meta in about):
        order = sorted(range(len(about)), key=lambda at: (not about[at].get("summary"), about[at]["display_order"]))
        lists["messages"] = [lists["messages"][at] for at in order]
    return {kind: rows for kind, rows in lists.items() if rows or kind == "messages"}


def _shown_as(message: dict[str, Any]) -> str:
    return str(Record.of(from_json(message.get("meta"))).get("display_identity") or f"#{message['id']}")
