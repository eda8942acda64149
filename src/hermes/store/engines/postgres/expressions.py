"""Translates a query tree for PostgreSQL: to a tsquery, and for messages indexed in several parts to SQL over them.

User text is always quoted, or in a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable

from hermes.store.engines.base import phrase_words
from hermes.store.engines.postgres.id_ranges import Window
from hermes.store.engines.postgres.lexemes import lexeme, quoted
from hermes.store.query import And, Leaf, Node, Not, Or


def expression(tree: Node | None, *, loose: bool = False) -> str | None:
    """A query tree as a tsquery; None when nothing in it is indexed. User text is always quoted.

    `loose` requires of a phrase only that its words occur, which the index alone can answer: all matches of the tree match
    this, and perhaps others.
    """
    if tree is None:
        return None
    link = " & " if loose else " <-> "
    if isinstance(tree, Leaf):
        return next(iter(_one_of([tree], link)), None)
    if isinstance(tree, Not):
        keep, drop = expression(tree.keep, loose=loose), expression(tree.drop)
        if keep is None or drop is None or (loose and "<->" in drop):
            return keep
        return f"({keep} & !{drop})"
    if isinstance(tree, Or):
        found = _one_of((child for child in tree.children if isinstance(child, Leaf)), link)
        others: Iterable[Node] = (child for child in tree.children if not isinstance(child, Leaf))
    else:
        found, others = [], tree.children
    found += [part for child in others if (part := expression(child, loose=loose)) is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else f"({(' & ' if isinstance(tree, And) else ' | ').join(found)})"


def _words(leaf: Leaf) -> list[str]:
    """The words of a leaf as in a tsquery; none when nothing in it is indexed."""
    words, open_end = phrase_words(leaf)
    written = [quoted(lexeme(word)) for word in words]
    return [*written[:-1], f"{written[-1]}:*"] if open_end else written


def _one_of(leaves: Iterable[Leaf], link: str) -> list[str]:
    """Leaves of which one is enough. Those with the same continuation are combined: ('a' | 'b') <-> 'c':* reads c… once."""
    beginnings: dict[tuple[str, ...], dict[str, None]] = {}
    for leaf in leaves:
        if words := _words(leaf):
            beginnings.setdefault(tuple(words[1:]), {})[words[0]] = None
    found: list[str] = []
    for rest, firsts in beginnings.items():
        if not rest:
            found += firsts
            continue
        first = next(iter(firsts)) if len(firsts) == 1 else f"({' | '.join(firsts)})"
        found.append(f"({link.join((first, *rest))})")
    return found


def is_unit(tree: Node) -> bool:
    """Whether one position in a message can match it: a leaf, or alternative leaves."""
    return isinstance(tree, Leaf) or (isinstance(tree, Or) and all(isinstance(child, Leaf) for child in tree.children))


def in_parts(tree: Node, where: Window) -> tuple[str, list[str]] | None:
    """SQL for the long messages that match a tree, from those that have a part which matches a unit of it; None when
    nothing of it is indexed."""
    if is_unit(tree):
        match = expression(tree)
        if match is None:
            return None
        return "SELECT message_id FROM message_words WHERE NOT whole AND words @@ ?::tsquery", [where.within(match)]
    if isinstance(tree, Not):
        keep, drop = in_parts(tree.keep, where), in_parts(tree.drop, where)
        if keep is None or drop is None:
            return keep
        return f"({keep[0]}) EXCEPT ({drop[0]})", [*keep[1], *drop[1]]
    assert isinstance(tree, And | Or)
    sets = [found for child in tree.children if (found := in_parts(child, where)) is not None]
    if not sets:
        return None
    link = " INTERSECT " if isinstance(tree, And) else " UNION "
    return link.join(f"({sql})" for sql, _ in sets), [one for _, params in sets for one in params]
