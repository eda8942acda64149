"""The stages of a search, from the exact query to what may have been meant.

First the query as it was typed; then, if that is not enough, words that only contain it; then, for a plain question, the
best partial matches. Text without words, or with an escape of JSON before a word, is searched in the stored form.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes.store import codec
from hermes.store.engines.base import Engine, Scope, Tx
from hermes.store.index_text import fold, id_word, phrase
from hermes.store.query import Leaf, Node, Query, dropped, positive
from hermes.store.search import questions
from hermes.store.search.findings import RANKED, Findings
from hermes.store.search.message_texts import with_source
from hermes.store.search.query_trees import as_names, holds, is_name, looks_like_a_name, narrowed, required, runs
from hermes.store.search.ranking import Ranked
from hermes.store.search.substrings import MOST_WORDS, add_infixes
from hermes.store.snippet import Needle, needle

ESCAPES = ("n", "t", "r")  # letters that stand for white space after a backslash


def find(engine: Engine, tx: Tx, query: Query, scope: Scope, need: int, by: str = "both") -> Findings:
    """The best `need` messages for a query that is not blank."""
    tree = query.tree
    assert tree is not None
    findings = Findings(engine, tx, scope, need, by)
    leaves = list(positive(tree))
    findings.needles = _needles(leaves)
    if not findings.needles and not any(phrase(leaf.text)[0] for leaf in leaves):
        _add_literal(findings, tree, leaves)
    elif questions.is_question(query) and not any(leaf.prefix for leaf in leaves):
        questions.answer(findings, query, tree)
    else:
        _add_stages(findings, query, tree)
    return findings


def _add_stages(findings: Findings, query: Query, tree: Node) -> None:
    _add_named(findings, tree)
    if findings.missing > 0:
        _add_as_typed(findings, tree)
    if findings.missing > 0:
        add_infixes(findings, tree)
    if findings.missing > 0 and isinstance(tree, Leaf):
        _add_escaped(findings, tree)
        _add_calls(findings, tree)
    if findings.is_scarce() and questions.may_relax(query):
        questions.relax(findings, query)
    if not findings.hits and query.typed is not None:
        _add_with_minus(findings, query.typed)


def _needles(leaves: Sequence[Leaf]) -> list[Needle]:
    return [found for leaf in leaves if (found := needle(leaf.text, prefix=leaf.prefix)) is not None]


def _add_as_typed(findings: Findings, tree: Node) -> None:
    """Messages with the words themselves. A name after NOT (UserById) is left out inside longer names, too."""
    if not any(looks_like_a_name(leaf) for leaf in dropped(tree)):
        for block in findings.blocks(tree):
            findings.add(block, "match")
        return

    def inside(leaf: Leaf) -> Sequence[Leaf]:
        """The words that contain an excluded word, as far as the engine lists them; the texts decide the rest."""
        parts = runs(fold(leaf.text)) if looks_like_a_name(leaf) else []
        words = findings.text.words_containing(findings.tx, parts[0], MOST_WORDS) if len(parts) == 1 else []
        return [Leaf(word, "phrase") for word in words]

    for block in findings.blocks(narrowed(tree, inside)):
        findings.add_passing(lambda text: holds(tree, text, ()), [*required(tree, ())], block, "match")


def _add_with_minus(findings: Findings, tree: Node) -> None:
    """`rm -rf x`: nothing has rm and x without rf, so messages with "-rf" as it was typed."""
    literal = {leaf.text for leaf in positive(tree) if leaf.kind == "word" and leaf.text[:1] == "-"}
    for block in findings.blocks(tree):
        findings.add_passing(lambda text: holds(tree, text, literal), [*required(tree, literal)], block, "match")
    findings.needles = _needles(list(positive(tree)))


def _add_named(findings: Findings, tree: Node) -> None:
    """Messages with typed names as a whole; those with their words come after them."""
    text = findings.text
    if not text.has_names or any(looks_like_a_name(leaf) for leaf in dropped(tree)):
        return
    named = as_names(tree)
    if named != tree and all(text.is_name(findings.tx, one.text) for one in positive(named) if one.kind == "name"):
        for block in findings.blocks(named):
            findings.add(block, "match")


def _add_escaped(findings: Findings, leaf: Leaf) -> None:
    """`nMAX_SIZE`, a name copied from JSON with "\\nMAX_SIZE" in it, where the index has MAX_SIZE."""
    text = leaf.text
    if leaf.kind != "word" or leaf.prefix or not text.startswith(ESCAPES) or not text.isascii() or not is_name(text):
        return
    rest = Leaf(text[1:], "phrase", prefix=True)
    before = len(findings.hits)
    for block in findings.blocks(rest):
        found = [one for one in block if one[0] not in findings.seen]
        escaped = with_source(findings.tx, [one[0] for one in found], f"\\{text}")
        findings.add((one for one in found if one[0] in escaped), "literal")
    if len(findings.hits) > before:
        findings.needles += _needles([rest])


def _add_calls(findings: Findings, leaf: Leaf) -> None:
    """The tool call with this id, and its result: the call is indexed by a word of its id, the result is in the same session."""
    word = id_word(leaf.text)
    if leaf.prefix or not word or (findings.hits and not any(c.isdigit() for c in word)):
        return
    found = findings.candidates(Leaf(word, "phrase"), RANKED)
    called = with_source(findings.tx, [one[0] for one in found], f'"{leaf.text}"')
    found = [one for one in found if one[0] in called]
    findings.add(found, "match")
    if found:
        these, params = findings.tx.among("m.session_id", list({one[2] for one in found}))
        rows = findings.tx.rows(
            "SELECT m.id, 0.0, m.session_id, m.role FROM messages m JOIN sessions s ON s.id = m.session_id"
            f" WHERE {these} AND m.tool_call_id = ? AND {findings.scope.where}",
            (*params, codec.storable(leaf.text), *findings.scope.params),
        )
        findings.add(((int(one), 0.0, str(owner), str(role)) for one, _, owner, role in rows), "match")


def _add_literal(findings: Findings, tree: Node, leaves: Sequence[Leaf]) -> None:
    """Only punctuation was typed: search for it literally, newest first."""
    wanted = [leaf.text for leaf in leaves]
    drops = any(True for _ in dropped(tree))
    before = 1 << 62
    while findings.missing > 0:
        rows = findings.tx.rows(
            "SELECT m.id, m.session_id, m.content, m.content_rest, m.tool_calls FROM messages m JOIN sessions s"
            f" ON s.id = m.session_id WHERE m.id < ? AND {findings.scope.where} ORDER BY m.id DESC LIMIT 500",
            (before, *findings.scope.params),
        )
        for message_id, session_id, content, rest, calls in rows:
            whole = (codec.joined(content, rest) or "") + (codec.restored(calls) or "")
            if all(text in whole for text in wanted) and (not drops or holds(tree, fold(whole), ())):
                findings.hits.append(Ranked(message_id, session_id, 0.0, "literal"))
        if len(rows) < 500:
            break
        before = rows[-1][0]
    findings.needles = [Needle((fold(text) or text,), True, True) for text in wanted]
