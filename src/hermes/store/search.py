"""Search: from what someone typed to the messages that answer it.

First the query as it stands; then, if that is not enough, words that only contain what was typed; then, for a plain
question, the best partial matches. Messages are ranked together with their sessions: a session's score is its best
message in full, each further one at half the weight of the one before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.errors import InvalidInput
from hermes.store import codec, messages
from hermes.store.engines.base import COMPACTED, Candidate, Engine, Scope, Tx
from hermes.store.engines.sqlite.schema import CARRIABLE
from hermes.store.listing import checked_page
from hermes.store.query import And, Leaf, Node, Not, Or, Query, dropped, parse, positive
from hermes.store.snippet import Needle, forms_needle, needle, snippet
from hermes.store.stems import STOP_PAIRS, STOP_WORDS, stem
from hermes.store.text import (
    UNSPACED,
    fold,
    has_no_word_border,
    index_words,
    phrase,
    pieces,
    plain,
    plain_calls,
    plain_parts,
)
from hermes.store.visibility import User, session_clause

RANKED = 400  # how many of the newest matches are ranked
RELAXED = (
    200  # how many of the newest messages with each word of a question; those with all of them are looked for apart
)
CONTEXT = 200
MOST_LOOKED_AT = 6_400  # candidates whose text is looked at, at most
FEW_STARTS = 20
FEW = 60  # messages that are looked at rather than asked for in more words
PARTS_OF_WORDS = 250  # how many words that contain a part are looked for at once
FORMS = 12
_DIGITS = "0123456789"
ROLE_WEIGHT = {"user": 1.25, "assistant": 1.1, "tool": 0.6, "system": 0.5}


@dataclass(frozen=True, slots=True)
class Filters:
    """What a caller may narrow a search to."""

    source_filter: Sequence[str] | None = None
    exclude_sources: Sequence[str] | None = None
    role_filter: Sequence[str] | None = None
    session_ids: Sequence[str] | None = None
    user_id: str | None = None
    since: float | None = None
    until: float | None = None
    model: str | None = None
    title: str | None = None
    tag: str | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A ranked message."""

    id: int
    session_id: str
    score: float
    reason: str


def search(
    engine: Engine, tx: Tx, text: str, filters: Filters, limit: int | None, offset: int, visible_to: User | None
) -> list[dict[str, Any]]:
    """See SessionDB.search_messages."""
    limit, offset = checked_page(limit, offset)
    if not isinstance(text, str):
        raise InvalidInput(f"a query is text, not {type(text).__name__}")
    query = parse(text)
    if query.tree is None or limit == 0:
        return []
    scope = make_scope(filters, visible_to)
    if visible_to is None and filters == Filters() and _nothing_is_hidden(tx):
        scope = Scope(messages.FOUND)
    hits, needles = _Search(engine, tx, query, scope, offset + limit).run()
    return _show(tx, hits[offset : offset + limit], needles, filters, visible_to)


def _nothing_is_hidden(tx: Tx) -> bool:
    """Whether every session is shown and none carries messages of another: then no session has to be looked at."""
    return not tx.value(
        "SELECT EXISTS (SELECT 1 FROM sessions WHERE trashed_at IS NOT NULL) OR EXISTS (SELECT 1 FROM sessions WHERE"
        " purged IS NOT NULL) OR EXISTS (SELECT 1 FROM session_refs)"
    )


# --------------------------------------------------------------------------------------------- what may be seen


def _as_list(value: Any, name: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    try:
        return [str(item) for item in value]
    except TypeError:
        raise InvalidInput(f"{name} is a list of names") from None


def _session_filter(filters: Filters, visible_to: User | None, alias: str) -> tuple[str, list[Any]]:
    where, params = session_clause(visible_to, alias)
    for name, column, negate in (
        ("source_filter", "source", ""), ("exclude_sources", "source", "NOT "), ("session_ids", "id", ""),
    ):  # fmt: skip
        value = getattr(filters, name)
        if value is not None and (value or not negate):
            names = _as_list(value, name)
            where += f" AND {alias}.{column} {negate}IN ({', '.join('?' * len(names)) or 'NULL'})"
            params += names
    if filters.user_id is not None:
        where, params = f"{where} AND {alias}.user_id = ?", [*params, str(filters.user_id)]
    if filters.model is not None:
        where, params = f"{where} AND (m.model = ? OR {alias}.model = ?)", [*params, filters.model, filters.model]
    if filters.title is not None:
        where += f" AND (lower({alias}.title) LIKE ? ESCAPE '!')"
        escaped = filters.title.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
        params = [*params, f"%{escaped}%"]
    if filters.tag is not None:
        where += f" AND EXISTS (SELECT 1 FROM session_tags t WHERE t.session_id = {alias}.id AND t.tag = ?)"
        params = [*params, filters.tag]
    return where, params


def make_scope(filters: Filters, visible_to: User | None) -> Scope:
    """The messages a search may return: shown by their own session, or carried by one that may be seen."""
    own, own_params = _session_filter(filters, visible_to, "s")
    other, other_params = _session_filter(filters, visible_to, "o")
    where = (
        f"(({messages.FOUND} AND {own}) OR EXISTS (SELECT 1 FROM session_refs r JOIN sessions o ON o.id = r.session_id"
        f" WHERE r.from_session = m.session_id AND m.id BETWEEN r.first_id AND r.last_id AND r.rewound IS NULL"
        f" AND {CARRIABLE} AND {other}))"
    )
    params = own_params + other_params
    if filters.role_filter is not None:
        roles = _as_list(filters.role_filter, "role_filter")
        where, params = f"{where} AND m.role IN ({', '.join('?' * len(roles)) or 'NULL'})", params + roles
    for value, sign in ((filters.since, ">="), (filters.until, "<=")):
        if value is not None:
            where, params = f"{where} AND m.timestamp {sign} ?", [*params, float(value)]
    if filters.tool is not None:
        where += " AND (m.tool_name = ? OR instr(replace(m.tool_calls, ': ', ':'), ?) > 0)"
        params = [*params, filters.tool, f'"name":"{filters.tool}"']
    return Scope(where, tuple(params), needs_sessions=True)


# --------------------------------------------------------------------------------------------- finding


class _Search:
    """One search: its stages share what was found so far."""

    def __init__(self, engine: Engine, tx: Tx, query: Query, scope: Scope, need: int) -> None:
        self.text, self.tx, self.query, self.scope, self.need = engine.fulltext, tx, query, scope, need
        self.cap = max(RANKED, need + need // 4)
        self.relaxed_cap = max(RELAXED, need + need // 4)
        self.hits: list[Hit] = []
        self.seen: set[int] = set()
        self.needles: list[Needle] = []

    def run(self) -> tuple[list[Hit], list[Needle]]:
        tree = self.query.tree
        assert tree is not None
        leaves = list(positive(tree))
        self.needles = [n for leaf in leaves if (n := needle(leaf.text, prefix=leaf.prefix)) is not None]
        if not any(phrase(leaf.text)[0] for leaf in leaves):
            self._literal(leaves)
            return self.hits, self.needles
        if self._named(tree):
            return self.hits, self.needles
        if self._is_question() and not any(leaf.prefix for leaf in leaves):
            self._answer(tree)
            return self.hits, self.needles
        self._as_typed(tree)
        if len(self.hits) < self.need:
            self._inside_words(tree)
        if self._is_scarce() and self._may_relax():
            self._relax(self._groups())
        if not self.hits and self.query.typed is not None:
            self._with_minus(self.query.typed)
        return self.hits, self.needles

    def _as_typed(self, tree: Node) -> None:
        """Messages with the words themselves. A name after NOT (UserById) is left out inside longer names, too."""
        if not any(_looks_like_a_name(leaf) for leaf in dropped(tree)):
            self._add(self.text.candidates(self.tx, tree, self.scope, self.cap), "match")
            return
        narrow = _narrowed(tree, self._inside)
        found = self.text.candidates(self.tx, narrow, self.scope, self.cap)
        self._add_passing(lambda text: _holds(tree, text, set()), found, "match")

    def _with_minus(self, tree: Node) -> None:
        """`rm -rf x`: nothing has rm and x without rf, so messages with "-rf" as it was typed."""
        literal = {leaf.text for leaf in positive(tree) if leaf.kind == "word" and leaf.text[:1] == "-"}
        found = self.text.candidates(self.tx, tree, self.scope, self.cap)
        self._add_passing(lambda text: _holds(tree, text, literal), found, "match")
        self.needles = [n for leaf in positive(tree) if (n := needle(leaf.text, prefix=leaf.prefix)) is not None]

    def _inside(self, leaf: Leaf) -> Sequence[Leaf]:
        """The words that hold a word which is left out, as far as the engine knows them; the texts tell the rest."""
        runs = _runs(fold(leaf.text)) if _looks_like_a_name(leaf) else []
        words = self.text.words_containing(self.tx, runs[0], PARTS_OF_WORDS) if len(runs) == 1 else []
        return [Leaf(word, "phrase") for word in words]

    def _answer(self, tree: Node) -> None:
        """A sentence was typed: messages with all of its words, else those with some of what it is about.

        Its words mean what they say: they are not looked for inside of others. What it is about is rarer than all that
        is in it, so that is looked for first; where it is not, the sentence is not either.
        """
        self.needles = _telling(self.needles)
        groups = self._groups()
        about = tuple(leaves[0] if len(leaves) == 1 else Or(tuple(leaves)) for leaves in groups)
        with_all: list[Candidate] = []
        if len(about) > 1:
            with_all = self.text.candidates(self.tx, And(about), self.scope, self.relaxed_cap)
        if with_all or len(about) < 2:
            self._add(self.text.candidates(self.tx, tree, self.scope, self.cap), "match")
        if self._is_scarce():
            self._relax(groups, with_all)

    def _is_scarce(self) -> bool:
        """Whether what was found is so little that partial matches are welcome."""
        return len(self.hits) < self.need and len({hit.session_id for hit in self.hits}) < 3

    def _named(self, tree: Node) -> bool:
        """Whether names that were typed are found often enough as they are; else the words they are made of are looked for."""
        named = _as_names(tree) if self.text.has_names else tree
        if any(_looks_like_a_name(leaf) for leaf in dropped(tree)):
            return False
        if named == tree or not all(
            self.text.is_name(self.tx, one.text) for one in positive(named) if one.kind == "name"
        ):
            return False
        found = self.text.candidates(self.tx, named, self.scope, self.cap)
        if len(found) < self.need:
            return False
        self._add(found, "match")
        return True

    def _add(self, found: Iterable[Candidate], reason: str, bonus: dict[str, float] | None = None) -> None:
        fresh = [candidate for candidate in found if candidate[0] not in self.seen]
        self.seen.update(candidate[0] for candidate in fresh)
        self.hits += ranked(fresh, reason, self.need - len(self.hits), bonus)

    def _add_passing(self, holds: Callable[[str], bool], found: Sequence[Candidate], reason: str) -> None:
        """The same of those whose text passes: the best are looked at until there are enough."""
        order = ranked(found, reason, len(found))
        while order and len(self.hits) < self.need:
            some, order = order[: self.need], order[self.need :]
            passed = self._passing([hit.id for hit in some], holds)
            self.seen |= passed
            self.hits += [hit for hit in some if hit.id in passed][: self.need - len(self.hits)]

    # -- parts of words

    def _inside_words(self, tree: Node) -> None:
        parts: dict[str, list[Leaf]] = {}
        literal: set[str] = set()  # what has to be there as it stands
        loose = False  # whether much of what is found will not have it
        for leaf in positive(tree):
            if leaf.kind == "word" and not leaf.prefix and leaf.text not in parts:
                parts[leaf.text], exact = self._words_around(leaf)
                loose = loose or (bool(parts[leaf.text]) and not exact)
                if not exact or (_is_name(leaf.text) and any(other.kind == "phrase" for other in parts[leaf.text])):
                    literal.add(leaf.text)
        if not any(parts.values()):
            return
        checked = bool(literal) or any(True for _ in dropped(tree))

        looked_at: set[int] = set(self.seen)

        def holds(text: str) -> bool:
            return _holds(tree, text, literal, inside=True)

        def add(found: list[Candidate]) -> None:
            fresh = [one for one in found if one[0] not in looked_at]
            looked_at.update(one[0] for one in fresh)
            if loose:
                passed = self._passing([one[0] for one in fresh], holds)
                self._add((one for one in fresh if one[0] in passed), "substring")
            elif checked:
                self._add_passing(holds, fresh, "substring")
            else:
                self._add(fresh, "substring")

        widest = max(map(len, parts.values()))
        for start in range(0, widest, PARTS_OF_WORDS):
            cut = {text: leaves[start : start + PARTS_OF_WORDS] for text, leaves in parts.items()}
            if not any(cut.values()):
                break
            wide, cap = _widened(tree, cut), self.cap
            if isinstance(tree, Leaf):  # the word itself was looked for
                around = cut[tree.text]
                wide = around[0] if len(around) == 1 else Or(tuple(around))
            found = self.text.candidates(self.tx, wide, self.scope, cap)
            add(found)
            while checked and len(found) == cap < MOST_LOOKED_AT and len(self.hits) < self.need:
                cap *= 4
                found = self.text.candidates(self.tx, wide, self.scope, cap)
                add(found)
            if len(self.hits) >= self.need:
                break
        self.needles += [n for text, leaves in parts.items() if leaves and (n := needle(text, inside=True)) is not None]

    def _words_around(self, leaf: Leaf) -> tuple[list[Leaf], bool]:
        """Leaves for what in the store contains the text typed, and whether all they find does contain it.

        Of several words in a row the first may be an end and the last a beginning. One or two letters begin or end too
        many words: they are left out, and what is found is looked at.
        """
        folded = fold(leaf.text)
        if has_no_word_border(folded):
            return self._words_around_glued(folded), False
        runs = _runs(folded)
        if not runs:
            return [], True
        cap = PARTS_OF_WORDS * 8
        first, last = runs[0], runs[-1]
        if len(runs) == 1:
            words = self.text.words_containing(self.tx, first, cap)
            around = [Leaf(word, "phrase") for word in sorted(words, key=len) if word != first]
            if len(first) >= 4 and any(c in _DIGITS for c in first[:4]):
                around.insert(0, Leaf(first, "phrase", prefix=True))  # numbers and hashes are not in the list of words
            return around, True
        if _is_name(leaf.text):
            names = self.text.names_containing(self.tx, typed := fold(leaf.text), cap)
            if names is not None:
                return [Leaf(name, "name") for name in sorted(names, key=len) if name != typed], True
        whole = runs[1:] if len(last) >= 3 else runs[1:-1]
        rest, prefix = " ".join(whole), len(last) >= 3
        if len(first) < 3 and len(rest) < 3:  # t_id
            told = " ".join(runs if len(runs) == 2 and len(last) < 2 else runs[1:])
            return ([Leaf(told, "phrase", prefix=True)] if sum(map(len, runs)) >= 3 else []), False
        if len(rest) >= 3:
            leaf = Leaf(rest, "phrase", prefix=prefix)
            few = self.text.candidates(self.tx, leaf, self.scope, FEW + 1)
            if len(few) <= FEW:  # looking at them is quicker than at all the words that end so
                return [leaf] if few else [], False
        if len(first) >= 3:
            words = self.text.words_containing(self.tx, first, cap)
            starts = dict.fromkeys([first, *(word for word in words if word.endswith(first))])
        if len(first) < 3 or (len(starts) > FEW_STARTS and len(whole) > 1):
            return ([Leaf(rest, "phrase", prefix=prefix)] if len(rest) >= 3 else []), False
        return [Leaf(f"{word} {rest}".strip(), "phrase", prefix=prefix) for word in starts], prefix

    def _words_around_glued(self, folded: str) -> list[Leaf]:
        """The same where a script without spaces, or an emoji, is a part of what was typed: 部署getUs, rById完成."""
        parts = pieces(folded)
        if all(has_no_word_border(part) for part in parts):
            return []
        text = folded[folded.find(parts[0]) : folded.rfind(parts[-1]) + len(parts[-1])]
        first, last = re.split("_+", parts[0])[0], re.split("_+", parts[-1])[-1]
        opened = not has_no_word_border(last)
        if opened and len(last) < 2:  # one letter begins too many words
            text, opened = text[: len(text) - len(last)], False
        if has_no_word_border(first):
            return [Leaf(text, "phrase", prefix=opened)]
        rest = text[len(first) :]
        if len(first) < 3:
            return [Leaf(rest, "phrase", prefix=opened)]
        words = self.text.words_containing(self.tx, first, PARTS_OF_WORDS)
        starts = dict.fromkeys([first, *(word for word in words if word.endswith(first))])
        return [Leaf(word + rest, "phrase", prefix=opened) for word in starts]

    def _passing(self, ids: Sequence[int], holds: Callable[[str], bool]) -> set[int]:
        """Those messages whose text passes."""
        rows = _fetch(self.tx, _TEXTS, ids)
        return {message_id for message_id, row in rows.items() if holds(fold("\n".join(_texts(*row[1:]))))}

    # -- natural questions

    def _may_relax(self) -> bool:
        if not self.query.plain:
            return False
        words = 0
        for word in self.query.words:
            words += max(1, sum(len(run) // 2 for run in UNSPACED.findall(word)))
        return words >= 3

    def _is_question(self) -> bool:
        """Whether a sentence was typed, and not just the words that matter."""
        return self._may_relax() and any(fold(word).rstrip("?!.,:") in STOP_WORDS for word in self.query.words)

    def _relax(self, groups: list[list[Leaf]], with_all: Sequence[Candidate] = ()) -> None:
        """The best partial matches: what a message has of the groups, the rarer the better."""
        scores: dict[int, float] = {}
        coverage: dict[str, dict[int, float]] = {}
        known: dict[int, Candidate] = {}
        needles: list[Needle] = []
        total = float(self.tx.value("SELECT coalesce(max(id), 1) FROM messages"))
        weights: dict[int, float] = {}
        for number, leaves in enumerate(groups):
            tree: Node = leaves[0] if len(leaves) == 1 else Or(tuple(leaves))
            found = self.text.candidates(self.tx, tree, self.scope, self.relaxed_cap)
            if not found and (leaves := self._around(leaves[0])):  # in no message: it may be a part of a word
                found = self.text.candidates(self.tx, Or(tuple(leaves)), self.scope, self.relaxed_cap)
            if not found:
                continue
            held = float(len(found))
            if len(found) >= self.relaxed_cap:
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
        self.needles = _telling(needles) or self.needles
        bonus = {session: sum(weights.values()) for session, weights in coverage.items()}
        merged = [(key, scores[key], session, role) for key, (_, _, session, role) in known.items()]
        self._add(merged, "relaxed", bonus)

    def _around(self, leaf: Leaf) -> list[Leaf]:
        """Leaves for the words that contain one that no message has."""
        if not leaf.text.isalnum():
            return []
        leaves, exact = self._words_around(leaf)
        return leaves[:PARTS_OF_WORDS] if exact else []

    def _groups(self) -> list[list[Leaf]]:
        """What a question asks about: each content word with its forms, each pair of an unspaced script."""
        groups: dict[str, list[Leaf]] = {}
        for piece in pieces(fold(" ".join(self.query.words))):
            if UNSPACED.match(piece):
                for i in range(max(1, len(piece) - 1)):
                    pair = piece[i : i + 2]
                    if pair not in STOP_PAIRS:
                        groups.setdefault(pair, [Leaf(pair, "phrase")])
            elif piece not in STOP_WORDS and (len(piece) > 1 or piece.isdigit()):
                groups.setdefault(stem(piece), [Leaf(form, "phrase") for form in self._forms(piece)])
        if not groups:
            groups = {piece: [Leaf(piece, "phrase")] for piece in pieces(fold(" ".join(self.query.words)))}
        return list(groups.values())[:24]

    def _forms(self, word: str) -> list[str]:
        base = stem(word)
        forms = [word]
        if len(base) >= 3:
            found = self.text.words_starting(self.tx, base[: max(3, len(base) - 1)], 400)
            forms += [form for form in sorted(found, key=len) if stem(form) == base and form != word]
        return forms[:FORMS]

    # -- text without words

    def _literal(self, leaves: Sequence[Leaf]) -> None:
        """Only punctuation was typed: look for it as it stands, newest first."""
        wanted, tree = [leaf.text for leaf in leaves], self.query.tree
        assert tree is not None
        drops = any(True for _ in dropped(tree))
        before = 1 << 62
        while len(self.hits) < self.need:
            rows = self.tx.rows(
                "SELECT m.id, m.session_id, m.role, m.content, m.content_rest, m.tool_calls FROM messages m JOIN sessions s"
                f" ON s.id = m.session_id WHERE m.id < ? AND {self.scope.where} ORDER BY m.id DESC LIMIT 500",
                (before, *self.scope.params),
            )
            for message_id, session_id, _, content, rest, calls in rows:
                whole = (codec.joined(content, rest) or "") + (codec.restored(calls) or "")
                if all(text in whole for text in wanted) and (not drops or _holds(tree, fold(whole), set())):
                    self.hits.append(Hit(message_id, session_id, 0.0, "literal"))
            if len(rows) < 500:
                break
            before = rows[-1][0]
        self.needles = [Needle((fold(text) or text,), True, True) for text in wanted]


def _telling(needles: list[Needle]) -> list[Needle]:
    """Those that are worth marking: words like "the" stand everywhere, unless nothing else was typed."""
    return [one for one in needles if not all(piece in STOP_WORDS for piece in one.pieces)] or needles


def _holds(tree: Node, text: str, literal: set[str], *, inside: bool = False) -> bool:
    """Whether a folded text answers a tree, as far as its characters tell: some leaves must be there as they stand, of the
    others the words. What is left out counts `inside` longer words as well."""
    if isinstance(tree, Leaf):
        wanted = fold(tree.text)
        return wanted in text if tree.text in literal else all(run in text for run in _runs(wanted))
    if isinstance(tree, Not):
        return _holds(tree.keep, text, literal, inside=inside) and not _is_in(tree.drop, text, inside)
    return (all if isinstance(tree, And) else any)(
        _holds(child, text, literal, inside=inside) for child in tree.children
    )


def _is_in(tree: Node, text: str, inside: bool) -> bool:
    """Whether a folded text has what a tree asks for: its words as words, and names (with `inside` all) in longer ones."""
    if isinstance(tree, Leaf):
        if tree.kind == "word" and (inside or _looks_like_a_name(tree)):
            return bool(wanted := fold(tree.text).strip()) and wanted in text
        words, open_end = phrase(tree.text)
        end = "" if tree.prefix or open_end else " "
        return bool(words) and f" {words}{end}" in f" {' '.join(index_words(text))} "
    if isinstance(tree, Not):
        return _is_in(tree.keep, text, inside) and not _is_in(tree.drop, text, inside)
    return (all if isinstance(tree, And) else any)(_is_in(child, text, inside) for child in tree.children)


def _looks_like_a_name(leaf: Leaf) -> bool:
    """Whether a word is no word of a language but a name in a program: UserById, user_id, a1b2c3d."""
    text = leaf.text
    if leaf.kind != "word" or leaf.prefix or len(text) < 3 or not text.isascii():
        return False
    return (
        "_" in text.strip("_")
        or any(c in _DIGITS for c in text)
        or not (text.islower() or text[1:].islower() or text.isupper())
    )


def _narrowed(tree: Node, around: Callable[[Leaf], Sequence[Leaf]]) -> Node:
    """The tree with each word that is left out also standing for the words around it."""
    if isinstance(tree, Leaf):
        return tree
    if isinstance(tree, Not):
        return Not(_narrowed(tree.keep, around), _with_words_around(tree.drop, around))
    children = tuple(_narrowed(child, around) for child in tree.children)
    return And(children) if isinstance(tree, And) else Or(children)


def _with_words_around(tree: Node, around: Callable[[Leaf], Sequence[Leaf]]) -> Node:
    if isinstance(tree, Leaf):
        others = around(tree)
        return Or((tree, *others)) if others else tree
    if isinstance(tree, Not):
        return Not(_with_words_around(tree.keep, around), tree.drop)
    children = tuple(_with_words_around(child, around) for child in tree.children)
    return And(children) if isinstance(tree, And) else Or(children)


def _as_names(tree: Node) -> Node:
    """The tree with each name that was typed as one; what is left out stays."""
    if isinstance(tree, Leaf):
        return (
            Leaf(fold(tree.text), "name") if tree.kind == "word" and not tree.prefix and _is_name(tree.text) else tree
        )
    if isinstance(tree, Not):
        return Not(_as_names(tree.keep), tree.drop)
    children = tuple(map(_as_names, tree.children))
    return And(children) if isinstance(tree, And) else Or(children)


def _is_name(text: str) -> bool:
    """Whether a text is (a part of) a name made of several words, like a_b_c."""
    return "_" in text.strip("_") and text.replace("_", "a").isalnum() and not has_no_word_border(text)


def _runs(text: str) -> list[str]:
    """Runs of word characters, as the index has them."""
    return "".join(c if c.isalnum() or not c.isascii() else " " for c in text).split()


def _widened(tree: Node, parts: dict[str, list[Leaf]]) -> Node:
    """The tree with each word also standing for the words that contain it; what is left out stays exact."""
    if isinstance(tree, Leaf):
        around = parts.get(tree.text) if tree.kind == "word" else None
        return Or((tree, *around)) if around else tree
    if isinstance(tree, Not):
        return Not(_widened(tree.keep, parts), tree.drop)
    children = tuple(_widened(child, parts) for child in tree.children)
    return And(children) if isinstance(tree, And) else Or(children)


def ranked(found: Sequence[Candidate], reason: str, most: int, bonus: dict[str, float] | None = None) -> list[Hit]:
    """The best messages in order: each counts as much as its session, less the more of that session came before it."""
    by_session: dict[str, list[tuple[float, int]]] = {}
    for message_id, score, session_id, role in found:
        match = (score * ROLE_WEIGHT.get(role, 1.0), message_id)
        if session_id in by_session:
            by_session[session_id].append(match)
        else:
            by_session[session_id] = [match]
    order: list[tuple[float, int, str]] = []
    for session_id, matches in by_session.items():
        matches.sort(reverse=True)
        value = 0.0 if bonus is None else bonus.get(session_id, 0.0)
        weight = 1.0
        for score, _ in matches[:12]:
            value += score * weight
            weight *= 0.5
        for _, message_id in matches[:most]:
            order.append((value, message_id, session_id))
            value *= 0.5
    order.sort(reverse=True)
    return [Hit(message_id, session_id, round(value, 6), reason) for value, message_id, session_id in order[:most]]


# --------------------------------------------------------------------------------------------- showing

_HITS = (
    "SELECT m.id, m.session_id, m.role, m.timestamp, m.content, m.content_rest, m.content_format, m.tool_name, m.tool_calls,"
    " m.model, m.hidden, s.source, s.model, s.started_at, s.title,"
    " EXISTS (SELECT 1 FROM session_refs r WHERE r.from_session = m.session_id),"
    " (SELECT b.id FROM messages b WHERE b.session_id = m.session_id AND "
    + messages.FOUND.replace("m.", "b.")
    + " AND (b.timestamp, b.id) < (m.timestamp, m.id) ORDER BY b.timestamp DESC, b.id DESC LIMIT 1),"
    " (SELECT a.id FROM messages a WHERE a.session_id = m.session_id AND "
    + messages.FOUND.replace("m.", "a.")
    + " AND (a.timestamp, a.id) > (m.timestamp, m.id) ORDER BY a.timestamp, a.id LIMIT 1)"
    " FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id IN ({marks})"
)
_TEXTS = "SELECT id, content, content_rest, content_format, tool_calls FROM messages WHERE id IN ({marks})"
_NEIGHBOURS = (
    "SELECT id, role, content, content_format, tool_calls, CASE WHEN content_format = 'json' THEN content_rest END"
    " FROM messages WHERE id IN ({marks})"
)
_AT_ONCE = 500


def _fetch(tx: Tx, sql: str, ids: Sequence[int]) -> dict[int, Sequence[Any]]:
    rows: dict[int, Sequence[Any]] = {}
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        rows.update((row[0], row) for row in tx.rows(sql.format(marks=", ".join("?" * len(some))), some))
    return rows


def _show(
    tx: Tx, hits: Sequence[Hit], needles: Sequence[Needle], filters: Filters, visible_to: User | None
) -> list[dict[str, Any]]:
    rows = _fetch(tx, _HITS, [hit.id for hit in hits])
    around = {neighbour for row in rows.values() for neighbour in row[16:18] if neighbour is not None}
    neighbours = _fetch(tx, _NEIGHBOURS, sorted(around))
    out = []
    for hit in hits:
        row = rows.get(hit.id)
        if row is None:
            continue
        session = _shown_in(tx, row, filters, visible_to)
        out.append(
            {
                "id": row[0], "session_id": session[0], "role": codec.restored(row[2]), "timestamp": row[3],
                "snippet": _snippet(row, needles),
                "context": [_context(neighbours[i]) for i in row[16:18] if i is not None and i in neighbours],
                "source": session[1], "model": row[9] or session[2], "session_started": session[3], "title": session[4],
                "tool_name": codec.restored(row[7]), "score": hit.score, "reason": hit.reason,
                "relaxed": hit.reason == "relaxed",
            }
        )  # fmt: skip
    return out


def _shown_in(tx: Tx, row: Sequence[Any], filters: Filters, visible_to: User | None) -> Sequence[Any]:
    """The session under which the caller sees a message: its own, else one that carries it."""
    own = (row[1], *row[11:15])
    if not row[15]:  # nobody else shows messages of this session
        return own
    where, params = _session_filter(filters, visible_to, "o")
    columns = "o.id, o.source, o.model, o.started_at, o.title"
    if row[10] in (None, COMPACTED):
        seen = tx.row(
            f"SELECT {columns} FROM sessions o, messages m WHERE m.id = ? AND o.id = ? AND {where}",
            [row[0], row[1], *params],
        )
        if seen is not None:
            return seen
    other = tx.row(
        f"SELECT {columns} FROM messages m, session_refs r JOIN sessions o ON o.id = r.session_id WHERE m.id = ?"
        f" AND r.from_session = ? AND m.id BETWEEN r.first_id AND r.last_id AND r.rewound IS NULL AND {where}"
        " ORDER BY o.started_at",
        [row[0], row[1], *params],
    )
    return own if other is None else other


def _texts(content: Any, rest: Any, form: Any, calls: Any) -> list[str]:
    whole = codec.joined(content, rest)
    texts = []
    if whole:
        value = codec.content_value(whole, form)
        texts.append(plain(value) if isinstance(value, str) else plain_parts(value))
    if calls is not None:
        texts.append(plain_calls(codec.from_json(calls)))
    return texts


def _snippet(row: Sequence[Any], needles: Sequence[Needle]) -> str:
    best, best_count = "", -1
    for text in (*_texts(row[4], row[5], row[6], row[8]), codec.restored(row[7])):
        if text:
            line, count = snippet(text, needles)
            if count > best_count:
                best, best_count = line, count
            if count == len(needles):
                break
    return best


def _context(row: Sequence[Any]) -> dict[str, Any]:
    """A neighbour's beginning. Of long tool output that lies in plain text on the row: no need to unpack it."""
    head = codec.content_value(codec.joined(row[2], row[5]), row[3])
    if head is not None and not isinstance(head, str):
        head = plain_parts(head)
    if not head and row[4] is not None:
        head = plain_calls(codec.from_json(row[4]))
    return {"id": row[0], "role": codec.restored(row[1]), "content": (head or "")[:CONTEXT]}
