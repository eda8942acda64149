"""The order of a question's partial answers: sessions by what they hold of its words, messages by what they and those beside
them hold.

Only which message holds which word counts, so every engine gives the same order. A message is worth the sum of how rare its
words are, each once. A session is worth its best message and, twice, how often its messages hold the words, with less for
each further one and for a long session. Inside a session a message is raised by its neighbours: the answer often stands next
to the words of the question. Where messages have vectors, a second look adds how near they are to what the question means.
The weights were compared on the sets of `make recall`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence, Set
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.store.engines.base import Holder, Scope, Tx
from hermes.store.search.ranking import Ranked

if TYPE_CHECKING:
    from hermes.store.search.reranking import Reranking

ROLE_WEIGHT = {"tool": 0.6, "system": 0.5}
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

    holders: Sequence[Holder]
    weight: float
    """How much it counts for a session."""
    also: Set[int] = frozenset()
    """Of a common word: older messages that hold it, visible or not."""
    held: float = 0.0
    """How many messages hold it, where `holders` are only the newest."""


class Session(msgspec.Struct):
    """A session on its way into the order."""

    id: str
    value: float
    newest: int
    """The newest of its messages that hold a word: of equal sessions the one with the newer comes first."""


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


def best_passages(
    tx: Tx,
    words: Sequence[QuestionWord],
    scope: Scope,
    need: int,
    preference: Preference | None = None,
    look: Reranking | None = None,
    *,
    holding: bool = False,
) -> Passages:
    """The best `need` messages in order, for words that some message holds, or with a second look by meaning.

    `holding`: only messages that hold a word themselves, not those next to one.
    """
    sessions, total = _extent(tx, words, scope)
    own = _message_scores(words, total)
    holders = {holder[0]: holder for word in words for holder in word.holders}
    best: dict[str, float] = {}
    newest: dict[str, int] = {}
    for message_id, session_id, role in holders.values():
        score = own[message_id]
        if role in ROLE_WEIGHT:
            score = own[message_id] = score * ROLE_WEIGHT[role]
        if score > best.get(session_id, 0.0):
            best[session_id] = score
        if message_id > newest.get(session_id, 0):
            newest[session_id] = message_id
    counts = [_counted(word, holders) for word in words]
    order = _sessions_in_order(tx, words, counts, (best, newest), (sessions, total), preference)
    held = _share_held(words, counts, total, order)
    most = max(
        need, SESSIONS_AMONG[0]
    )  # a session's best message is worth what the session is: further ones are never needed
    if look is None:
        order = order[:most]
    by_session: dict[str, dict[int, float]] = {session.id: {} for session in order}
    for message_id, session_id, _ in holders.values():
        if session_id in by_session:
            by_session[session_id][message_id] = own[message_id]
    if look is None:
        sequences = _sequences(tx, order[:LOOKED_INTO], _middles(order[:LOOKED_INTO], by_session), scope)
        kept = own.keys() | set().union(*(word.also for word in words)) if holding else None
        return Passages(_messages_in_order(order, by_session, sequences, {}, need, kept), held)
    order, sequences, near, related = _looked_again(tx, order, by_session, scope, preference, look)
    return Passages(_messages_in_order(order[:most], by_session, sequences, near, need), held, related)


def _share_held(
    words: Sequence[QuestionWord], counts: Sequence[Counter[str]], total: float, order: Sequence[Session]
) -> float:
    """How much of the words the best of the first sessions holds, the rarer the more. In a small store every word is rare."""
    values = [
        (word.weight * rarity(max(total, MANY), max(word.held, float(len(word.holders)))), count)
        for word, count in zip(words, counts, strict=True)
    ]
    whole = sum(value for value, _ in values) or 1.0
    shares = (sum(value for value, count in values if one.id in count) / whole for one in order[:10])
    return max(shares, default=0.0)


def _looked_again(
    tx: Tx,
    order: Sequence[Session],
    by_session: dict[str, dict[int, float]],
    scope: Scope,
    preference: Preference | None,
    look: Reranking,
) -> tuple[list[Session], dict[str, list[int]], dict[int, float], float]:
    """The best sessions by words and by meaning, in a new order; their messages; how near each is, and whether any is."""
    first, rest = list(order[:LOOKED_AGAIN]), list(order[LOOKED_AGAIN:])
    middles = _middles(first, by_session)
    joining = {one: at for one, at in look.candidates().items() if one not in middles}
    found = [session for session in rest if session.id in joining]
    fresh = [one for one in joining if one not in by_session]
    for session_id, _, began, active in _sizes(tx, fresh) if fresh else ():
        value = 0.0 if preference is None else preference(began, active)
        found.append(Session(session_id, value, joining[session_id]))
        by_session[session_id] = {}
    middles.update({session.id: joining[session.id] for session in found})
    sequences = _sequences(tx, [*first, *found], middles, scope)
    near = look.look(sequences)
    looked = [one for one in [*first, *found] if by_session[one.id] or sequences.get(one.id)]
    for session in looked:
        session.value += near.sessions.get(session.id, 0.0)
    ids = {session.id for session in looked}
    again = looked + [session for session in rest if session.id not in ids]
    again.sort(key=lambda one: (one.value, one.newest), reverse=True)
    return again, sequences, near.messages, near.related


def _extent(tx: Tx, words: Sequence[QuestionWord], scope: Scope) -> tuple[float, float]:
    """How many sessions and messages the search may see. What it sees of others by reference is not counted: there are at
    least twice as many as hold the commonest word."""
    row = tx.row(f"SELECT count(*), sum(s.message_count) FROM sessions s WHERE {scope.sessions}", scope.session_params)
    assert row is not None
    most = max((max(word.held, float(len(word.holders))) for word in words), default=0.0)
    return float(max(1, row[0])), max(float(row[1] or 0), 2.0 * most)


def _message_scores(words: Sequence[QuestionWord], total: float) -> dict[int, float]:
    scores: dict[int, float] = {}
    for word in words:
        value = rarity(total, max(word.held, float(len(word.holders))))
        for message_id, _, _ in word.holders:
            scores[message_id] = scores.get(message_id, 0.0) + value
    for word in words:
        if word.also:
            value = rarity(total, max(word.held, float(len(word.holders))))
            newest = {holder[0] for holder in word.holders}
            for message_id in (word.also & scores.keys()) - newest:
                scores[message_id] += value
    return scores


def _counted(word: QuestionWord, holders: dict[int, Holder]) -> Counter[str]:
    """How many messages of each session hold a word."""
    count = Counter(map(itemgetter(1), word.holders))
    if word.also:
        newest = {holder[0] for holder in word.holders}
        count.update(holders[one][1] for one in (word.also & holders.keys()) - newest)
    return count


def _sessions_in_order(
    tx: Tx,
    words: Sequence[QuestionWord],
    counts: Sequence[Counter[str]],
    found_in: tuple[dict[str, float], dict[str, int]],
    extent: tuple[float, float],
    preference: Preference | None,
) -> list[Session]:
    (best, newest), (sessions, total) = found_in, extent
    if not best:
        return []
    average = total / sessions
    weights = [
        SESSION_WEIGHT * 2.2 * word.weight * rarity(sessions, min(sessions, float(len(count))))
        for word, count in zip(words, counts, strict=True)
    ]

    def worth(session_id: str, size: float) -> float:
        slope = REPEATED * (SHORTEST + LENGTH * size / average)
        value = best[session_id]
        for count, weight in zip(counts, weights, strict=True):
            if held := count.get(session_id):
                value += weight * held / (held + slope)
        return value

    values = dict(best)  # as if all were of the same size
    for count, weight in zip(counts, weights, strict=True):
        for session_id, held in count.items():
            values[session_id] += weight * held / (held + REPEATED)
    rough = sorted(((value, newest[one], one) for one, value in values.items()), reverse=True)
    found = []
    for session_id, size, began, active in _sizes(tx, [one for _, _, one in rough[:MOST_SESSIONS]]):
        value = worth(session_id, float(size or 0))
        if preference is not None:
            value += preference(began, active)
        found.append(Session(session_id, value, newest[session_id]))
    found.sort(key=lambda one: (one.value, one.newest), reverse=True)
    last = found[-1].value
    return found + [Session(one, min(value, last), newer) for value, newer, one in rough[MOST_SESSIONS:]]


def _sizes(tx: Tx, session_ids: Sequence[str]) -> list[Any]:
    these, params = tx.among("id", session_ids)
    return tx.rows(
        f"SELECT id, message_count, started_at, coalesce(active_at, started_at) FROM sessions WHERE {these}", params
    )


def _messages_in_order(
    order: Sequence[Session],
    by_session: dict[str, dict[int, float]],
    sequences: dict[str, list[int]],
    near: dict[int, float],
    need: int,
    kept: Set[int] | None = None,
) -> list[Ranked]:
    """The hits of these sessions; `kept`: only these messages."""
    first: list[tuple[float, int, int]] = []  # value, place of the session (negative), message
    rest: list[tuple[float, int, int]] = []
    by_words: set[int] = set()
    for number, session in enumerate(order):
        own, sequence = by_session[session.id], sequences.get(session.id, ())
        scores = {**own, **_raised(own, sequence)}
        if kept is not None:
            scores = {message_id: score for message_id, score in scores.items() if message_id in kept}
        by_words.update(scores)
        for message_id in sequence:
            if message_id in near:
                scores[message_id] = scores.get(message_id, 0.0) + NEAR * near[message_id]
        best = sorted(((score, message_id) for message_id, score in scores.items()), reverse=True)
        listed = [(session.value + (score - best[0][0]), -number, message_id) for score, message_id in best]
        first += listed[:OF_A_SESSION]
        rest += [one for one in listed[OF_A_SESSION:] if one[2] in own]
    first.sort(reverse=True)
    first = _of_many_sessions(first, (SESSIONS_BY_MEANING, SESSIONS_AMONG) if near else (SESSIONS_AMONG,))
    if len(first) < need:  # nothing that holds a word is lost where there is room for it
        rest.sort(reverse=True)
        first += rest
    return [
        Ranked(
            message_id, order[-place].id, round(value, 6), "relaxed", _why(message_id in by_words, near.get(message_id))
        )
        for value, place, message_id in first[:need]
    ]


def _of_many_sessions(
    listed: list[tuple[float, int, int]], steps: Sequence[tuple[int, int]]
) -> list[tuple[float, int, int]]:
    """The same hits; where the first of them are of few sessions, the best hits of others move up among them."""
    best: dict[int, tuple[float, int, int]] = {}  # the first hit of each session
    for one in listed:
        best.setdefault(one[1], one)
    out: list[tuple[float, int, int]] = []
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


def _middles(sessions: Sequence[Session], by_session: dict[str, dict[int, float]]) -> dict[str, int]:
    """The best message of each session."""
    owns = ((session.id, by_session[session.id]) for session in sessions)
    return {one: max(own, key=lambda message_id: (own[message_id], message_id)) for one, own in owns}


def _sequences(tx: Tx, sessions: Sequence[Session], middles: dict[str, int], scope: Scope) -> dict[str, list[int]]:
    """The messages of each session that may be found, in order; of a long session those around its middle one."""
    out: dict[str, list[int]] = defaultdict(list)
    join = "JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""
    if not sessions:
        return out
    around = [(one.id, middles[one.id] - WINDOW // 2, middles[one.id] + WINDOW // 2) for one in sessions]
    spans, params = tx.spans(around)
    rows = tx.rows(
        f"SELECT m.session_id, m.id FROM {spans} JOIN messages m ON m.session_id = a.session_id AND m.id BETWEEN a.first"
        f" AND a.last {join} WHERE {scope.where} ORDER BY m.timestamp, m.id",
        (*params, *scope.params),
    )
    for session_id, message_id in rows:
        out[session_id].append(message_id)
    return out
