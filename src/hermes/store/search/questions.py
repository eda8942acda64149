"""Plain questions: the topic words of a sentence, and the messages that have some of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from hermes import times
from hermes.store.engines.base import Scope, Tx
from hermes.store.index_text import UNSPACED, fold, pieces
from hermes.store.query import And, Leaf, Node, Query, positive
from hermes.store.search.findings import Findings
from hermes.store.search.query_trees import either
from hermes.store.search.question_ranking import Passages, Preference, QuestionWord, best_passages
from hermes.store.search.ranking import Ranked
from hermes.store.search.substrings import MOST_WORDS, words_around
from hermes.store.snippet import Needle, forms_needle
from hermes.store.stems import STOP_PAIRS, STOP_WORDS, language_of, stemmer

if TYPE_CHECKING:
    from hermes.store.search.reranking import Reranking

ROWS = 8_000  # messages that are ranked, each once for every word of a question that it holds
FEWEST, MOST = 400, 2_000  # of one word, the newest
OLDER = 4  # of a word that more messages hold: so many times as many count where another word is held
A_NAME = 2.0  # what a word counts for a session that is written like a name
FORMS = 12
LONG_ENOUGH = 5  # letters of a word that may be a part of others: "race" in "bracelet" is chance
GROUPS = 24  # words of a question that are searched
OF_A_TIME = 10  # sessions of the time a question names, where nothing else of that time was found
TIMES = 2  # of those that a question names, the first: a month without a year is one of many years
# The share of a question's words, by how rare they are, that the best session must hold for there to be an answer at all.
# Where it is less, a message must be nearer than chance by so much. docs/benchmarks.md has what others lose and give.
WORDS_ALONE, WITH_MEANING, NEARER = 0.12, 0.27, 0.5
_INTERROGATIVE = re.compile(
    "什么|怎么|怎样|哪|谁|吗|呢|几|多少|为何|为什|何|誰|どこ|どう|いつ|なぜ|どの|무엇|어디|언제|누가|누구|어떻게|왜"
)


class Group:
    """One word a question asks about: its forms, and what it counts."""

    __slots__ = ("leaves", "weight")

    def __init__(self, leaves: list[Leaf], weight: float = 1.0) -> None:
        self.leaves, self.weight = leaves, weight


def may_relax(query: Query) -> bool:
    """Whether enough plain words were typed for a part of them to be an answer."""
    return query.plain and _length(query.words) >= 3


def _length(words: Sequence[str]) -> int:
    return sum(max(1, sum(len(run) // 2 for run in UNSPACED.findall(word))) for word in words)


def is_question(query: Query) -> bool:
    """Whether a sentence was typed, and not just the words that matter. A title in quotes may stand in it."""
    if query.plain:
        return _length(query.words) >= 3 and any(map(_is_stop_word, query.words))
    if not isinstance(query.tree, And) or any(not isinstance(one, Leaf) or one.prefix for one in query.tree.children):
        return False
    around = [leaf.text for leaf in positive(query.tree) if leaf.kind == "word"]
    return len(around) >= 3 and any(map(_is_stop_word, around))


def _is_stop_word(word: str) -> bool:
    return fold(word).strip("?!.,:;¿¡ ") in STOP_WORDS


def _asks(query: Query) -> bool:
    """Whether a text of a script without spaces, where no stop word stands alone, is a question."""
    text = "".join(query.words).rstrip()
    return UNSPACED.search(fold(text)) is not None and (
        text.endswith(("?", "？")) or _INTERROGATIVE.search(text) is not None
    )


def answer(findings: Findings, query: Query, tree: Node) -> None:
    """A sentence was typed: messages with all of its words, else those with some of its topic words.

    Its words are whole words: they are not searched inside of others. Its topic words are rarer than all of
    its words, so they are searched first; without a match of them, the sentence has none either.
    """
    findings.needles = _telling(findings.needles)
    groups = groups_of(findings, query)
    words = _held(findings, groups)
    by_meaning = findings.by == "meaning"
    if not by_meaning and (len(groups) < 2 or _some_hold_all(findings, groups, words)):
        for block in findings.blocks(tree):
            findings.add(block, "match")
    if findings.is_scarce():
        _add_passages(findings, query, groups, words)


def relax(findings: Findings, query: Query) -> None:
    """Add the best partial matches: what a message and its session have of the words, the rarer the better."""
    groups = groups_of(findings, query)
    _add_passages(findings, query, groups, _held(findings, groups), holding=not _asks(query))


def _add_passages(
    findings: Findings, query: Query, groups: Sequence[Group], words: Sequence[QuestionWord], *, holding: bool = False
) -> None:
    """Add the best passages. `holding`: only messages that hold a word themselves, not those next to one."""
    needles = [one for group in groups for one in forms_needle([leaf.text for leaf in group.leaves])]
    findings.needles = _telling(needles) or findings.needles
    held = any(word.holders for word in words)
    asked = " ".join(query.words)
    from hermes.store.search import periods  # its patterns are compiled for questions only

    named = periods.spans(asked, times.now())
    look = None if holding else findings.reranking(asked, lambda: _spoken(findings, asked, groups, words))
    if held or look is not None:
        _add_best(findings, asked, words, look, periods.preference(named), holding=holding)
    if (
        named
        and findings.missing > 0
        and periods.names_no_topic(asked, times.now())
        and not _is_of_a_time(findings.tx, [hit.id for hit in findings.hits], named)
    ):
        _add_fresh(findings, _of_a_time(findings.tx, findings.scope, named, periods.PREFERRED))


def _of_a_time(tx: Tx, scope: Scope, spans: Sequence[tuple[float, float]], score: float) -> list[Ranked]:
    """What a person said first in each session of these times, the last active session first.

    For "what did we talk about last week", where nothing else of that time was found.
    """
    out: list[Ranked] = []
    for start, end in spans[:TIMES]:
        rows = tx.rows(
            "SELECT m.session_id, min(m.id) FROM sessions s JOIN messages m ON m.session_id = s.id WHERE s.started_at < ? AND"
            " coalesce(s.active_at, s.started_at) >= ? AND m.role = 'user' AND m.timestamp >= ? AND m.timestamp < ?"
            f" AND {scope.where} GROUP BY m.session_id ORDER BY max(m.timestamp) DESC, m.session_id LIMIT {OF_A_TIME}",
            (end, start, start, end, *scope.params),
        )
        seen = {one.session_id for one in out}
        out += [Ranked(row[1], row[0], score, "relaxed", "time") for row in rows if row[0] not in seen]
    return out[:OF_A_TIME]


def _is_of_a_time(tx: Tx, ids: Sequence[int], spans: Sequence[tuple[float, float]]) -> bool:
    """Whether one of these messages is of one of these times."""
    marks = ", ".join("?" * len(ids)) or "NULL"
    rows = tx.rows(f"SELECT timestamp FROM messages WHERE id IN ({marks})", ids)
    return any(start <= row[0] < end for row in rows for start, end in spans)


def _spoken(findings: Findings, asked: str, groups: Sequence[Group], words: Sequence[QuestionWord]) -> str | None:
    """A question about somebody who writes here, as they would say it."""
    from hermes.store.search import persons  # only where messages have vectors

    holders = {
        group.leaves[0].text: [holder[0] for holder in word.holders] for group, word in zip(groups, words, strict=True)
    }
    return persons.spoken(findings.tx, asked, holders)


def _add_best(
    findings: Findings,
    asked: str,
    words: Sequence[QuestionWord],
    look: Reranking | None,
    preferred: Preference | None,
    *,
    holding: bool,
) -> None:
    need = findings.missing + len(findings.seen)
    if findings.by == "meaning" and look is not None:
        words = []
    found = best_passages(findings.tx, words, findings.scope, need, preferred, look, holding=holding)
    if preferred is None and not findings.hits and not _is_answered(found, asked):
        return
    _add_fresh(findings, found.hits)


def _add_fresh(findings: Findings, hits: Sequence[Ranked]) -> None:
    fresh = [hit for hit in hits if hit.id not in findings.seen][: findings.missing]
    findings.seen.update(hit.id for hit in fresh)
    findings.hits += fresh


def _is_answered(found: Passages, asked: str) -> bool:
    """Whether what was found can be an answer: a session holds enough of the words, or says something of the kind."""
    enough = WORDS_ALONE if found.related is None else WITH_MEANING
    if UNSPACED.search(fold(asked)):
        enough /= 2  # pairs of characters are more than words
    return found.held >= enough or (found.related is not None and found.related >= NEARER)


def _held(findings: Findings, groups: Sequence[Group]) -> list[QuestionWord]:
    """Each word with the messages that hold it."""
    text, tx, scope = findings.text, findings.tx, findings.scope
    most = min(MOST, max(FEWEST, ROWS // max(1, len(groups))))
    found = text.holders(tx, [either(group.leaves) for group in groups], scope, most)
    parts: list[int] = []  # words in no message: they may be parts of others
    for number, group in enumerate(groups):
        if not found[number] and (around := _around(findings, group.leaves[0])):
            group.leaves = around
            parts.append(number)
    if parts:
        again = text.holders(tx, [either(groups[number].leaves) for number in parts], scope, most)
        for number, holders in zip(parts, again, strict=True):
            found[number] = holders
    common = [number for number, holders in enumerate(found) if len(holders) == most]
    older = text.holder_ids(tx, [either(groups[number].leaves) for number in common], OLDER * most) if common else []
    words = [
        QuestionWord(holders, group.weight, held=float(len(holders)))
        for group, holders in zip(groups, found, strict=True)
    ]
    for number, ids in zip(common, older, strict=True):
        word = words[number]
        word.also = frozenset(ids)
        newest, oldest = word.holders[0][0], word.holders[-1][0]
        word.held *= newest / max(1, newest - oldest)
    return words


def _some_hold_all(findings: Findings, groups: Sequence[Group], words: Sequence[QuestionWord]) -> bool:
    """Whether some message has all that a question is about."""
    if any(word.also for word in words):
        return bool(findings.candidates(And(tuple(either(group.leaves) for group in groups)), 1))
    shared: Set[int] | None = None
    for word in sorted(words, key=lambda one: len(one.holders)):
        ids = {holder[0] for holder in word.holders}
        shared = ids if shared is None else shared & ids
        if not shared:
            return False
    return True


def groups_of(findings: Findings, query: Query) -> list[Group]:
    """The topic of a question: each content word with its forms, each pair of an unspaced script."""
    from hermes.store.search.periods import without_times  # its patterns are compiled for questions only

    asked = " ".join(query.words)
    typed = pieces(fold(asked))
    groups = _topics(findings, query, pieces(without_times(asked, times.now()))) or _topics(findings, query, typed)
    return (groups or [Group([Leaf(piece, "phrase")]) for piece in dict.fromkeys(typed)])[:GROUPS]


def _topics(findings: Findings, query: Query, typed: Sequence[str]) -> list[Group]:
    groups: dict[str, Group] = {}
    names = _names(query)
    stem = stemmer(language_of(word for text in query.words for word in text.split()))
    forms = _forms(findings, [piece for piece in typed if not UNSPACED.match(piece) and _is_topic(piece)], stem)
    for piece in typed:
        if UNSPACED.match(piece):
            for i in range(max(1, len(piece) - 1)):
                pair = piece[i : i + 2]
                if pair not in STOP_PAIRS:
                    groups.setdefault(pair, Group([Leaf(pair, "phrase")]))
        elif _is_topic(piece):
            leaves = [Leaf(form, "phrase") for form in forms[piece]]
            groups.setdefault(stem(piece), Group(leaves, A_NAME if piece in names else 1.0))
    return list(groups.values())


def _names(query: Query) -> set[str]:
    """The words that are written like names: with a capital, and not the first."""
    words = [word for text in query.words for word in text.split()]
    return {
        piece for word in words[1:] if (bare := word.lstrip("¿¡(\"'"))[:1].isupper() for piece in pieces(fold(bare))
    }


def _is_topic(piece: str) -> bool:
    return piece not in STOP_WORDS and (len(piece) > 1 or piece.isdigit())


def _forms(findings: Findings, words: Sequence[str], stem: Callable[[str], str]) -> dict[str, list[str]]:
    """Each word with its other forms in this store."""
    forms = {word: [word] for word in words}
    bases = {word: base for word in forms if len(base := stem(word)) >= 3}
    starts = [base[: max(3, len(base) - 1)] for base in bases.values()]
    listed = findings.text.words_starting(findings.tx, starts, 400) if starts else []
    for (word, base), found in zip(bases.items(), listed, strict=True):
        forms[word] += [
            form for form in sorted(found, key=lambda one: (len(one), one)) if stem(form) == base and form != word
        ]
    return {word: found[:FORMS] for word, found in forms.items()}


def _around(findings: Findings, leaf: Leaf) -> list[Leaf]:
    """Leaves for the words that contain one that no message has."""
    if not leaf.text.isalnum() or len(leaf.text) < LONG_ENOUGH:
        return []
    leaves, exact = words_around(findings, leaf)
    return leaves[:MOST_WORDS] if exact else []


def _telling(needles: list[Needle]) -> list[Needle]:
    """The leaves to mark: without stop words like "the", unless only such were typed."""
    return [one for one in needles if not all(piece in STOP_WORDS for piece in one.pieces)] or needles
