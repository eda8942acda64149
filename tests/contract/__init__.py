"""The contract of the store: one suite, run against every engine, written from the specification alone.

The helpers below only build stores and read results; none of them knows how anything is stored.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

DAY = 86_400.0


def say(db: Any, session_id: str, *texts: str, role: str = "user", source: str = "cli") -> list[int]:
    """Make sure the session is there, append the texts, return the message ids."""
    db.ensure_session(session_id, source)
    return [db.append_message(session_id, role, text) for text in texts]


def talk(db: Any, session_id: str, *texts: str, **columns: Any) -> list[int]:
    """A new session in which user and assistant take turns."""
    db.create_session(session_id, columns.pop("source", "cli"), **columns)
    roles = ("user", "assistant")
    return [db.append_message(session_id, roles[n % 2], text) for n, text in enumerate(texts)]


def contents(messages: Iterable[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


def shown(db: Any, session_id: str) -> list[Any]:
    """The contents of a session's messages, as a plain list."""
    return contents(db.get_messages(session_id))


def ids(rows: Iterable[dict[str, Any]]) -> list[Any]:
    return [row["id"] for row in rows]


def found(db: Any, query: str, **kw: Any) -> set[int]:
    """Ids of the messages a search finds."""
    kw.setdefault("limit", 100)
    return set(ids(db.search_messages(query, **kw)))


def fully_found(db: Any, query: str, **kw: Any) -> set[int]:
    """Ids of the messages a search finds, without the relaxed hits."""
    kw.setdefault("limit", 100)
    return {hit["id"] for hit in db.search_messages(query, **kw) if not hit["relaxed"]}


def marked(snippet: str) -> str:
    """Everything between >>> and <<<, put together, in lower case."""
    return "".join(re.findall(r">>>(.*?)<<<", snippet, re.DOTALL)).lower()


def old_session(db: Any, session_id: str, days: float, *, end: str | None = "done", **columns: Any) -> None:
    """A session whose start and only message lie `days` back."""
    then = time.time() - days * DAY
    db.create_session(session_id, columns.pop("source", "cli"), started_at=then, **columns)
    db.append_message(session_id, "user", f"words of {session_id}", timestamp=then)
    if end is not None:
        db.end_session(session_id, end)


def aged(db: Any, session_id: str, days: float) -> None:
    """Move a childless session into the past, ends included: out as an export, back in as an import."""
    data = db.export_session(session_id)
    assert db.delete_session(session_id)
    shift = days * DAY
    for key in ("started_at", "ended_at", "last_active"):
        if data.get(key) is not None:
            data[key] -= shift
    for message in data["messages"]:
        message["timestamp"] -= shift
    assert db.import_session(data)


def finishes(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The call's result; a call that hangs fails the test instead of the whole run."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # handed to the caller below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the call does not come back"
    if errors:
        raise errors[0]
    return result[0]


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls at the same moment, one thread each; results in the order given; an error is raised."""
    gate = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            gate.wait(30)
            results[n] = calls[n]()
        except BaseException as error:  # raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


ANOTHER_PROGRAM = """
import json, sqlite3, sys
path, statements = json.load(sys.stdin)
connection = sqlite3.connect(path, timeout=30)
with connection:
    answers = [connection.execute(statement, values).fetchall() for statement, values in statements]
connection.close()
json.dump(answers, sys.stdout)
"""


def plain_sql(path: Path, *statements: str | tuple[str, Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
    """The file as another program sees it: run the statements in one transaction, return each one's rows.

    It is another process on purpose: two SQLite libraries in one process undo each other's file locks.
    """
    pairs = [(one, ()) if isinstance(one, str) else one for one in statements]
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROGRAM],
        input=json.dumps([str(path), pairs]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [[tuple(row) for row in rows] for rows in json.loads(done.stdout)]
