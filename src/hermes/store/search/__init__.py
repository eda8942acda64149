"""Search: from a typed query to the messages that match it.

The query becomes a tree, filters and visibility a scope; the newest matches are ranked (`hits`), and one page of them is read
and shown (`showing`). What finds too little is widened: first words that only contain what was typed (`ByI` finds getUserById,
`er_id` finds user_id), then, for plain words, the best partial matches (`questions`). Text without words is searched in the
stored form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hermes.errors import InvalidInput
from hermes.store.engines.base import Engine, Tx, rows_among
from hermes.store.records import codec
from hermes.store.records.listing import checked_page
from hermes.store.records.visibility import Filters, User, scope_of
from hermes.store.search import matching
from hermes.store.search.hits import RANKED, Hits
from hermes.store.search.matching import Check, either
from hermes.store.search.showing import Needle, needle, shown
from hermes.store.text.index_text import fold, has_no_word_border, id_word, phrase, pieces
from hermes.store.text.query import And, Leaf, Node, Query, dropped, parse, positive

if TYPE_CHECKING:
    from hermes.store.records.rows import SearchHit

__all__ = ["BY", "Filters", "search"]
BY = ("both", "words", "meaning")  # what finds and ranks the answers to a question
MOST_WORDS = 250  # how many words that contain a part are searched at once
LISTED = 2_000  # words that contain a part, at most
ENDINGS = 500  # words with an ending; of a commoner one, the texts of messages with what follows are read
MOST_TEXTS = 6_400  # candidates whose text is read, at most, where none of the last of them contains what was typed


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
    if matching.is_question(query) and not any(leaf.prefix for leaf in leaves):
        from hermes.store.search import questions  # loaded for questions only

        questions.answer(hits, query, tree)
        return
    # A name after NOT (UserById) is left out inside longer names, too: the texts decide.
    is_checked = any(map(matching.looks_like_a_name, dropped(tree)))
    hits.add_matches(tree, "match", Check(tree) if is_checked else None)
    if hits.missing > 0:
        _add_infixes(hits, tree)
    if hits.missing > 0 and isinstance(tree, Leaf):
        _add_calls(hits, tree)
    if hits.are_scarce() and matching.may_relax(query):
        from hermes.store.search import questions

        questions.relax(hits, query)
    if not hits.found and query.typed is not None:
        # `rm -rf x`: nothing has rm and x without rf, so messages with "-rf" as it was typed.
        literal = {leaf.text for leaf in positive(query.typed) if leaf.kind == "word" and leaf.text[:1] == "-"}
        hits.add_matches(query.typed, "match", Check(query.typed, literal))
        hits.needles = _needles(list(positive(query.typed)))


def _needles(leaves: Sequence[Leaf]) -> list[Needle]:
    return [found for leaf in leaves if (found := needle(leaf.text, prefix=leaf.prefix)) is not None]


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
            ids = [*matching.with_source(hits.tx, ids, text)]
        return matching.passing(hits.tx, check, ids) if check is not None else set(ids)

    hits.add_newest(passed, "literal")
    hits.needles = [Needle((fold(text) or text,), True, True) for text in wanted]


# ---------------------------------------------------------------------------------------------- parts of words


def _add_infixes(hits: Hits, tree: Node) -> None:
    """Add messages with words that only contain what was typed."""
    typed = [leaf.text for leaf in positive(tree) if leaf.kind == "word" and not leaf.prefix]
    parts = {text: _words_around(hits, text) for text in typed}
    if not any(parts.values()):
        return
    literal = {
        text for text in typed if not _is_one_word(text)
    }  # what the texts must contain: words alone do not decide
    check = Check(tree, literal, inside=True) if literal or any(True for _ in dropped(tree)) else None
    for start in range(0, max(map(len, parts.values())), MOST_WORDS):
        cut = {text: trees[start : start + MOST_WORDS] for text, trees in parts.items()}
        # A single word itself was already searched.
        wide = either(cut[tree.text]) if isinstance(tree, Leaf) else matching.widened(tree, cut)
        if check is not None and isinstance(wide, Leaf) and len(wide.text) == 1:  # of er_i: most messages have an i…
            hits.add_newest(partial(matching.passing, hits.tx, check), "substring", MOST_TEXTS)
        else:
            hits.add_matches(wide, "substring", check, MOST_TEXTS)
    hits.needles += [one for text, some in parts.items() if some and (one := needle(text, inside=True)) is not None]


def _is_one_word(text: str) -> bool:
    """Whether a text is a part of one word, so that every message with a word around it contains it."""
    folded = fold(text)
    return len(matching.runs(folded)) == 1 and not has_no_word_border(folded)


def _words_around(hits: Hits, text: str) -> Sequence[Node]:
    """Trees for the words of the store that contain the typed text. Of several words in a row the first may be an end and the
    last a beginning: then the texts of the matches decide."""
    folded = fold(text)
    if has_no_word_border(folded):
        return _words_around_glued(hits, folded)
    words = matching.runs(folded)
    if len(words) > 1:
        return _words_around_several(hits, words, is_whole=not folded[0].isalnum())
    return _longer_words(hits, words[0]) if words else []


def _longer_words(hits: Hits, part: str) -> list[Leaf]:
    words = hits.text.words_containing(hits.tx, part, LISTED)
    around = [Leaf(word, "phrase") for word in sorted(words, key=lambda one: (len(one), one)) if word != part]
    if len(part) >= 4 and any(c in matching.DIGITS for c in part[:4]):
        around.insert(0, Leaf(part, "phrase", prefix=True))  # numbers and hashes are not in the list of words
    return around


def _words_around_several(hits: Hits, words: list[str], *, is_whole: bool) -> Sequence[Node]:
    """Trees for several words in a row: `er_by_i` in user_by_id. In `_by_id` the first one is whole.

    One or two letters end too many words, and one begins too many: these are left out, if anything else is there.
    """
    first, last = words[0], words[-1]
    if sum(map(len, words)) < 3:
        return []
    rest = " ".join(words[1:] if len(last) > 1 else words[1:-1])
    if is_whole:
        return [Leaf(f"{first} {rest}".strip(), "phrase", prefix=len(last) > 1)]
    follows = Leaf(rest or last, "phrase", prefix=len(last) > 1 or not rest)
    if len(first) < 3 or any(c in matching.DIGITS for c in first):  # the list of words lacks hashes
        return [follows]
    if not rest:
        return [Leaf(word, "phrase") for word in _endings(hits, first, LISTED)]
    endings = _endings(hits, first, ENDINGS + 1)
    # A text is read in the time in which a word is looked up.
    if len(endings) > ENDINGS or len(hits.candidates(follows, len(endings) + 1)) <= len(endings):
        return [follows]
    return [And((either([Leaf(word, "phrase") for word in endings]), follows))]


def _endings(hits: Hits, part: str, most: int) -> list[str]:
    """The words with this ending, this one first."""
    return list(dict.fromkeys([part, *hits.text.words_containing(hits.tx, part, most, at_end=True)]))


def _words_around_glued(hits: Hits, folded: str) -> list[Leaf]:
    """Leaves where a script without spaces, or an emoji, is a part of what was typed: 部署getUs, rById完成."""
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
    starts = _endings(hits, first, LISTED) if len(first) >= 3 else [""]
    return [Leaf(word + rest, "phrase", prefix=opened) for word in starts]
