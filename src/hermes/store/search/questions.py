"""Plain questions: the topic words of a sentence, and the messages that have some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hermes import times
from hermes.store.search import periods
from hermes.store.search.answers import QuestionWord, capitalized, spoken
from hermes.store.search.hits import RANKED, Hits
from hermes.store.search.matching import either
from hermes.store.search.question_ranking import Passages, QuestionRanking
from hermes.store.search.showing import Needle, needle
from hermes.store.text.index_text import UNSPACED, fold, pieces
from hermes.store.text.query import Leaf, Node, Query
from hermes.store.text.stems import STOP_PAIRS, STOP_WORDS, language_of, stemmer

if TYPE_CHECKING:
    from hermes.store.search.reranking import Reranking

NEWEST = 250  # messages that hold a word of a question, and are ranked for it
OLDER = 4_000  # of a word that more messages hold: so many count where another word is held
GROUPS = 24  # words of a question that are searched
# The share of a question's words, by how rare they are, that the best session must hold for there to be an answer at all.
# Where it is less, a message must be nearer than chance by so much. Alternatives are compared in docs/recall.md.
WORDS_ALONE, WITH_MEANING, NEARER = 0.12, 0.27, 0.5
_ASKING = "什么 怎么 怎样 哪 谁 吗 呢 几 多少 为何 为什 何 誰 どこ どう いつ なぜ どの 무엇 어디 언제 누가 누구 어떻게 왜".split()


def _asks(query: Query) -> bool:
    """Whether a text of a script without spaces, where no stop word stands alone, is a question."""
    text = "".join(query.words).rstrip()
    return UNSPACED.search(fold(text)) is not None and (
        text.endswith(("?", "？")) or any(word in text for word in _ASKING)
    )


def answer(hits: Hits, query: Query, tree: Node) -> None:
    """A sentence was typed: messages with all of its words, else those with some of its topic words.

    Its words are whole words: they are not searched inside of others. Its topic words are rarer than all of
    its words, so they are searched first; without a match of them, the sentence has none either.
    """
    hits.needles = _telling(hits.needles)
    words = _question_words(hits, query)
    if hits.by != "meaning" and (len(words) < 2 or _some_hold_all(words)):
        hits.add_matches(tree, "match")
    if hits.are_scarce():
        _add_passages(hits, query, words)


def relax(hits: Hits, query: Query) -> None:
    """Add the best partial matches: what a message and its session have of the words, the rarer the better."""
    _add_passages(hits, query, _question_words(hits, query), holding=not _asks(query))


def _add_passages(hits: Hits, query: Query, words: Sequence[QuestionWord], *, holding: bool = False) -> None:
    """Add the best passages. `holding`: only messages that hold a word themselves, not those next to one."""
    needles = [one for word in words for leaf in word.leaves if (one := needle(leaf.text)) is not None]
    hits.needles = _telling(needles) or hits.needles
    question = " ".join(query.words)
    preferred = periods.preference(question, times.now())
    look = None if holding else _reranking(hits, question, words)
    if look is not None or any(word.holders for word in words):
        counted = [] if hits.by == "meaning" and look is not None else words
        ranking = QuestionRanking(hits, question, counted, preferred, holding=holding)
        found = ranking.best(max(RANKED, hits.missing + len(hits.seen)), look)
        if preferred is not None or hits.found or _is_answered(found, question):
            hits.add_ranked(hits.people_first(found.hits))


def _reranking(hits: Hits, question: str, words: Sequence[QuestionWord]) -> Reranking | None:
    """A question as the installed models understand it; None where this store has no vectors."""
    from hermes.store.search import vectors

    if hits.by == "words" or not vectors.is_switched_on(hits.tx):
        return None

    holders = {word.text: [holder[0] for holder in word.holders] for word in words}
    try:
        from hermes.store.search.reranking import Reranking  # loads numpy and a model

        return Reranking.at(hits.engine, hits.tx, hits.scope, question, partial(spoken, hits.tx, question, holders))
    except ImportError:  # numpy is installed but broken: words alone decide
        return None


def _is_answered(found: Passages, question: str) -> bool:
    """Whether what was found can be an answer: a session holds enough of the words, or says something of the kind."""
    enough = WORDS_ALONE if found.related is None else WITH_MEANING
    if UNSPACED.search(fold(question)):
        enough /= 2  # pairs of characters are more than words
    return found.held >= enough or (found.related is not None and found.related >= NEARER)


def _some_hold_all(words: Sequence[QuestionWord]) -> bool:
    """Whether some message has all that a question is about."""
    return bool(set.intersection(*({holder[0] for holder in word.holders}.union(word.also) for word in words)))


def _question_words(hits: Hits, query: Query) -> list[QuestionWord]:
    """The topic words of a question: each content word with its forms, each pair of an unspaced script, and the messages that
    hold it."""
    question = " ".join(query.words)
    typed = pieces(fold(question))
    words = _topics(hits, query, pieces(periods.without_times(question, times.now()))) or _topics(hits, query, typed)
    words = (words or [QuestionWord([Leaf(piece, "phrase")]) for piece in dict.fromkeys(typed)])[:GROUPS]
    found = hits.text.holders(hits.tx, [either(word.leaves) for word in words], hits.scope, NEWEST)
    for word, holders in zip(words, found, strict=True):
        word.holders, word.held = holders, float(len(holders))
    common = [word for word in words if len(word.holders) == NEWEST]
    older = hits.text.holder_ids(hits.tx, [either(word.leaves) for word in common], OLDER) if common else []
    for word, ids in zip(common, older, strict=True):
        word.also = frozenset(ids)
        newest, oldest = word.holders[0][0], word.holders[-1][0]
        word.held *= newest / max(1, newest - oldest)
    return words


def _topics(hits: Hits, query: Query, typed: Sequence[str]) -> list[QuestionWord]:
    words: dict[str, QuestionWord] = {}
    typed_words = [word for text in query.words for word in text.split()]
    names = capitalized(" ".join(typed_words[1:]))  # the first word of a sentence has a capital anyway
    stem = stemmer(language_of(typed_words))
    forms = _forms(hits, [piece for piece in typed if not UNSPACED.match(piece) and _is_topic(piece)], stem)
    for piece in typed:
        if UNSPACED.match(piece):
            for i in range(max(1, len(piece) - 1)):
                pair = piece[i : i + 2]
                if pair not in STOP_PAIRS:
                    words.setdefault(pair, QuestionWord([Leaf(pair, "phrase")]))
        elif _is_topic(piece):
            leaves = [Leaf(form, "phrase") for form in forms[piece]]
            words.setdefault(stem(piece), QuestionWord(leaves, piece in names))
    return list(words.values())


def _is_topic(piece: str) -> bool:
    return piece not in STOP_WORDS and (len(piece) > 1 or piece.isdigit())


def _forms(hits: Hits, words: Sequence[str], stem: Callable[[str], str]) -> dict[str, list[str]]:
    """Each word with its other forms in this store."""
    forms = {word: [word] for word in words}
    bases = {word: base for word in forms if len(base := stem(word)) >= 3}
    starts = [base[: max(3, len(base) - 1)] for base in bases.values()]
    listed = hits.text.words_starting(hits.tx, starts, 400) if starts else []
    for (word, base), found in zip(bases.items(), listed, strict=True):
        forms[word] += [
            form for form in sorted(found, key=lambda one: (len(one), one)) if stem(form) == base and form != word
        ]
    return forms


def _telling(needles: list[Needle]) -> list[Needle]:
    """The leaves to mark: without stop words like "the", unless only such were typed."""
    return [one for one in needles if not all(piece in STOP_WORDS for piece in one.pieces)] or needles
