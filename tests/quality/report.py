"""Recall per class and what was missed, for whoever tunes the ranking.

    PYTHONPATH=src python -m tests.quality.report [--held-out] [--class natural] [--pending]

Held-out questions stay hidden unless asked for: look at them at the end, not while tuning.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from .labelled import FIRST, Found, ask, by_class, conversations, fill, questions, recall


def opening(session: dict[str, Any]) -> str:
    """The first words of a session."""
    for message in session["messages"]:
        if message["role"] == "user":
            content = message["content"]
            text = content if isinstance(content, str) else content[0].get("text", "")
            return " ".join(text.split())[:60]
    return ""


def table(found: list[Found]) -> str:
    """One line a class, and one for all of them."""
    lines = [f"{'class':<16}{'questions':>10}{'answered':>10}{'recall@3':>10}"]
    for name, group in [*sorted(by_class(found).items()), ("all", found)]:
        answered = sum(one.answered for one in group)
        lines.append(f"{name:<16}{len(group):>10}{answered:>10}{recall(group):>10.2f}")
    return "\n".join(lines)


def missed(found: list[Found], openings: dict[str, str]) -> str:
    """Every unanswered question with what was wanted, at which place it came, and what came first."""
    lines: list[str] = []
    for one in found:
        if one.answered:
            continue
        lines.append(f"\n[{one.question.kind}] {one.question.text}")
        for answer in one.question.answers:
            place = one.sessions.index(answer) + 1 if answer in one.sessions else "not found"
            lines.append(f"   wanted  {answer} ({place})")
        for session in one.sessions[:FIRST]:
            hit = next(hit for hit in one.hits if hit["session_id"] == session)
            lines.append(f"   found   {session} ({hit.get('reason')}): {openings[session]}")
        if not one.hits:
            lines.append("   found   nothing")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Fill a fresh store, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.report", description=__doc__.splitlines()[0])
    parser.add_argument("--held-out", action="store_true", help="the held-out questions instead of the tuning ones")
    parser.add_argument("--class", dest="kind", help="only this class of questions")
    parser.add_argument("--pending", action="store_true", help="search right after appending, without catch_up()")
    options = parser.parse_args(arguments)
    asked = [q for q in questions() if q.held_out == options.held_out and options.kind in (None, q.kind)]
    if not asked:
        parser.error(f"no questions of class {options.kind!r}")

    from hermes_state import SessionDB

    sessions = conversations()
    with tempfile.TemporaryDirectory() as folder, SessionDB(db_path=Path(folder) / "state.db") as db:
        fill(db, sessions)
        if not options.pending:
            db.catch_up()
        found = ask(db, asked)
    print(table(found))
    print(missed(found, {session["id"]: opening(session) for session in sessions}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
