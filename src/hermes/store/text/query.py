"""The query language: text becomes a tree, and every text is a valid query.

`docker deployment` (both), `"exact phrase"`, `docker OR kubernetes`, `python NOT java`, `deploy*`, and
parentheses that group. NOT binds before AND before OR, and side by side means AND. Nothing here knows about
SQL: the search translates the tree for its engine.

Decisions where a text is ambiguous:

* Operators are the upper-case whole words AND, OR, NOT outside quotes. `x AND NOT y` is `x NOT y`.
* A minus right before a letter or an opening quote, after a space, is NOT: `python -java`, `python -"java beans"`. Where
  there is nothing before it to take from (at the start of the text or of a group), the word stays as it is: `-rf` finds
  "-rf". If nothing is found without the word, messages that hold it with its minus are (`rm -rf /tmp`). `--flag`,
  `foo-bar`, `- x` and `-9` are words, too.
* An operator with nothing to work on is dropped, so that `hello AND` finds "hello": at the start of the text
  or of a group, at the end of one, or right after another operator (`x OR NOT y` is `x OR y`). A query of
  nothing but operators searches for them as words.
* Quotes are the straight, typographic, angle and full-width ones; each closes with a fitting partner, so that
  quotes of one kind may stand inside another. A straight quote right after an ASCII letter or digit opens
  nothing (`5" disk`).
* Parentheses group when the opening one stands at the start or after a space and its partner at the end or
  before a space (or each beside another that does). `main()`, `f(x, y)` and `foo(bar)` are words.
* A quote or parenthesis without a partner is as if absent at the edge of a word, and punctuation inside one;
  a word of nothing else is dropped. Punctuation glued to a phrase (`"foo", "bar"`) is dropped too. Faces such
  as `:)` stay.
* A star makes a prefix when it is the last character and follows a letter, a digit, `_` or anything not
  ASCII, or when it directly follows a closing quote. Elsewhere (`*`, `a/*`, `**bold**`) it is punctuation.
* Control characters, NUL and lone surrogates are spaces. White space inside a phrase is folded.
* Upper and lower case are the same when leaves are compared: of `Docker docker` the first one stays.
* What is over a bound is left out, never an error. A text cut inside a word becomes a prefix, so that what
  was cut off cannot make it miss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

__all__ = ["And", "Leaf", "Node", "Not", "Or", "Query", "dropped", "leaves", "parse", "positive"]

MAX_LEAVES = 64  # distinct ones; the first win
MAX_PLACES = 256  # leaves in the tree, counting each place: `(a OR b) (a OR c)` has four
MAX_PHRASE_WORDS = 64
MAX_TEXT = 1000  # characters of one leaf
MAX_DEPTH = 8  # open parentheses; deeper ones are ignored (full-text engines stop soon after)


class Leaf(msgspec.Struct, frozen=True):
    """One thing to look for: `text` as typed, without its quotes or star.

    A "word" is one run of non-space characters and may hold punctuation (`a/b.py`, `it's`); a "phrase" was in
    quotes.
    """

    text: str
    kind: Literal["word", "phrase"]
    prefix: bool = False


class And(msgspec.Struct, frozen=True):
    """A query for texts that match all of two or more different children; none of them is itself an And."""

    children: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    """Any of two or more different children; none of them is itself an Or."""

    children: tuple[Node, ...]


class Not(msgspec.Struct, frozen=True):
    """A query for texts that match `keep` and not `drop`; `keep` is never itself a Not."""

    keep: Node
    drop: Node


Node = Leaf | And | Or | Not


class Query(msgspec.Struct, frozen=True):
    """A parsed text. `tree` is None only when the text was blank.

    `plain`: no quotes, operators or star had an effect (parentheses have one only around operators).
    `words`: the texts of all leaves in order, each once, ignoring case.
    `typed`: where a minus was read as NOT, the tree that treats it as a part of the word, for text that contains exactly that.
    """

    tree: Node | None
    plain: bool
    words: tuple[str, ...]
    typed: Node | None = None


def parse(text: str) -> Query:
    """The query that `text` stands for. Never raises; takes time in proportion to the length of the text."""
    if text.isascii() and text.isalnum() and len(text) <= MAX_TEXT and text not in _OPERATORS:
        return Query(Leaf(text, "word"), True, (text,))  # the usual case
    text = _BLANK.sub(" ", text)
    tokens = list(_tokens(text))
    tree, plain = _tree(tokens)
    typed = None
    if any(isinstance(token, _Minus) for token in tokens):
        typed, _ = _tree([token.typed if isinstance(token, _Minus) else token for token in tokens])
    if tree is None:  # operators and stray marks only: look for just these
        runs = text.split()
        bare = [run.strip(_MARKS) for run in runs]
        tree, plain = _tree(_leaf(run, "word") for run in [run for run in bare if run] or runs)
    words: dict[str, str] = {}
    for leaf in leaves(tree):
        words.setdefault(leaf.text.lower(), leaf.text)
    return Query(tree, plain, tuple(words.values()), typed if typed != tree else None)


def leaves(node: Node | None) -> Iterator[Leaf]:
    """Every leaf from left to right, those to be left out (`Not.drop`) included."""
    return _walk(node, dropped=True)


def positive(node: Node | None) -> Iterator[Leaf]:
    """Every leaf that a hit may contain, from left to right: none of those under a `Not.drop`."""
    return _walk(node, dropped=False)


def dropped(node: Node | None) -> Iterator[Leaf]:
    """Every leaf under a `Not.drop`."""
    if isinstance(node, Not):
        yield from leaves(node.drop)
        yield from dropped(node.keep)
    elif isinstance(node, And | Or):
        for child in node.children:
            yield from dropped(child)


def _walk(node: Node | None, *, dropped: bool) -> Iterator[Leaf]:
    todo = [] if node is None else [node]
    while todo:
        node = todo.pop()
        if isinstance(node, Leaf):
            yield node
        elif isinstance(node, Not):
            todo += (node.drop, node.keep) if dropped else (node.keep,)
        else:
            todo += reversed(node.children)


# --- text to tokens -----------------------------------------------------------------------------------------

_BLANK = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_RUN = re.compile(r"\S+")
_SUBSTANCE = re.compile(r"[0-9A-Za-z]|[^\x00-\x7f]")  # more than ASCII punctuation
_STARRED = re.compile(r"(?:[0-9A-Za-z_]|[^\x00-\x7f\uff0a])[*\uff0a]\Z")
_OPERATORS = ("AND", "OR", "NOT")
_STARS = ("*", "\uff0a")
_OPENING, _CLOSING = "(\uff08", ")\uff09"
_STRAIGHT = '"\uff02'
_PARTNERS = {  # what may close each quote; people mix up the directions of the curly ones
    '"': _STRAIGHT,
    "\uff02": _STRAIGHT,
    "\u201c": "\u201d\u201c",
    "\u201d": "\u201d\u201c",
    "\u201e": "\u201c\u201d",
    "\u201f": "\u201d\u201c",
    "\u00ab": "\u00bb",
    "\u00bb": "\u00ab\u00bb",
}
_QUOTES = "".join(_PARTNERS)
_MARKS = _QUOTES + _OPENING + _CLOSING
_QUOTE = re.compile(f"[{_QUOTES}]")
_PARENTHESIS = re.compile(f"[{_OPENING}{_CLOSING}]")
_MARK = re.compile(f"[{_MARKS}]")

# What a character does: nothing special, a mark without partner, a grouping parenthesis, a parenthesis that
# may become one since it is at a border, a part of a quoted stretch.
_PLAIN, _LOOSE, _GROUP, _BORDER, _QUOTED = range(5)


class _Minus(msgspec.Struct, frozen=True):
    """A word with a minus before it: to be left out, if something precedes it, else the word as it was typed."""

    dropped: Leaf
    typed: Leaf


_Token = Leaf | _Minus | str  # a leaf, "(", ")" or an operator


def _tokens(text: str) -> Iterator[_Token]:
    if not _MARK.search(text):
        yield from _words(text, bytearray(len(text)), 0, len(text))
        return
    quoted = _pair_quotes(text)
    roles = _roles(text, quoted)
    done = 0
    for mark in _MARK.finditer(text):
        at = mark.start()
        if at < done or not (roles[at] == _GROUP or at in quoted):
            continue
        yield from _words(text, roles, done, at)
        if roles[at] == _GROUP:
            yield "(" if text[at] in _OPENING else ")"
            done = at + 1
        else:
            end = quoted[at] + 1
            starred = text[end : end + 1] in _STARS and _ends(text, roles, end + 1)
            leaf = _leaf(text[at + 1 : end - 1], "phrase", starred)
            yield _Minus(leaf, leaf) if text[at - 1 : at] == "-" and _begins(text, roles, at - 1) else leaf
            done = end + starred
    yield from _words(text, roles, done, len(text))


def _pair_quotes(text: str) -> dict[int, int]:
    """The places where quotes open and close, from left to right; pairs around nothing are no pairs."""
    spots = [found.start() for found in _QUOTE.finditer(text)]
    closing = []
    ahead: dict[str, int] = {}  # the next quote of each kind, seen from the right, so that one pass is enough
    for at in reversed(spots):
        closing.append(min((ahead[mark] for mark in _PARTNERS[text[at]] if mark in ahead), default=-1))
        ahead[text[at]] = at
    pairs: dict[int, int] = {}
    done = 0
    for at, end in zip(spots, reversed(closing), strict=True):
        inch = text[at] in _STRAIGHT and at > 0 and text[at - 1].isascii() and text[at - 1].isalnum()
        if at >= done and end >= 0 and not inch and text[at + 1 : end].strip():
            pairs[at] = end
            done = end + 1
    return pairs


def _roles(text: str, quoted: dict[int, int]) -> bytearray:
    roles = bytearray(len(text))
    for at, end in quoted.items():
        roles[at : end + 1] = bytes((_QUOTED,)) * (end + 1 - at)
    for found in _QUOTE.finditer(text):
        if not roles[found.start()]:
            roles[found.start()] = _LOOSE
    spots = [found.start() for found in _PARENTHESIS.finditer(text) if not roles[found.start()]]
    for at in spots:
        if text[at] in _OPENING and (at == 0 or text[at - 1].isspace() or roles[at - 1] == _BORDER):
            roles[at] = _BORDER
    for at in reversed(spots):
        if text[at] in _CLOSING and (_ends(text, roles, at + 1) or roles[at + 1] == _BORDER):
            roles[at] = _BORDER
    unpaired: list[int] = []
    for at in spots:
        if text[at] in _OPENING:
            unpaired.append(at)
        elif unpaired:
            first = unpaired.pop()
            role = _GROUP if roles[first] == roles[at] == _BORDER else _PLAIN
            roles[first] = roles[at] = role
        else:
            roles[at] = _LOOSE
    for at in unpaired:
        roles[at] = _LOOSE
    return roles


def _ends(text: str, roles: bytearray, at: int) -> bool:
    """Whether the token before `at` ends there."""
    return at >= len(text) or text[at].isspace() or roles[at] == _GROUP


def _begins(text: str, roles: bytearray, at: int) -> bool:
    """Whether the token at `at` begins there."""
    return at == 0 or text[at - 1].isspace() or roles[at - 1] == _GROUP


def _words(text: str, roles: bytearray, start: int, end: int) -> Iterator[_Token]:
    """The leaves and operators of a stretch without quotes and grouping parentheses."""
    for run in _RUN.finditer(text, start, end):
        first, last = run.span()
        glued = (first > 0 and roles[first - 1] == _QUOTED) or (last < len(text) and roles[last] == _QUOTED)
        while first < last and roles[first] == _LOOSE:
            first += 1
        while first < last and roles[last - 1] == _LOOSE:
            last -= 1
        word = text[first:last]
        if not _SUBSTANCE.search(word):
            word = run[0]
            if glued or not word.strip(_MARKS):
                continue
        if word in _OPERATORS:
            yield word
        elif word[0] == "-" and word[1:2].isalpha() and _begins(text, roles, first):
            yield _Minus(_word(word[1:]), _word(word))
        else:
            yield _word(word)


def _word(text: str) -> Leaf:
    return _leaf(text[:-1], "word", prefix=True) if _STARRED.search(text) else _leaf(text, "word")


def _leaf(text: str, kind: Literal["word", "phrase"], prefix: bool = False) -> Leaf:
    if kind == "phrase":
        words = text.split(None, MAX_PHRASE_WORDS)
        prefix = prefix and len(words) <= MAX_PHRASE_WORDS
        text = " ".join(words[:MAX_PHRASE_WORDS])
    if len(text) > MAX_TEXT:
        prefix = not text[MAX_TEXT].isspace()
        text = text[:MAX_TEXT].rstrip()
    return Leaf(text, kind, prefix)


# --- tokens to tree -----------------------------------------------------------------------------------------


class _Level:
    """A parser's state between two parentheses: finished OR branches, and the unfinished AND.

    `factors` holds each thing to keep with the things to drop from it, so that `a NOT b NOT c` stays flat
    however long it gets. An operator waits in `pending` for its right side; if none comes, it is dropped.
    """

    __slots__ = ("branches", "factors", "last", "pending")

    def __init__(self) -> None:
        self.branches: dict[Node, None] = {}
        self.factors: dict[Node, dict[Node, None]] = {}
        self.last: Node | None = None
        self.pending = ""

    def operator(self, word: str) -> None:
        if self.last is not None and (not self.pending or (self.pending, word) == ("AND", "NOT")):
            self.pending = word

    def operand(self, node: Node | None) -> bool:
        """Take in the next operand (None: it turned out empty); True if an operator had an effect by it."""
        operator = self.pending
        if node is None:
            if operator == "NOT":  # else the NOT would hit what follows
                self.pending = ""
            return False
        self.pending = ""
        if operator == "NOT" and self.last is not None:
            self.factors[self.last][node] = None
            return True
        if operator == "OR":
            self._end_branch()
        self.factors.setdefault(node, {})
        self.last = node
        return bool(operator)

    def _end_branch(self) -> None:
        branch = _join(And, (_without(keep, _join(Or, drops)) for keep, drops in self.factors.items()))
        if branch is not None:
            self.branches[branch] = None
        self.factors = {}

    def node(self) -> Node | None:
        self._end_branch()
        return _join(Or, self.branches)


def _tree(tokens: Iterable[_Token]) -> tuple[Node | None, bool]:
    """The tree of the tokens, and whether they were plain words."""
    levels = [_Level()]  # an explicit stack, so that no text can overflow Python's
    too_deep = 0
    plain = True
    known: dict[tuple[str, str, bool], Leaf] = {}
    for token in tokens:
        if isinstance(token, _Minus):
            if levels[-1].last is not None:
                levels[-1].operator("NOT")
                token = token.dropped
            else:
                token = token.typed
        if isinstance(token, Leaf):
            key = (token.text.lower(), token.kind, token.prefix)
            leaf = known.get(key)
            if leaf is None and len(known) < MAX_LEAVES:
                leaf = known[key] = token
            if leaf is not None and (leaf.kind == "phrase" or (leaf.prefix and len(leaf.text) < MAX_TEXT)):
                plain = False
            if levels[-1].operand(leaf):
                plain = False
        elif token == "(":
            if len(levels) > MAX_DEPTH:
                too_deep += 1
            else:
                levels.append(_Level())
        elif token == ")":
            if too_deep:
                too_deep -= 1
            else:
                group = levels.pop().node()
                if levels[-1].operand(group):
                    plain = False
        else:
            levels[-1].operator(token)
    tree = levels[0].node()
    if sum(1 for _ in leaves(tree)) > MAX_PLACES:
        tree = _cut(tree, iter(range(MAX_PLACES)))
    return tree, plain


def _join(kind: type[And] | type[Or], nodes: Iterable[Node]) -> Node | None:
    """One node for several: nested ones of its kind opened up, repeated ones once, a single one unchanged."""
    flat: dict[Node, None] = {}
    for node in nodes:
        for part in node.children if isinstance(node, kind) else (node,):
            flat[part] = None
    return kind(tuple(flat)) if len(flat) > 1 else next(iter(flat), None)


def _without(keep: Node, drop: Node | None) -> Node:
    if drop is None:
        return keep
    if isinstance(keep, Not):
        return Not(keep.keep, _join(Or, (keep.drop, drop)) or drop)
    return Not(keep, drop)


def _cut(node: Node | None, room: Iterator[int]) -> Node | None:
    """The tree with as many leaves, from the left, as there is room for. Recurses over a bounded depth."""
    if isinstance(node, Leaf):
        return None if next(room, None) is None else node
    if isinstance(node, Not):
        keep = _cut(node.keep, room)
        return None if keep is None else _without(keep, _cut(node.drop, room))
    if node is None:
        return None
    kept = (_cut(child, room) for child in node.children)
    return _join(type(node), (child for child in kept if child is not None))
