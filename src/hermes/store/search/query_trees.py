"""Query trees during a search: whether a text matches one, and a tree with other words in place of those typed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from hermes.store.index_text import ASCII_WORD, fold, has_no_word_border, index_words, phrase
from hermes.store.query import And, Leaf, Node, Not, Or

DIGITS = "0123456789"


def either(leaves: Sequence[Node]) -> Node:
    """A tree that matches if any of one or more others does."""
    return leaves[0] if len(leaves) == 1 else Or(tuple(leaves))


def runs(text: str) -> list[str]:
    """Runs of word characters of a folded text, as the index has them."""
    if text.isascii():
        return ASCII_WORD.findall(text)
    return "".join(c if c.isalnum() or not c.isascii() else " " for c in text).split()


# ---------------------------------------------------------------------------------------- names in programs


def is_name(text: str) -> bool:
    """Whether a text is (a part of) a name made of several words, like a_b_c."""
    return "_" in text.strip("_") and text.replace("_", "a").isalnum() and not has_no_word_border(text)


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


def as_names(tree: Node) -> Node:
    """The tree with each name that was typed as one; what is left out stays."""
    if isinstance(tree, Leaf):
        named = tree.kind == "word" and not tree.prefix and is_name(tree.text)
        return Leaf(fold(tree.text), "name") if named else tree
    if isinstance(tree, Not):
        return Not(as_names(tree.keep), tree.drop)
    children = tuple(map(as_names, tree.children))
    return And(children) if isinstance(tree, And) else Or(children)


# ---------------------------------------------------------------------------------------- a text against a tree


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
        words, open_end = phrase(tree.text)
        end = "" if tree.prefix or open_end else " "
        return bool(words) and f" {words}{end}" in f" {' '.join(index_words(text))} "
    if isinstance(tree, Not):
        return _is_in(tree.keep, text, inside) and not _is_in(tree.drop, text, inside)
    return (all if isinstance(tree, And) else any)(_is_in(child, text, inside) for child in tree.children)


# ---------------------------------------------------------------------------------------- other words in a tree


def widened(tree: Node, parts: dict[str, list[Leaf]]) -> Node:
    """The tree with each word also standing for the words that contain it; what is left out stays exact."""
    if isinstance(tree, Leaf):
        around = parts.get(tree.text) if tree.kind == "word" else None
        return Or((tree, *around)) if around else tree
    if isinstance(tree, Not):
        return Not(widened(tree.keep, parts), tree.drop)
    children = tuple(widened(child, parts) for child in tree.children)
    return And(children) if isinstance(tree, And) else Or(children)


def narrowed(tree: Node, around: Callable[[Leaf], Sequence[Leaf]]) -> Node:
    """The tree with each word that is left out also standing for the words around it."""
    if isinstance(tree, Leaf):
        return tree
    if isinstance(tree, Not):
        return Not(narrowed(tree.keep, around), _with_words_around(tree.drop, around))
    children = tuple(narrowed(child, around) for child in tree.children)
    return And(children) if isinstance(tree, And) else Or(children)


def _with_words_around(tree: Node, around: Callable[[Leaf], Sequence[Leaf]]) -> Node:
    if isinstance(tree, Leaf):
        others = around(tree)
        return Or((tree, *others)) if others else tree
    if isinstance(tree, Not):
        return Not(_with_words_around(tree.keep, around), tree.drop)
    children = tuple(_with_words_around(child, around) for child in tree.children)
    return And(children) if isinstance(tree, And) else Or(children)
