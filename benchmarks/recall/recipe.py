"""A plain ranking to compare with, apart from the program: it reads the chats into memory, and shares with the program only how
text is divided into words and the models.

    python -m benchmarks.recall.recipe [--set SET] [--set-aside]

Messages: the sum of the rarity of the words they hold. Sessions: best message + 2 × Σ rarity · w · 2.2 n / (n + 1.2 (.25 + .75
size / average)), w = 2 for a word written like a name; + 6 in the time a question names; + 6/σ · (½ best message + ½ best three in a
row + ¼ all) of the cosines in the 40 best sessions. In a session: own + .4 × neighbours + .2 × the next ones; in the list: session +
own - the session's best, at most 6 of a session. Snowball stems.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.recall.labelled_set import BETWEEN, Chat
from benchmarks.recall.run import SETS, ask
from hermes.store.search import encoders, vectors
from hermes.store.search.periods import preference, spans
from hermes.store.search.question_ranking import rarity
from hermes.store.text.index_text import UNSPACED, fold, pieces
from hermes.store.text.stems import STOP_PAIRS, STOP_WORDS, language_of, stemmer

LOOKED_AT = 40
OF_A_SESSION = 6
OF_THE_TIME = 6.0


class Recipe:
    """The chats of a set, and how a question is answered from them."""

    def __init__(self, chats: list[Chat], models: list[encoders.Encoder]) -> None:
        self.chats = chats
        self.of: list[int] = [
            number for number, chat in enumerate(chats) for _ in chat.messages
        ]  # the session of a message
        self.starts = np.cumsum([0, *(len(chat.messages) for chat in chats)]).tolist()
        texts = [text for chat in chats for _, text in chat.messages]
        self.holders: dict[str, set[int]] = defaultdict(set)
        for number, text in enumerate(texts):
            for word in _words(text):
                self.holders[word].add(number)
        self.models = models
        self.vectors: list[dict[int, Any]] = []
        for model in models:
            suited = [number for number, text in enumerate(texts) if model.suits(text)]
            known: dict[int, Any] = {}
            for at in range(0, len(suited), 64):
                some = suited[at : at + 64]
                found, sizes = model.passages([texts[one] for one in some])
                known.update(zip(some, zip(vectors.as_floats(vectors.as_int8(found)), sizes, strict=True), strict=True))
            self.vectors.append(known)

    def answered(self, question: str, by: str) -> list[tuple[int, int]]:
        """The hits in order, as (session, message)."""
        words = self._weighed(question)
        own: dict[int, float] = defaultdict(float)
        for held, _ in words:
            for message in held:
                own[message] += rarity(len(self.of), len(held))
        values = self._sessions(words, own)
        preferred = preference(spans(question, time.time()))
        if preferred is not None:
            for session in range(len(self.chats)):
                chat = self.chats[session]
                if preferred(chat.started, chat.started + BETWEEN * len(chat.messages)):
                    values[session] = values.get(session, 0.0) + OF_THE_TIME
        order = sorted(values, key=lambda one: -values[one])
        if by == "both":
            for session, more in self._near(question, order[:LOOKED_AT]).items():
                values[session] += more
            order.sort(key=lambda one: -values[one])
        hits = []
        for session in order[:60]:
            ids = range(self.starts[session], self.starts[session + 1])
            scores = sorted(((self._raised(own, one, ids), one) for one in ids), reverse=True)
            hits += [
                (values[session] + score - scores[0][0], session, one) for score, one in scores[:OF_A_SESSION] if score
            ]
        hits.sort(key=lambda hit: -hit[0])
        return [(session, message) for _, session, message in hits]

    def search_messages(self, text: str, *, limit: int, by: str) -> list[dict[str, Any]]:
        """The same as hits of a store, for `benchmarks.recall.run`."""
        out = []
        for session, message in self.answered(text, by)[:limit]:
            chat = self.chats[session]
            at = chat.started + BETWEEN * (message - self.starts[session])
            out.append({"session_id": chat.id, "timestamp": at})
        return out

    def _weighed(self, question: str) -> list[tuple[set[int], float]]:
        words = question.split()
        names = {one for word in words[1:] if word.lstrip("¿¡(\"'")[:1].isupper() for one in pieces(fold(word))}
        stem = stemmer(language_of(words))
        out: dict[str, tuple[set[int], float]] = {}
        for word in _words(question):
            if word not in STOP_WORDS and word not in STOP_PAIRS:
                forms = [one for one in self.holders if stem(one) == stem(word)] if word[0].isalpha() else [word]
                held = set().union(*(self.holders[one] for one in forms if one in self.holders))
                if held:
                    out[stem(word)] = held, 2.0 if word in names else 1.0
        return list(out.values())

    def _sessions(self, words: list[tuple[set[int], float]], own: dict[int, float]) -> dict[int, float]:
        values: dict[int, float] = defaultdict(float)
        for message, score in own.items():
            values[self.of[message]] = max(values[self.of[message]], score)
        average = len(self.of) / len(self.chats)
        for held, weight in words:
            counts: dict[int, int] = defaultdict(int)
            for message in held:
                counts[self.of[message]] += 1
            for session, count in counts.items():
                slope = 1.2 * (0.25 + 0.75 * len(self.chats[session].messages) / average)
                values[session] += 2 * rarity(len(self.chats), len(counts)) * weight * 2.2 * count / (count + slope)
        return values

    @staticmethod
    def _raised(own: dict[int, float], one: int, ids: range) -> float:
        steps = ((0, 1.0), (-1, 0.4), (1, 0.4), (-2, 0.2), (2, 0.2))
        return sum(part * own.get(one + step, 0.0) for step, part in steps if one + step in ids)

    def _near(self, question: str, sessions: list[int]) -> dict[int, float]:
        added: dict[int, list[float]] = defaultdict(list)
        for model, known in zip(self.models, self.vectors, strict=True):
            if not model.suits(question):
                continue
            asked = model.questions([question])[0]
            found = {}
            for session in sessions:
                rows = [known[one] for one in range(self.starts[session], self.starts[session + 1]) if one in known]
                if rows:
                    unit, sizes = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])[:, None]
                    found[session] = (
                        unit @ asked,
                        _windows(unit * sizes) @ asked,
                        _unit((unit * sizes).sum(0)) @ asked,
                    )
            if found:
                spread = max(0.02, float(np.concatenate([one[0] for one in found.values()]).std()))
                for session, (single, three, whole) in found.items():
                    added[session].append(6 / spread * (0.5 * single.max() + 0.5 * three.max() + 0.25 * whole))
        return {session: sum(some) / len(some) for session, some in added.items()}


def _words(text: str) -> set[str]:
    out = set()
    for piece in pieces(fold(text)):
        if UNSPACED.match(piece):
            out |= {piece[at : at + 2] for at in range(max(1, len(piece) - 1))}
        elif len(piece) > 1 or piece.isdigit():
            out.add(piece)
    return out


def _unit(rows: Any) -> Any:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9)


def _windows(rows: Any) -> Any:
    out = rows.copy()
    out[1:] += rows[:-1]
    out[:-1] += rows[1:]
    return _unit(out)


def main(arguments: list[str] | None = None) -> int:
    """Read a set, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall.recipe", description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=SETS, default="labelled")
    parser.add_argument("--set-aside", action="store_true")
    options = parser.parse_args(arguments)
    chats, questions = SETS[options.set]()
    recipe = Recipe(chats, encoders.installed())
    for by in ("words", "both"):
        ask(recipe, [one for one in questions if one.set_aside == options.set_aside], by)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
