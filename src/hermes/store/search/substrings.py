"""Parts of words: `ByI` finds getUserById, `er_id` finds user_id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from hermes.store.search.hits import Hits, passing
from hermes.store.search.query_trees import DIGITS, Check, either, runs, widened
from hermes.store.text.index_text import fold, has_no_word_border, pieces
from hermes.store.text.query import And, Leaf, Node, dropped, positive
from hermes.store.text.snippet import needle

MOST_WORDS = 250  # how many words that contain a part are searched at once
LISTED = 2_000  # words that contain a part, at most
ENDINGS = 500  # words with an ending; of a commoner one, the texts of messages with what follows are read
MOST_TEXTS = 6_400  # candidates whose text is read, at most, where none of the last of them contains what was typed


def add_infixes(hits: Hits, tree: Node) -> None:
    """Add messages with words that only contain what was typed."""
    typed = [leaf.text for leaf in positive(tree) if leaf.kind == "word" and not leaf.prefix]
    parts = {text: words_around(hits, text) for text in typed}
    if not any(parts.values()):
        return
    literal = {
        text for text in typed if not is_one_word(text)
    }  # what the texts must contain: words alone do not decide
    check = Check(tree, literal, inside=True) if literal or any(True for _ in dropped(tree)) else None
    for start in range(0, max(map(len, parts.values())), MOST_WORDS):
        cut = {text: trees[start : start + MOST_WORDS] for text, trees in parts.items()}
        # A single word itself was already searched.
        wide = either(cut[tree.text]) if isinstance(tree, Leaf) else widened(tree, cut)
        if check is not None and isinstance(wide, Leaf) and len(wide.text) == 1:  # of er_i: most messages have an i…
            hits.add_newest(partial(passing, hits.tx, check), "substring", MOST_TEXTS)
        else:
            hits.add_matches(wide, "substring", check, MOST_TEXTS)
    hits.needles += [one for text, some in parts.items() if some and (one := needle(text, inside=True)) is not None]


def is_one_word(text: str) -> bool:
    """Whether a text is a part of one word, so that every message with a word around it contains it."""
    folded = fold(text)
    return len(runs(folded)) == 1 and not has_no_word_border(folded)


def words_around(hits: Hits, text: str) -> Sequence[Node]:
    """Trees for the words of the store that contain the typed text. Of several words in a row the first may be an end and the
    last a beginning: then the texts of the matches decide."""
    folded = fold(text)
    if has_no_word_border(folded):
        return _words_around_glued(hits, folded)
    words = runs(folded)
    if len(words) > 1:
        return _words_around_several(hits, words, is_whole=not folded[0].isalnum())
    return _longer_words(hits, words[0]) if words else []


def _longer_words(hits: Hits, part: str) -> list[Leaf]:
    words = hits.text.words_containing(hits.tx, part, LISTED)
    around = [Leaf(word, "phrase") for word in sorted(words, key=lambda one: (len(one), one)) if word != part]
    if len(part) >= 4 and any(c in DIGITS for c in part[:4]):
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
    if len(first) < 3 or any(c in DIGITS for c in first):  # the list of words lacks hashes
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
