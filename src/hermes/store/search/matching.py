"""Whether the text of a message matches a query, where the index alone cannot decide; and trees with other words in place of
those typed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from hermes.store.engines.base import Tx, phrase_words, rows_among
from hermes.store.records import codec
from hermes.store.text import index_text
from hermes.store.text.index_text import ASCII_WORD, UNSPACED, fold, index_words, lacks_one
from hermes.store.text.query import And, Leaf, Node, Not, Or, Query, parse, positive
from hermes.store.text.stems import STOP_WORDS

DIGITS = "0123456789"


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


def either(leaves: Sequence[Node]) -> Node:
    """A tree that matches if any of one or more others does."""
    return leaves[0] if len(leaves) == 1 else Or(tuple(leaves))


def runs(text: str) -> list[str]:
    """Runs of word characters of a folded text, as the index has them."""
    if text.isascii():
        return ASCII_WORD.findall(text)
    return "".join(c if c.isalnum() or not c.isascii() else " " for c in text).split()


def looks_like_a_name(leaf: Leaf) -> bool:
    """Whether a word is no word of a language but a name in a program: UserById, user_id, a1b2c3d."""
    text = leaf.text
    if leaf.kind != "word" or leaf.prefix or len(text) < 3 or not text.isascii():
        return False
    return (
        "_" in text.strip("_")
        or any(c in DIGITS for c in text)
        or not (text.islower() or text[1:].islower() or text.isupper())
    )


def widened(tree: Node, parts: Mapping[str, Sequence[Node]]) -> Node:
    """The tree with each word also standing for the words that contain it; what is left out stays exact."""
    if isinstance(tree, Leaf):
        around = parts.get(tree.text) if tree.kind == "word" else None
        return Or((tree, *around)) if around else tree
    if isinstance(tree, Not):
        return Not(widened(tree.keep, parts), tree.drop)
    return type(tree)(tuple(widened(child, parts) for child in tree.children))


# ---------------------------------------------------------------------------------------- a text against a tree


class Check:
    """Checks the text of a message, where the index alone can't decide. See `holds` and `required`."""

    def __init__(self, tree: Node, literal: Collection[str] = (), *, inside: bool = False) -> None:
        self._tree, self._literal, self._inside = tree, literal, inside
        self.required = [*required(tree, literal)]

    def __call__(self, text: str) -> bool:
        return holds(self._tree, text, self._literal, inside=self._inside)


def holds(tree: Node, text: str, literal: Collection[str], *, inside: bool = False) -> bool:
    """Whether a folded text matches a tree, by its characters: some leaves must occur literally, of the
    others the words. What is left out counts `inside` longer words as well."""
    if isinstance(tree, Leaf):
        wanted = fold(tree.text)
        return wanted in text if tree.text in literal else all(run in text for run in runs(wanted))
    if isinstance(tree, Not):
        return holds(tree.keep, text, literal, inside=inside) and not _is_in(tree.drop, text, inside)
    return (all if isinstance(tree, And) else any)(
        holds(child, text, literal, inside=inside) for child in tree.children
    )


def text_test(query: str) -> Callable[[str], bool]:
    """A test of short texts: whether one matches a query, whatever its case and accents."""
    tree, signs = parse(query).tree, fold(query).strip()
    if not runs(signs):  # punctuation alone
        return lambda text: signs != "" and signs in fold(text)
    return lambda text: tree is not None and holds(tree, fold(text), ())


def required(tree: Node, literal: Collection[str]) -> Iterator[str]:
    """Parts contained in every text for which `holds` is true, of letters, digits and underscores of ASCII alone: JSON has no
    escapes for these but `\\u`, so that its source contains them as well."""
    if isinstance(tree, Leaf):
        wanted = fold(tree.text)
        plain = wanted.isascii() and wanted.replace("_", "a").isalnum()
        if plain and tree.text in literal:
            yield wanted
        else:
            yield from (run for run in runs(wanted) if run.isascii())
    elif isinstance(tree, Not):
        yield from required(tree.keep, literal)
    elif isinstance(tree, And):
        for child in tree.children:
            yield from required(child, literal)


def _is_in(tree: Node, text: str, inside: bool) -> bool:
    """Whether a folded text matches a tree: its words as words, and names (with `inside` all) in longer ones."""
    if isinstance(tree, Leaf):
        if tree.kind == "word" and (inside or looks_like_a_name(tree)):
            return bool(wanted := fold(tree.text).strip()) and wanted in text
        words, open_end = phrase_words(tree)
        return bool(words) and f" {' '.join(words)}{'' if open_end else ' '}" in f" {' '.join(index_words(text))} "
    if isinstance(tree, Not):
        return _is_in(tree.keep, text, inside) and not _is_in(tree.drop, text, inside)
    return (all if isinstance(tree, And) else any)(_is_in(child, text, inside) for child in tree.children)


# ---------------------------------------------------------------------------------------------- texts of messages

_TEXTS = "SELECT id, content, content_rest, content_format, tool_calls FROM messages WHERE {these}"


def texts_of(whole: str | None, form: Any, calls: Any) -> list[str]:
    """The readable text of a message: its content, its tool calls and the ids of these, without JSON's syntax."""
    texts = []
    if whole:
        value = codec.content_value(whole, form)
        texts.append(index_text.plain(value) if isinstance(value, str) else index_text.plain_parts(value))
    if calls is not None:
        value = codec.from_json(calls)
        texts += [index_text.plain_calls(value), *index_text.call_ids(value)]
    return texts


def passing(tx: Tx, check: Check, ids: Sequence[int]) -> set[int]:
    """The messages whose folded text passes. One whose source lacks a part that is required is not parsed: most of them are
    skipped so."""
    passed = set()
    for message_id, content, rest, form, calls in rows_among(tx, _TEXTS, ids):
        whole = codec.joined(content, rest)
        if check.required and lacks_one(_source(whole, calls), check.required):
            continue
        if check(fold("\n".join(texts_of(whole, form, calls)))):
            passed.add(message_id)
    return passed


def with_source(tx: Tx, ids: Sequence[int], part: str) -> set[int]:
    """The messages whose stored text contains this part, ignoring case: an escape of JSON as two characters."""
    wanted = part.lower()
    return {
        message_id
        for message_id, content, rest, _, calls in rows_among(tx, _TEXTS, ids)
        if wanted in _source(codec.joined(content, rest), calls).lower()
    }


def _source(whole: str | None, calls: Any) -> str:
    return whole or "" if calls is None else f"{whole or ''}\n{codec.restored(calls)}"
