"""The labelled set: conversations, questions with known answers, and how an answer is counted.

The questions were written before any ranking was tuned. A third of them, in every class, is held out: ranking is
tuned on the others only, and the held-out ones say whether the tuning was real. A question counts as answered
when one of its right sessions is among the first three distinct sessions of `search_messages(q, limit=20)`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT = 20
FIRST = 3
BASE_TIME = 1_740_000_000.0  # 19 February 2025; the conversations mention dates from then on
BETWEEN_SESSIONS = 9 * 3600.0


@dataclass(frozen=True)
class Question:
    """A query, and the sessions that answer it."""

    text: str
    answers: tuple[str, ...]
    kind: str
    held_out: bool


@dataclass
class Found:
    """The result of one search: hits as returned, and the distinct sessions in order of first appearance."""

    question: Question
    hits: list[dict[str, Any]] = field(repr=False)

    @property
    def sessions(self) -> list[str]:
        return list(dict.fromkeys(hit["session_id"] for hit in self.hits))

    @property
    def answered(self) -> bool:
        return not set(self.question.answers).isdisjoint(self.sessions[:FIRST])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def conversations() -> list[dict[str, Any]]:
    """Every session of the set, in an order that mixes subjects and languages, so that recency favours nobody."""
    sessions = [s for path in sorted((HERE / "conversations").glob("*.jsonl")) for s in _lines(path)]
    return sorted(sessions, key=lambda s: hashlib.sha256(s["id"].encode()).digest())


def questions() -> list[Question]:
    """Every question of the set."""
    return [
        Question(row["q"], tuple(row["answers"]), row["class"], row["held_out"])
        for row in _lines(HERE / "questions.jsonl")
    ]


def fill(db: Any, sessions: Iterable[dict[str, Any]], first: int = 0) -> None:
    """Write sessions through the public API; `first` is the place of the first one in time."""
    for place, session in enumerate(sessions, first):
        started = BASE_TIME + place * BETWEEN_SESSIONS
        db.create_session(session["id"], session["source"], user_id=session["user_id"], started_at=started)
        if session["title"]:
            db.set_session_title(session["id"], session["title"])
        for number, message in enumerate(session["messages"]):
            db.append_message(
                session["id"],
                message["role"],
                message["content"],
                tool_name=message.get("tool_name"),
                tool_calls=message.get("tool_calls"),
                tool_call_id=message.get("tool_call_id"),
                timestamp=started + 20.0 * number,
            )


def ask(db: Any, asked: Iterable[Question]) -> list[Found]:
    """Search for every question, as typed."""
    return [Found(question, db.search_messages(question.text, limit=LIMIT)) for question in asked]


def recall(found: Iterable[Found]) -> float:
    """The share of answered questions."""
    results = [one.answered for one in found]
    return sum(results) / len(results)


def by_class(found: Iterable[Found]) -> dict[str, list[Found]]:
    """Group the results by the class of their question."""
    classes: dict[str, list[Found]] = defaultdict(list)
    for one in found:
        classes[one.question.kind].append(one)
    return dict(classes)
