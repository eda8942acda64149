"""Search: from a typed query to the messages that match it.

The query becomes a tree, filters and visibility a `scope`; the newest matches are ranked (`hits`), and one page of them is read
and shown (`showing`). What finds too little is widened: first words that only contain what was typed (`substrings`), then, for
plain words, the best partial matches (`questions`). Text without words is searched in the stored form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.errors import InvalidInput
from hermes.store.engines.base import Engine, Tx, rows_among
from hermes.store.records import codec
from hermes.store.records.listing import checked_page
from hermes.store.records.visibility import User
from hermes.store.search.hits import RANKED, Hits, passing, shown, with_source
from hermes.store.search.query_trees import Check, is_name, is_question, looks_like_a_name, may_relax
from hermes.store.search.scope import Filters, scope_of
from hermes.store.search.substrings import add_infixes
from hermes.store.text.index_text import fold, id_word, phrase
from hermes.store.text.query import Leaf, Node, Query, dropped, parse, positive
from hermes.store.text.snippet import Needle, needle

if TYPE_CHECKING:
    from hermes.store.records.rows import SearchHit

__all__ = ["BY", "Filters", "search"]
BY = ("both", "words", "meaning")  # what finds and ranks the answers to a question
ESCAPES = ("n", "t", "r")  # letters that stand for white space after a backslash


def search(
    engine: Engine,
    tx: Tx,
    text: str,
    filters: Filters,
    limit: int | None,
    offset: int,
    visible_to: User | None,
    by: str,
) -> list[SearchHit]:
    """See SessionDB.search_messages."""
    limit, offset = checked_page(limit, offset)
    if not isinstance(text, str):
        raise InvalidInput(f"a query is text, not {type(text).__name__}")
    if by not in BY:
        raise InvalidInput(f"a search is by {', '.join(BY)}, not {by!r}")
    query = parse(text)
    if query.tree is None or limit == 0:
        return []
    people_first = filters.automated and filters.source_filter is None
    hits = Hits(engine, tx, scope_of(tx, filters, visible_to), offset + limit, by, people_first)
    _find(hits, query, query.tree)
    return shown(tx, hits.found[offset : offset + limit], hits.needles, filters, visible_to)


def _find(hits: Hits, query: Query, tree: Node) -> None:
    """Find the best messages for a query that is not blank, stage by stage until there are enough."""
    leaves = list(positive(tree))
    hits.needles = _needles(leaves)
    if not hits.needles and not any(phrase(leaf.text)[0] for leaf in leaves):
        _add_literal(hits, tree, leaves)
        return
    if is_question(query) and not any(leaf.prefix for leaf in leaves):
        from hermes.store.search import questions  # loaded for questions only

        questions.answer(hits, query, tree)
        return
    # A name after NOT (UserById) is left out inside longer names, too: the texts decide.
    is_checked = any(map(looks_like_a_name, dropped(tree)))
    hits.add_matches(tree, "match", Check(tree) if is_checked else None)
    if hits.missing > 0:
        add_infixes(hits, tree)
    if hits.missing > 0 and isinstance(tree, Leaf):
        _add_escaped(hits, tree)
        _add_calls(hits, tree)
    if hits.are_scarce() and may_relax(query):
        from hermes.store.search import questions

        questions.relax(hits, query)
    if not hits.found and query.typed is not None:
        # `rm -rf x`: nothing has rm and x without rf, so messages with "-rf" as it was typed.
        literal = {leaf.text for leaf in positive(query.typed) if leaf.kind == "word" and leaf.text[:1] == "-"}
        hits.add_matches(query.typed, "match", Check(query.typed, literal))
        hits.needles = _needles(list(positive(query.typed)))


def _needles(leaves: Sequence[Leaf]) -> list[Needle]:
    return [found for leaf in leaves if (found := needle(leaf.text, prefix=leaf.prefix)) is not None]


def _add_escaped(hits: Hits, leaf: Leaf) -> None:
    """`nMAX_SIZE`, a name copied from JSON with "\\nMAX_SIZE" in it, where the index has MAX_SIZE."""
    text = leaf.text
    if leaf.kind != "word" or leaf.prefix or not text.startswith(ESCAPES) or not text.isascii() or not is_name(text):
        return
    rest = Leaf(text[1:], "phrase", prefix=True)
    before = len(hits.found)
    for block in hits.blocks(rest):
        escaped = with_source(hits.tx, [one[0] for one in block], f"\\{text}")
        hits.add([one for one in block if one[0] in escaped], "literal")
    if len(hits.found) > before:
        hits.needles += _needles([rest])


def _add_calls(hits: Hits, leaf: Leaf) -> None:
    """The tool call with this id, and its result: the call is indexed by a word of its id, the result is in the same session."""
    word = id_word(leaf.text)
    is_word = any(hit.reason == "match" for hit in hits.found) and not any(c.isdigit() for c in word)
    if leaf.prefix or not word or is_word:
        return
    holding = hits.candidates(Leaf(word, "phrase"), RANKED)
    written = f'"{leaf.text}"'.lower()
    sql = "SELECT id, tool_calls FROM messages WHERE tool_calls IS NOT NULL AND {these}"
    calls = rows_among(hits.tx, sql, [one[0] for one in holding])
    called = {one for one, text in calls if written in str(codec.restored(text)).lower()}
    found = [one for one in holding if one[0] in called]
    hits.add(found, "match")
    if found:
        these, params = hits.tx.among("m.session_id", list({one[2] for one in found}))
        rows = hits.tx.rows(
            "SELECT m.id, 0, m.session_id, m.role FROM messages m JOIN sessions s ON s.id = m.session_id"
            f" WHERE {these} AND m.tool_call_id = ? AND {hits.scope.where}",
            (*params, codec.storable(leaf.text), *hits.scope.params),
        )
        hits.add([(int(one), 0, str(owner), str(role)) for one, _, owner, role in rows], "match")


def _add_literal(hits: Hits, tree: Node, leaves: Sequence[Leaf]) -> None:
    """Only punctuation was typed: search for it literally, newest first."""
    wanted = [leaf.text for leaf in leaves]
    check = Check(tree) if any(True for _ in dropped(tree)) else None

    def passed(ids: Sequence[int]) -> set[int]:
        for text in wanted:
            ids = [*with_source(hits.tx, ids, text)]
        return passing(hits.tx, check, ids) if check is not None else set(ids)

    hits.add_newest(passed, "literal")
    hits.needles = [Needle((fold(text) or text,), True, True) for text in wanted]
