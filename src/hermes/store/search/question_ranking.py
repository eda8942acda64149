"""The order of a question's partial answers: sessions by what they hold of its words, messages by what they and those beside
them hold.

Only which message holds which word counts, so every engine gives the same order. A message is worth the sum of how rare its
words are, each once. A session is worth its best message and, twice, how often its messages hold the words, with less for
each further one and for a long session. Inside a session a message is raised by its neighbours: the answer often stands next
to the words of the question. What the program's own assistants said comes last, and only where it holds a word.
Where messages have vectors, a second look adds how near they are to what the question means.
The weights were compared on the sets of `make recall`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence, Set
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.store.engines.base import OWN, SPEAKER, Holder, Scope, Tx, rows_among
from hermes.store.query import Leaf
from hermes.store.search.hits import Ranked

if TYPE_CHECKING:
    from hermes.store.search.reranking import Nearness, Reranking

ROLE_WEIGHT = {"tool": 0.6, "system": 0.5, OWN: 1e-6}  # the last: below every other value
MOST_SESSIONS = 200  # sessions that are ranked with their size; the others can't be among the first
LOOKED_INTO = 60  # sessions whose messages are ranked with their neighbours
WINDOW = 400  # messages of one session that are put in order
OF_A_SESSION = 6  # hits
SESSIONS_AMONG = (20, 10)  # among so many first hits there are so many sessions
SESSIONS_BY_MEANING = (10, 6)  # by words alone this would take places of messages that are right
LOOKED_AGAIN = 40  # sessions whose messages are compared with what the question means
NEAR = 4.0  # what a message counts for each deviation it is nearer than the middle
BESIDE, NEXT_BUT_ONE = 0.4, 0.2
SESSION_WEIGHT = 2.0
MANY = 1000.0  # messages
REPEATED, SHORTEST, LENGTH = 1.2, 0.25, 0.75  # how soon further messages with a word stop counting


class QuestionWord(msgspec.Struct):
    """One word of a question, and the messages that hold a form of it."""

    leaves: list[Leaf]
    """Its forms."""
    weight: float = 1.0
    """How much it counts for a session."""
    holders: Sequence[Holder] = ()
    also: Set[int] = frozenset()
    """Of a common word: older messages that hold it, visible or not."""
    held: float = 0.0
    """How many messages hold it, where `holders` are only the newest."""

    def older(self, known: Set[int]) -> Set[int]:
        """The known messages that hold it and are older than its `holders`."""
        return (self.also & known) - {holder[0] for holder in self.holders} if self.also else frozenset()


class Session(msgspec.Struct):
    """A session on its way into the order."""

    id: str
    value: float
    when: float = 0.0
    """The time of the newest of its messages that hold a word: of equal sessions the later one comes first."""


Placed = tuple[float, int, int]  # a hit: its value, the place of its session (negative), the message
Preference = Callable[[float, float], float]
"""What a session counts in addition, by when it began and was last active."""


def rarity(total: float, held: float) -> float:
    """How much a word says that so many of all messages (or sessions) hold."""
    return math.log(1.0 + (total - held + 0.5) / (held + 0.5)) if held < total else 0.05


class Passages(msgspec.Struct):
    """What a question found."""

    hits: list[Ranked]
    held: float = 0.0
    """How much of the question's words the session that has the most of them holds: 1 for all."""
    related: float | None = None
    """Not below 0: the nearest message is nearer than chance brings one; None without vectors."""


class QuestionRanking:
    """What a question found, on its way into an order. `holding`: only messages that hold a word themselves, not those next
    to one."""

    def __init__(
        self, tx: Tx, scope: Scope, words: Sequence[QuestionWord], preference: Preference | None, *, holding: bool
    ) -> None:
        self._tx, self._scope, self._words, self._holding = tx, scope, words, holding
        self._preference: Preference = preference or (lambda began, active: 0.0)
        self._sessions, self._total = self._extent()
        self._holders = {holder[0]: holder for word in words for holder in word.holders}
        self._said_here = {holder[0] for holder in self._holders.values() if holder[2] == OWN}
        self._own = self._message_scores()
        self._counts = [self._counted(word) for word in words]
        # The messages that hold a word, and their scores.
        self._by_session: dict[str, dict[int, float]] = defaultdict(dict)
        for message_id, session_id, _ in self._holders.values():
            self._by_session[session_id][message_id] = self._own[message_id]

    def best(self, need: int, look: Reranking | None = None) -> Passages:
        """The best `need` messages in order, for words that some message holds, or with a second look by meaning."""
        order = self._sessions_in_order()
        held = self._share_held(order)
        # A session's best message is worth what the session is: more are never needed.
        most = len(order) if self._said_here else max(need, SESSIONS_AMONG[0])
        if look is not None:
            order, sequences, near = self._looked_again(order, look)
            return Passages(self._messages_in_order(order[:most], sequences, near.messages, need), held, near.related)
        order = order[:most]
        sequences = self._sequences(self._middles(order[:LOOKED_INTO]))
        return Passages(self._messages_in_order(order, sequences, {}, need), held)

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
            for message_id in [holder[0] for holder in word.holders] + [*word.older(self._holders.keys())]:
                scores[message_id] += value
        return {one: score * ROLE_WEIGHT.get(self._holders[one][2], 1.0) for one, score in scores.items()}

    def _counted(self, word: QuestionWord) -> Counter[str]:
        """How many messages of each session hold a word."""
        count = Counter(map(itemgetter(1), word.holders))
        count.update(self._holders[one][1] for one in word.older(self._holders.keys()))
        return count

    def _said_here_of(self, word: QuestionWord) -> Counter[str]:
        return Counter(holder[1] for holder in word.holders if holder[0] in self._said_here)

    def _sessions_in_order(self) -> list[Session]:
        average = self._total / self._sessions
        weights = [
            SESSION_WEIGHT * 2.2 * word.weight * rarity(self._sessions, min(self._sessions, float(len(count))))
            for word, count in zip(self._words, self._counts, strict=True)
        ]
        counts = [count - self._said_here_of(word) for word, count in zip(self._words, self._counts, strict=True)]
        newest = {one: max(messages) for one, messages in self._by_session.items()}
        best = {one: max(messages.values()) for one, messages in self._by_session.items()}
        values = dict(best)  # as if all were of the same size
        for count, weight in zip(counts, weights, strict=True):
            for session_id, held in count.items():
                values[session_id] += weight * held / (held + REPEATED)
        rough = sorted(((value, newest[one], one) for one, value in values.items()), reverse=True)
        at = [newest[one] for _, _, one in rough[:MOST_SESSIONS]]
        times: dict[int, float] = dict(rows_among(self._tx, "SELECT id, timestamp FROM messages WHERE {these}", at))
        found = []
        for session_id, size, began, active in self._sizes([one for _, _, one in rough[:MOST_SESSIONS]]):
            slope = REPEATED * (SHORTEST + LENGTH * float(size or 0) / average)
            value = best[session_id] + self._preference(began, active)
            for count, weight in zip(counts, weights, strict=True):
                if often := count.get(session_id):
                    value += weight * often / (often + slope)
            found.append(Session(session_id, value, times.get(newest[session_id], 0.0)))
        found.sort(key=_place, reverse=True)
        return found + [Session(one, min(value, found[-1].value)) for value, _, one in rough[MOST_SESSIONS:]]

    def _share_held(self, order: Sequence[Session]) -> float:
        """How much of the words the best of the first sessions holds, the rarer the more. In a small store every word is rare."""
        values = [word.weight * rarity(max(self._total, MANY), word.held) for word in self._words]
        shares = (
            sum(value for value, count in zip(values, self._counts, strict=True) if one.id in count)
            for one in order[:10]
        )
        return max(shares, default=0.0) / (sum(values) or 1.0)

    def _looked_again(
        self, order: Sequence[Session], look: Reranking
    ) -> tuple[list[Session], dict[str, list[int]], Nearness]:
        """The best sessions by words and by meaning, in a new order; their messages, and how near each is."""
        first, rest = list(order[:LOOKED_AGAIN]), list(order[LOOKED_AGAIN:])
        middles = self._middles(first)
        joining = {one: at for one, at in look.candidates().items() if one not in middles}
        found = [session for session in rest if session.id in joining]
        for session_id, _, began, active in self._sizes([one for one in joining if one not in self._by_session]):
            found.append(Session(session_id, self._preference(began, active), active))
        middles.update({session.id: joining[session.id] for session in found})
        sequences = self._sequences(middles)
        near = look.look(sequences)
        looked = [one for one in [*first, *found] if one.id in self._by_session or sequences.get(one.id)]
        for session in looked:
            session.value += near.sessions.get(session.id, 0.0)
        ids = {session.id for session in looked}
        again = looked + [session for session in rest if session.id not in ids]
        return sorted(again, key=_place, reverse=True), sequences, near

    def _sizes(self, session_ids: Sequence[str]) -> list[Any]:
        columns = "id, message_count, started_at, coalesce(active_at, started_at)"
        return [*rows_among(self._tx, f"SELECT {columns} FROM sessions WHERE {{these}}", session_ids)]

    def _middles(self, sessions: Sequence[Session]) -> dict[str, int]:
        """The best message of each session."""
        owns = ((session.id, self._by_session[session.id]) for session in sessions)
        return {one: max(own, key=lambda message_id: (own[message_id], message_id)) for one, own in owns}

    def _sequences(self, middles: dict[str, int]) -> dict[str, list[int]]:
        """The messages of each session that may be found, in order; of a long session those around its middle one."""
        out: dict[str, list[int]] = defaultdict(list)
        if middles:
            join = "JOIN sessions s ON s.id = m.session_id" if self._scope.needs_sessions else ""
            spans, params = self._tx.spans([(one, at - WINDOW // 2, at + WINDOW // 2) for one, at in middles.items()])
            rows = self._tx.rows(
                f"SELECT m.session_id, m.id, {SPEAKER} FROM {spans} JOIN messages m ON m.session_id = a.session_id"
                f" AND m.id BETWEEN a.first AND a.last {join} WHERE {self._scope.where} ORDER BY m.timestamp, m.id",
                (*params, *self._scope.params),
            )
            for session_id, message_id, speaker in rows:
                if speaker != OWN:
                    out[session_id].append(message_id)
        return out

    def _messages_in_order(
        self, order: Sequence[Session], sequences: dict[str, list[int]], near: dict[int, float], need: int
    ) -> list[Ranked]:
        """The hits of these sessions."""
        kept = self._own.keys() | set().union(*(word.also for word in self._words)) if self._holding else None
        first: list[Placed] = []
        rest: list[Placed] = []
        said_here: list[Placed] = []
        by_words: set[int] = set()
        for number, session in enumerate(order):
            own, sequence = self._by_session.get(session.id, {}), sequences.get(session.id, ())
            scores = {**own, **_raised(own, sequence)}
            if kept is not None:
                scores = {message_id: score for message_id, score in scores.items() if message_id in kept}
            by_words.update(scores)
            for message_id in sequence:
                if message_id in near:
                    scores[message_id] = scores.get(message_id, 0.0) + NEAR * near[message_id]
            said_here += [(scores.pop(one), -number, one) for one in self._said_here & scores.keys()]
            best = sorted(((score, message_id) for message_id, score in scores.items()), reverse=True)
            listed = [(session.value + (score - best[0][0]), -number, message_id) for score, message_id in best]
            first += listed[:OF_A_SESSION]
            rest += [one for one in listed[OF_A_SESSION:] if one[2] in own]
        first = _of_many_sessions(
            sorted(first, reverse=True), (SESSIONS_BY_MEANING, SESSIONS_AMONG) if near else (SESSIONS_AMONG,)
        )
        if len(first) < need:  # nothing that holds a word is lost where there is room for it
            first += sorted(rest, reverse=True) + sorted(said_here, reverse=True)
        return [
            Ranked(one, order[-place].id, round(value, 6), "relaxed", _why(one in by_words, near.get(one)))
            for value, place, one in first[:need]
        ]


def _place(session: Session) -> tuple[float, float]:
    return session.value, session.when


def _of_many_sessions(listed: list[Placed], steps: Sequence[tuple[int, int]]) -> list[Placed]:
    """Reorder hits so that the first ones are of enough sessions: where they are of few, the best of others move up."""
    best: dict[int, Placed] = {}  # the first hit of each session
    for one in listed:
        best.setdefault(one[1], one)
    out: list[Placed] = []
    seen: set[int] = set()
    taken: set[int] = set()
    waiting, others = iter(listed), iter(best.values())
    for among, sessions in steps:
        while len(out) < min(among, len(listed)):
            wanted = min(sessions, len(best)) - len(seen)
            if among - len(out) > wanted:
                one = next(one for one in waiting if one[2] not in taken)
            else:
                one = next(one for one in others if one[1] not in seen)
            out.append(one)
            seen.add(one[1])
            taken.add(one[2])
    return [*out, *(one for one in waiting if one[2] not in taken)]


def _why(by_words: bool, near: float | None) -> str:
    if near is None or (by_words and near < 1.0):
        return "words"
    return "both" if by_words else "meaning"


def _raised(own: dict[int, float], sequence: Sequence[int]) -> dict[int, float]:
    """The messages of a session that hold a word or stand near one that does, each with its neighbours' part."""
    scores: dict[int, float] = {}
    if not own:
        return scores
    values = [own.get(message_id, 0.0) for message_id in sequence]
    padded = [0.0, 0.0, *values, 0.0, 0.0]
    for number, message_id in enumerate(sequence):
        far, near, value, after, last = padded[number : number + 5]
        score = value + BESIDE * (near + after) + NEXT_BUT_ONE * (far + last)
        if score > 0.0:
            scores[message_id] = score
    return scores
