"""Parts of words: `ByI` finds getUserById, `er_id` finds user_id."""

from __future__ import annotations

import re

from hermes.store.index_text import fold, has_no_word_border, pieces
from hermes.store.query import Leaf, Node, dropped, positive
from hermes.store.search.hits import Hits
from hermes.store.search.query_trees import DIGITS, Check, either, is_name, runs, widened
from hermes.store.snippet import needle

MOST_WORDS = 250  # how many words that contain a part are searched at once
MOST_TEXTS = 6_400  # candidates whose text is read, at most, where none of the last of them contains what was typed
A_FEW_STARTS, FEW_STARTS = 3, 20
LARGE = 200_000  # messages; with more, collecting all positions of words that begin with two letters takes long
FEW = 60  # messages that are read rather than queried by more words


def add_infixes(hits: Hits, tree: Node) -> None:
    """Add messages with words that only contain what was typed."""
    parts: dict[str, list[Leaf]] = {}
    literal: set[str] = set()  # what must occur literally
    for leaf in positive(tree):
        if leaf.kind == "word" and not leaf.prefix and leaf.text not in parts:
            parts[leaf.text], exact = words_around(hits, leaf)
            if not exact or is_name(leaf.text):
                literal.add(leaf.text)
    if not any(parts.values()):
        return
    check = Check(tree, literal, inside=True) if literal or any(True for _ in dropped(tree)) else None
    for start in range(0, max(map(len, parts.values())), MOST_WORDS):
        cut = {text: leaves[start : start + MOST_WORDS] for text, leaves in parts.items()}
        # A single word itself was already searched.
        wide = either(cut[tree.text]) if isinstance(tree, Leaf) else widened(tree, cut)
        hits.add_matches(wide, "substring", check, MOST_TEXTS)
    hits.needles += [one for text, some in parts.items() if some and (one := needle(text, inside=True)) is not None]


def words_around(hits: Hits, leaf: Leaf) -> tuple[list[Leaf], bool]:
    """Leaves for the words of the store that contain the typed text, and whether all their matches contain it.

    Of several words in a row the first may be an end and the last a beginning. One or two letters begin or end too
    many words: they are left out, and the texts of the matches are read.
    """
    folded = fold(leaf.text)
    if has_no_word_border(folded):
        return _words_around_glued(hits, folded), False
    words = runs(folded)
    if len(words) > 1:
        return _words_around_several(hits, words, is_whole=not folded[0].isalnum())
    return (_longer_words(hits, words[0]) if words else []), True


def _longer_words(hits: Hits, part: str) -> list[Leaf]:
    words = hits.text.words_containing(hits.tx, part, MOST_WORDS * 8)
    around = [Leaf(word, "phrase") for word in sorted(words, key=lambda one: (len(one), one)) if word != part]
    if len(part) >= 4 and any(c in DIGITS for c in part[:4]):
        around.insert(0, Leaf(part, "phrase", prefix=True))  # numbers and hashes are not in the list of words
    return around


def _words_around_several(hits: Hits, words: list[str], *, is_whole: bool) -> tuple[list[Leaf], bool]:
    """Leaves for several words in a row: `er_by_i` in user_by_id. In `_by_id` the first one is whole."""
    first, last = words[0], words[-1]
    prefix = len(last) >= 3
    rest = " ".join(words[1:] if prefix else words[1:-1])
    is_large = len(last) < 3 and hits.tx.value("SELECT max(id) FROM messages") >= LARGE
    if len(first) < 3 and len(rest) < 3:  # t_id
        told = " ".join(words if is_large and len(words) == 2 and len(last) < 2 else words[1:])
        return ([Leaf(told, "phrase", prefix=True)] if sum(map(len, words)) >= 3 else []), False
    starts = [first] if is_whole else _endings(hits, first) if len(first) >= 3 else []
    if len(rest) >= 3:
        leaf = Leaf(rest, "phrase", prefix=prefix)
        is_unlisted = not is_whole and any(c in DIGITS for c in first)  # the list of words lacks hashes
        if not starts or is_unlisted or (len(starts) > FEW_STARTS and len(words) > 2):
            return [
                leaf if prefix or len(last) < 2 or is_large else Leaf(f"{rest} {last}", "phrase", prefix=True)
            ], False
        # Reading few messages is faster than searching all words with this ending.
        if len(starts) > A_FEW_STARTS and len(hits.candidates(leaf, FEW + 1)) <= FEW:
            return [leaf], False
    return [Leaf(f"{word} {rest}".strip(), "phrase", prefix=prefix) for word in starts], prefix


def _endings(hits: Hits, part: str) -> list[str]:
    """The words with this ending, this one first."""
    found = hits.text.words_containing(hits.tx, part, MOST_WORDS * 8)
    return list(dict.fromkeys([part, *(word for word in found if word.endswith(part))]))


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
    starts = _endings(hits, first) if len(first) >= 3 else [""]
    return [Leaf(word + rest, "phrase", prefix=opened) for word in starts]
