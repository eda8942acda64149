"""Plain questions: the topic words of a sentence, and the messages that have some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hermes.store.engines.base import Candidate
from hermes.store.index_text import UNSPACED, fold, pieces
from hermes.store.query import And, Leaf, Node, Or, Query
from hermes.store.search.findings import Findings
from hermes.store.search.query_trees import either
from hermes.store.search.substrings import MOST_WORDS, words_around
from hermes.store.snippet import Needle, forms_needle
from hermes.store.stems import STOP_PAIRS, STOP_WORDS, stem

RELAXED = 200  # the newest messages with each word of a question; those with all of them are searched separately
FORMS = 12
GROUPS = 24  # words of a question that are searched


def may_relax(query: Query) -> bool:
    """Whether enough plain words were typed for a part of them to be an answer."""
    if not query.plain:
        return False
    words = 0
    for word in query.words:
        words += max(1, sum(len(run) // 2 for run in UNSPACED.findall(word)))
    return words >= 3


def is_question(query: Query) -> bool:
    """Whether a sentence was typed, and not just the words that matter."""
    return may_relax(query) and any(fold(word).rstrip("?!.,:") in STOP_WORDS for word in query.words)


def answer(findings: Findings, query: Query, tree: Node) -> None:
    """A sentence was typed: messages with all of its words, else those with some of its topic words.

    Its words are whole words: they are not searched inside of others. Its topic words are rarer than all of
    its words, so they are searched first; without a match of them, the sentence has none either.
    """
    findings.needles = _telling(findings.needles)
    groups = groups_of(findings, query)
    about = tuple(map(either, groups))
    with_all: list[Candidate] = []
    if len(about) > 1:
        with_all = findings.candidates(And(about), _cap(findings))
    if with_all or len(about) < 2:
        findings.add(findings.candidates(tree, findings.cap), "match")
    if findings.is_scarce():
        relax(findings, groups, with_all)


def relax(findings: Findings, groups: list[list[Leaf]], with_all: Sequence[Candidate] = ()) -> None:
    """Add the best partial matches: those with the most groups, weighted by rarity."""
    scores: dict[int, float] = {}
    coverage: dict[str, dict[int, float]] = {}
    known: dict[int, Candidate] = {}
    needles: list[Needle] = []
    cap = _cap(findings)
    total = float(findings.tx.value("SELECT coalesce(max(id), 1) FROM messages"))
    weights: dict[int, float] = {}
    for number, leaves in enumerate(groups):
        found = findings.candidates(either(leaves), cap)
        if not found and (leaves := _around(findings, leaves[0])):  # in no message: it may be a part of a word
            found = findings.candidates(Or(tuple(leaves)), cap)
        if not found:
            continue
        held = float(len(found))
        if len(found) >= cap:
            held *= total / max(1.0, total - found[-1][0])
        weight = math.log(1.0 + (total - held + 0.5) / (held + 0.5)) if held < total else 0.05
        weights[number] = weight
        for candidate in found:
            message_id, score, session_id, _ = candidate
            known[message_id] = candidate
            scores[message_id] = scores.get(message_id, 0.0) + weight * (0.5 + score)
            coverage.setdefault(session_id, {})[number] = weight
        needles += forms_needle([leaf.text for leaf in leaves])
    whole = sum(weights.values())
    for candidate in with_all:  # not all of them are among the newest with each word
        message_id, score, session_id, _ = candidate
        known[message_id] = candidate
        scores[message_id] = max(scores.get(message_id, 0.0), whole * (0.5 + score / len(groups)))
        coverage[session_id] = weights
    findings.needles = _telling(needles) or findings.needles
    bonus = {session: sum(weights.values()) for session, weights in coverage.items()}
    merged = [(key, scores[key], session, role) for key, (_, _, session, role) in known.items()]
    findings.add(merged, "relaxed", bonus)


def groups_of(findings: Findings, query: Query) -> list[list[Leaf]]:
    """The topic of a question: each content word with its forms, each pair of an unspaced script."""
    groups: dict[str, list[Leaf]] = {}
    typed = pieces(fold(" ".join(query.words)))
    for piece in typed:
        if UNSPACED.match(piece):
            for i in range(max(1, len(piece) - 1)):
                pair = piece[i : i + 2]
                if pair not in STOP_PAIRS:
                    groups.setdefault(pair, [Leaf(pair, "phrase")])
        elif piece not in STOP_WORDS and (len(piece) > 1 or piece.isdigit()):
            groups.setdefault(stem(piece), [Leaf(form, "phrase") for form in _forms(findings, piece)])
    if not groups:
        groups = {piece: [Leaf(piece, "phrase")] for piece in typed}
    return list(groups.values())[:GROUPS]


def _cap(findings: Findings) -> int:
    return max(RELAXED, findings.need + findings.need // 4)


def _forms(findings: Findings, word: str) -> list[str]:
    base = stem(word)
    forms = [word]
    if len(base) >= 3:
        found = findings.text.words_starting(findings.tx, base[: max(3, len(base) - 1)], 400)
        forms += [form for form in sorted(found, key=len) if stem(form) == base and form != word]
    return forms[:FORMS]


def _around(findings: Findings, leaf: Leaf) -> list[Leaf]:
    """Leaves for the words that contain one that no message has."""
    if not leaf.text.isalnum():
        return []
    leaves, exact = words_around(findings, leaf)
    return leaves[:MOST_WORDS] if exact else []


def _telling(needles: list[Needle]) -> list[Needle]:
    """The leaves to mark: without stop words like "the", unless only such were typed."""
    return [one for one in needles if not all(piece in STOP_WORDS for piece in one.pieces)] or needles
