"""Passages of earlier conversations that fit a question, for the models that can't look things up themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.agent.passages import EXTRACTIVE, Chains, centred, find_place, is_echo, place_of
from hermes.agent.quoting import clean, message_text, shortened
from hermes.store.text import fold

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User


@dataclass(slots=True, frozen=True)
class Excerpt:
    """A passage of an earlier conversation, as it was said (not marked as quoted: `quoted(excerpt.text)` does that)."""

    session_id: str
    title: str | None
    source: str
    when: float
    message_id: int
    role: str
    text: str


def excerpts(
    db: SessionDB, question: str, *, current: str | None = None, visible_to: User | None = None, limit: int = 5
) -> list[Excerpt]:
    """The passages that best answer a question, at most two of one conversation; the current one's are left out.

    A passage of a user comes with the beginning of the reply.
    """
    search = _Search(db, Chains(db, current, visible_to), visible_to, limit)
    asked = " ".join(clean(question).split())[:400]
    plain_words = " ".join(re.findall(r"\w+", asked))
    # What people and models said comes first; a question that reads as a query for nothing is tried by its words alone.
    for roles in (["user", "assistant"], None):
        for text in dict.fromkeys((asked, plain_words)):
            hits = db.search_messages(text, role_filter=roles, limit=80, visible_to=visible_to) if text else []
            found = search.passages(hits, fold(asked))
            if found:
                return found
    return []


class _Search:
    """From hits to passages."""

    def __init__(self, db: SessionDB, chains: Chains, visible_to: User | None, limit: int) -> None:
        self.db, self.chains, self.visible_to, self.limit = db, chains, visible_to, limit
        self.shown: dict[str, list[dict[str, Any]]] = {}

    def passages(self, hits: Sequence[dict[str, Any]], own_words: str) -> list[Excerpt]:
        out: list[Excerpt] = []
        per: dict[str, int] = {}
        taken: set[int] = set()  # messages that were quoted already
        best = 0.0
        for hit in hits:
            session_id = hit["session_id"]
            key = self.chains.tip(session_id)
            if self.chains.is_own(session_id) or per.get(key, 0) >= 2 or is_echo(hit):
                continue
            if hit["relaxed"]:
                best = max(best, hit["score"])
                if hit["score"] < best / 2:  # shares a word with the question, and no more
                    continue
            text, used = _passage(self._messages(session_id), hit, taken)
            if not text or any(text == other.text for other in out):
                continue
            if len(used) == 1 and hit["role"] == "user" and _asks(text, own_words):
                continue
            taken |= used
            per[key] = per.get(key, 0) + 1
            row = self.chains.shown(session_id) or {}
            out.append(
                Excerpt(
                    str(row.get("id") or session_id), row.get("title"), str(hit["source"]), float(hit["timestamp"]),
                    int(hit["id"]), str(hit["role"]), text,
                )
            )  # fmt: skip
            if len(out) >= self.limit:
                break
        return out

    def _messages(self, session_id: str) -> list[dict[str, Any]]:
        if session_id not in self.shown:
            self.shown[session_id] = self.db.get_messages(session_id, visible_to=self.visible_to)
        return self.shown[session_id]


def _asks(text: str, own_words: str) -> bool:
    """Whether a passage is no more than a question: the one that is being asked, or one that nobody answered."""
    return text.rstrip().endswith(("?", "？", "؟")) or fold(" ".join(text.split()))[:400] == own_words


def _passage(messages: Sequence[dict[str, Any]], hit: dict[str, Any], taken: set[int]) -> tuple[str, set[int]]:
    """The words around a match, with the reply to them, and which messages these are; "" for what was quoted before."""
    place = next((n for n, message in enumerate(messages) if message["id"] == hit["id"]), None)
    if place is None or hit["id"] in taken:
        return "", set()
    text = clean(message_text(messages[place], calls=False))
    if find_place(text, hit["snippet"]) < 0:  # it was found in what a tool was asked to do
        text = clean(message_text(messages[place]))
    text = centred(text, [place_of(text, hit["snippet"])], 600)
    if hit["role"] == "user":
        for message in messages[place + 1 :]:
            if message["role"] == "user":
                break
            reply = clean(message_text(message, calls=False)) if message["role"] == "assistant" else ""
            if reply.strip() and message.get("model") != EXTRACTIVE and message["id"] not in taken:
                return f"{text.strip()}\n→ {shortened(reply.strip(), 500)}", {hit["id"], message["id"]}
    return text.strip(), {hit["id"]}
