"""The order of a question's partial answers: sessions by what they hold of its words, messages by what they and those beside
them hold.

Only which message holds which word and the beginnings of texts count, so every engine gives the same order. A message is
worth the sum of how rare its words are, each once, and what the question's form says about it (`clues`). A session is worth
its best message and how often its messages hold the words, with less for each further one and for a long session. What the
program's own assistants said comes last, and only where it holds a word.
Where messages have vectors, how near they are to what the question means counts instead of what their neighbours hold.
The weights were compared on the sets of `make recall`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence, Set
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hermes.store.engines.base import OWN, SPEAKER, rows_among
from hermes.store.records import codec
from hermes.store.search import answers
from hermes.store.search.answers import HEAD, Clues, ClueWeights, Looked, QuestionWord
from hermes.store.search.hits import Hits, Ranked

if TYPE_CHECKING:
    from hermes.store.search.reranking import Nearness, Reranking

A_NAME = 2.0  # what a word counts for a session that is written like a name
ROLE_WEIGHT = {"tool": 0.6, "system": 0.5, OWN: 1e-6}  # the last: below every other value
MOST_SESSIONS = 200  # sessions that are ranked with their size; the others can't be among the first
LOOKED_INTO = 20  # sessions whose messages are read
WINDOW = 400  # messages of one session that are put in order
AROUND = 8  # of a session's messages that hold words: what is beside the others is not read
OF_A_SESSION = 6  # hits
MANY = 1000.0  # messages
# A message is surely about the question where the nearest one is so much nearer than chance, and it is so near itself.
RELATED, NEAREST, FAR = 2.0, 2.5, (0.0, 0.0)
REPEATED, SHORTEST, LENGTH = 1.2, 0.25, 0.75  # how soon further messages with a word stop counting


class Weights(NamedTuple):
    """How much everything counts, for a message and for a session."""

    own: float
    beside: float
    """The words of the messages before and after it."""
    next_but_one: float
    question_before: float
    """The words of the question that a message may answer."""
    near: float
    near_three: float
    clues: ClueWeights
    session_own: float
    session_words: float
    session_best: float
    session_near: float
    session_near_three: float
    session_near_whole: float
    session_time: float
    """For each degree in which a session is of the time that the question names."""
    apart: float
    """How far a session's messages stand apart."""


WORDS = Weights(
    own=1.0, beside=0.35, next_but_one=0.25, question_before=0.5, near=0.0, near_three=0.0,
    clues=ClueWeights(signed=5.0, asks=-2.0, time=6.0, number=5.0),
    session_own=1.0, session_words=2.0, session_best=0.5, session_near=0.0, session_near_three=0.0, session_near_whole=0.0,
    session_time=1.0, apart=1.0,
)  # fmt: skip
MEANING = Weights(
    own=0.25, beside=0.0, next_but_one=0.0, question_before=0.2, near=0.8, near_three=1.8,
    clues=ClueWeights(signed=2.3, asks=-1.0, time=3.0, number=2.0),
    session_own=0.2, session_words=0.25, session_best=0.3, session_near=0.6, session_near_three=0.7, session_near_whole=0.6,
    session_time=0.6, apart=0.6,
)  # fmt: skip


class Session(msgspec.Struct):
    """A session on its way into the order."""

    id: str
    words: float = 0.0
    """How much of the question's words its messages hold together."""
    own: float = 0.0
    """The value of its best message, by words."""
    time: float = 0.0
    """How well it fits the time that the question names."""
    when: float = 0.0
    """The time of the newest of its messages that hold a word: of equal sessions the later one comes first."""
    value: float = 0.0


class Message(NamedTuple):
    """A message of a session that is read."""

    id: int
    text: str = ""
    is_question: bool = False


# The beginning and the end of what people and models said. That of tools is long, and its form gives no clue.
_SAID = "CASE WHEN m.role IN ('user', 'assistant') THEN substr(m.content, {}) END"
_TEXTS = f"{_SAID.format(f'1, {HEAD}')}, {_SAID.format(-1)}"
# A hit: whether others than the program's own assistants said it, its value, the place of its session (negative), the message.
Placed = tuple[bool, float, int, int]
Preference = Callable[[float, float], float]
"""How much a session counts in addition, by the times of its first and last message."""


def _weight(word: QuestionWord) -> float:
    """How much a word counts for a session."""
    return A_NAME if word.is_name else 1.0


def rarity(total: float, held: float) -> float:
    """How much a word says that so many of all messages (or sessions) hold."""
    return math.log(1.0 + (total - held + 0.5) / (held + 0.5)) if held < total else 0.05


class Passages(msgspec.Struct):
    """The hits of a question, and how well they answer it."""

    hits: list[Ranked]
    held: float = 0.0
    """How much of the question's words the session that has the most of them holds: 1 for all."""
    related: float | None = None
    """Not below 0: the nearest message is nearer than chance brings one; None without vectors."""


class QuestionRanking:
    """Ranks the messages that a question found. `holding`: only messages that hold a word themselves, not those next
    to one."""

    def __init__(
        self, hits: Hits, question: str, words: Sequence[QuestionWord], preference: Preference | None, *, holding: bool
    ) -> None:
        self._tx, self._scope, self._question, self._words = hits.tx, hits.scope, question, words
        self._holding, self._preference = holding, preference
        self._sessions, self._total = self._extent()
        self._holders = {holder[0]: holder for word in words for holder in word.holders}
        self._by_program = {holder[0] for holder in self._holders.values() if holder[2] == OWN}
        for word in words:
            word.messages = {holder[0] for holder in word.holders} | (word.also & self._holders.keys())
            word.sessions = Counter(self._holders[one][1] for one in word.messages - self._by_program)
            word.value = rarity(max(self._total, MANY), word.held)
        self._own = self._message_scores()
        # The messages that hold a word, and their scores.
        self._by_session: dict[str, dict[int, float]] = defaultdict(dict)
        for message_id, session_id, _ in self._holders.values():
            self._by_session[session_id][message_id] = self._own[message_id]

    def best(self, need: int, look: Reranking | None = None) -> Passages:
        """The best `need` messages in order, for words that some message holds, or with a second look by meaning."""
        weights = WORDS if look is None else MEANING
        order = self._sessions_in_order(weights)
        held = self._share_held(order)
        middles = self._middles(order[:LOOKED_INTO])
        if look is not None:
            joining = {one: at for one, at in look.candidates(alone=not order).items() if one not in middles}
            middles.update(joining)
            fresh = [one for one in joining if one not in self._by_session]
            times = self._times(fresh)
            order += [
                Session(one, time=self._fits(times.get(one)), when=times.get(one, (0.0, 0.0))[1]) for one in fresh
            ]
        sequences = self._sequences(middles, whole=look is not None or answers.may_name(self._question))
        near = look.look({one: [message.id for message in some] for one, some in sequences.items()}) if look else None
        hits = self._in_order(order, sequences, near, weights, need)
        related = None if near is None else near.related
        trusted = set() if self._are_weak(order, sequences, near) else self._sessions_of_names()
        if trusted is not None:
            hits = [
                hit if hit.session_id in trusted else msgspec.structs.replace(hit, confidence="weak") for hit in hits
            ]
        return Passages(hits, held, related)

    def _sessions_of_names(self) -> Set[str] | None:
        """The sessions that hold a name of the question; None where it has none, or one that is too common to know all of."""
        names = [word for word in self._words if word.is_name and word.sessions and not answers.is_a_time(word.text)]
        if not names or any(word.also for word in names) or not answers.tells_names(self._question):
            return None
        return set().union(*(word.sessions for word in names))

    def _extent(self) -> tuple[float, float]:
        """How many sessions and messages the search may see. What it sees of others by reference is not counted: there are at
        least twice as many as hold the commonest word."""
        sql = f"SELECT count(*), sum(s.message_count) FROM sessions s WHERE {self._scope.sessions}"
        row = self._tx.row(sql, self._scope.session_params)
        assert row is not None
        most = max((word.held for word in self._words), default=0.0)
        return float(max(1, row[0])), max(float(row[1] or 0), 2.0 * most)

    def _message_scores(self) -> dict[int, float]:
        scores: dict[int, float] = defaultdict(float)
        for word in self._words:
            value = rarity(self._total, word.held)
            for message_id in word.messages:
                scores[message_id] += value
        return {one: score * ROLE_WEIGHT.get(self._holders[one][2], 1.0) for one, score in scores.items()}

    def _sessions_in_order(self, weights: Weights) -> list[Session]:
        """The sessions that hold a word, by what they hold: the order in which they are looked into."""
        average = self._total / self._sessions
        worth = [
            2.2 * _weight(word) * rarity(self._sessions, min(self._sessions, float(len(word.sessions))))
            for word in self._words
        ]
        newest = {one: max(messages) for one, messages in self._by_session.items()}
        best = {one: max(messages.values()) for one, messages in self._by_session.items()}
        values = dict(best)  # as if all were of the same size
        for word, value in zip(self._words, worth, strict=True):
            for session_id, held in word.sessions.items():
                values[session_id] += 2.0 * value * held / (held + REPEATED)
        rough = sorted(((value, newest[one], one) for one, value in values.items()), reverse=True)
        first = [one for _, _, one in rough[:MOST_SESSIONS]]
        at = [newest[one] for one in first]
        times: dict[int, float] = dict(rows_among(self._tx, "SELECT id, timestamp FROM messages WHERE {these}", at))
        lasted = self._times(first) if self._preference else {}
        found = []
        sizes = rows_among(self._tx, "SELECT id, message_count FROM sessions WHERE {these}", first)
        for session_id, size in sizes:
            slope = REPEATED * (SHORTEST + LENGTH * float(size or 0) / average)
            held_words = sum(
                value * often / (often + slope)
                for word, value in zip(self._words, worth, strict=True)
                if (often := word.sessions.get(session_id))
            )
            time = self._fits(lasted.get(session_id))
            when = times.get(newest[session_id], 0.0)
            value = best[session_id] + 2.0 * held_words + time
            found.append(Session(session_id, held_words, best[session_id], time, when, value))
        found.sort(key=_place, reverse=True)
        least = found[-1].value if found else 0.0
        rest = [Session(one, own=best[one], value=min(value, least)) for value, _, one in rough[MOST_SESSIONS:]]
        return found + rest

    def _times(self, session_ids: Sequence[str]) -> dict[str, tuple[float, float]]:
        """The times of the first and the last message of each session."""
        moment = "(SELECT {}(m.timestamp) FROM messages m WHERE m.session_id = sessions.id)"
        sql = f"SELECT id, {moment.format('min')}, {moment.format('max')} FROM sessions WHERE {{these}}"
        return {row[0]: (row[1], row[2]) for row in rows_among(self._tx, sql, session_ids) if row[1] is not None}

    def _fits(self, lasted: tuple[float, float] | None) -> float:
        """How well a session fits the time that the question names."""
        return self._preference(*lasted) if self._preference and lasted else 0.0

    def _share_held(self, order: Sequence[Session]) -> float:
        """How much of the words the best of the first sessions holds, the rarer the more. In a small store every word is rare."""
        values = [_weight(word) * word.value for word in self._words]
        shares = (
            sum(value for value, word in zip(values, self._words, strict=True) if one.id in word.sessions)
            for one in order[:10]
        )
        return max(shares, default=0.0) / (sum(values) or 1.0)

    def _middles(self, sessions: Sequence[Session]) -> dict[str, int]:
        """The best message of each session."""
        owns = ((session.id, self._by_session[session.id]) for session in sessions)
        return {one: max(own, key=lambda message_id: (own[message_id], message_id)) for one, own in owns}

    def _sequences(self, middles: dict[str, int], *, whole: bool) -> dict[str, list[Message]]:
        """The messages of each session that may be found, in order; of a long session those around its middle one. Unless
        `whole`, only those that hold most of the words, and those around them."""
        if not middles:
            return {}
        spans, params = self._tx.spans([(one, at - WINDOW // 2, at + WINDOW // 2) for one, at in middles.items()])
        ids: dict[str, list[int]] = defaultdict(list)
        # The index alone answers this: no message is read.
        sql = (
            f"SELECT m.session_id, m.id FROM {spans} JOIN messages m ON m.session_id = a.session_id"
            " AND m.id BETWEEN a.first AND a.last ORDER BY m.timestamp, m.id"
        )
        for session_id, message_id in self._tx.rows(sql, params):
            ids[session_id].append(message_id)
        if not whole:
            ids = {one: [some[at] for at in _around(self._best_of(one), some)] for one, some in ids.items()}
        join = "JOIN sessions s ON s.id = m.session_id" if self._scope.needs_sessions else ""
        sql = f"SELECT m.id, {SPEAKER}, {_TEXTS} FROM messages m {join} WHERE {{these}} AND {self._scope.where}"
        every = [one for some in ids.values() for one in some]
        rows = rows_among(self._tx, sql, every, "m.id", self._scope.params)
        found = {row[0]: _message(row[0], *row[2:]) for row in rows if row[1] != OWN}
        return {session: [found[one] for one in some if one in found] for session, some in ids.items()}

    def _best_of(self, session_id: str) -> Set[int]:
        """The messages of a session that hold most of the words."""
        own = self._by_session.get(session_id, {})
        return own.keys() if len(own) <= AROUND else {*nlargest(AROUND, own, key=lambda one: (own[one], one))}

    def _in_order(
        self,
        order: list[Session],
        sequences: dict[str, list[Message]],
        near: Nearness | None,
        weights: Weights,
        need: int,
    ) -> list[Ranked]:
        """The hits of these sessions."""
        clues = Clues(self._question, weights.clues)
        kept = self._own.keys() | set().union(*(word.also for word in self._words)) if self._holding else None
        scored: dict[str, dict[int, float]] = {}
        messages = near.messages if near else {}
        for session in order:
            own = self._by_session.get(session.id, {})
            sequence = sequences.get(session.id, ())
            scores = {one: weights.own * value for one, value in own.items()}
            if sequence:
                scores.update(_raised(own, sequence, weights, clues, messages))
            if kept is not None:
                scores = {message_id: score for message_id, score in scores.items() if message_id in kept}
            session.value = (
                weights.session_words * session.words
                + weights.session_own * session.own
                + weights.session_best * max(scores.values(), default=0.0)
                + weights.session_time * session.time
            )
            if near is not None:
                nearest = [messages[one.id] for one in sequence if one.id in messages]
                session.value += weights.session_near * max((one[0] for one in nearest), default=0.0)
                session.value += weights.session_near_three * max((one[1] for one in nearest), default=0.0)
                session.value += weights.session_near_whole * near.sessions.get(session.id, 0.0)
            scored[session.id] = scores
        order = sorted(order, key=_place, reverse=True)
        first: list[Placed] = []
        rest: list[Placed] = []
        for number, session in enumerate(order):
            best = sorted(
                ((one not in self._by_program, score, one) for one, score in scored[session.id].items()), reverse=True
            )
            listed = [
                (is_others, session.value + weights.apart * (score - best[0][1]), -number, message_id)
                for is_others, score, message_id in best
            ]
            chosen = [one for one in listed[:OF_A_SESSION] if one[0]]
            first += chosen
            rest += [one for one in listed[len(chosen) :] if one[3] in self._own]
        first.sort(reverse=True)
        if len(first) < need:  # nothing that holds a word is lost where there is room for it
            first += sorted(rest, reverse=True)
        sure = (
            {one for one, (alone, _) in messages.items() if alone >= NEAREST}
            if near and near.related >= RELATED
            else ()
        )
        return [
            Ranked(one, order[-place].id, round(value, 6), "relaxed", _why(one in self._own, messages.get(one)),
                   "sure" if one in sure else "likely")
            for _, value, place, one in first[:need]
        ]  # fmt: skip

    def _are_weak(self, order: Sequence[Session], sequences: dict[str, list[Message]], near: Nearness | None) -> bool:
        """Whether something speaks against all hits; the sessions have their values."""
        looked = []
        is_read = near is not None or answers.may_name(self._question)
        nearness = near.messages if near else {}
        for session in order:
            some = sequences.get(session.id)
            if not some:
                continue
            value = session.value if near is None else session.own + 2.0 * session.words
            messages = [(one.id, one.text, sum(nearness.get(one.id, FAR))) for one in some] if is_read else []
            looked.append(Looked(session.id, value, session.time > 0.0, messages))
        related = None if near is None else near.related
        return answers.is_weak(
            self._question, self._words, looked, named_time=self._preference is not None, related=related
        )


def _message(message_id: int, head: str | bytes | None, end: str | bytes | None) -> Message:
    return Message(message_id, str(codec.restored(head) or ""), end in ("?", "？"))


def _around(own: Container[int], sequence: Sequence[int]) -> list[int]:
    """The places of a sequence at which a message holds a word, and those next to them and next but one."""
    held = [place for place, message_id in enumerate(sequence) if message_id in own]
    return sorted({at for place in held for at in range(max(0, place - 2), min(len(sequence), place + 3))})


def _place(session: Session) -> tuple[float, float]:
    return session.value, session.when


def _why(by_words: bool, near: tuple[float, float] | None) -> str:
    if near is None or (by_words and near[0] < 1.0):
        return "words"
    return "both" if by_words else "meaning"


def _raised(
    own: dict[int, float],
    sequence: Sequence[Message],
    weights: Weights,
    clues: Clues,
    near: dict[int, tuple[float, float]],
) -> dict[int, float]:
    """The messages of a session that hold a word, stand near one that does, or are near by meaning, each with its value."""
    scores: dict[int, float] = {}
    values = [own.get(message.id, 0.0) for message in sequence]
    padded = [0.0, 0.0, *values, 0.0, 0.0]
    for number in range(len(sequence)) if near else _around(own, [message.id for message in sequence]):
        message = sequence[number]
        far, before, value, after, last = padded[number : number + 5]
        nearness = near.get(message.id)
        if nearness is None and far + before + value + after + last <= 0.0:
            continue
        score = weights.own * value + weights.beside * (before + after) + weights.next_but_one * (far + last)
        score += clues.value(message.text, is_question=message.is_question)
        if number and sequence[number - 1].is_question:
            score += weights.question_before * before
        if nearness is not None:
            score += weights.near * nearness[0] + weights.near_three * nearness[1]
        scores[message.id] = score
    return scores
