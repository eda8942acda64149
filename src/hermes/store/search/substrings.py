"""Parts of words: `ByI` finds getUserById, `er_id` finds user_id."""

from __future__ import annotations

import re
from collections.abc import Callable

from hermes.store.engines.base import Candidate
from hermes.store.index_text import fold, has_no_word_border, pieces
from hermes.store.query import Leaf, Node, dropped, positive
from hermes.store.search.findings import Findings
from hermes.store.search.message_texts import passing
from hermes.store.search.query_trees import DIGITS, either, holds, is_name, required, runs, widened
from hermes.store.snippet import needle

MOST_WORDS = 250  # how many words that contain a part are searched at once
MOST_TEXTS = 6_400  # candidates whose text is read, at most, where none of the last of them contains what was typed
A_FEW_STARTS, FEW_STARTS = 3, 20
LOOKED_AT = 100  # messages whose text is read together
TOGETHER = 40  # of those that contain it, ranked together: few are enough for an order
LARGE = 200_000  # messages; with more, collecting all positions of words that begin with two letters takes long
A_FEW, FEW = 5, 60  # messages that are read rather than queried by more words


def add_infixes(findings: Findings, tree: Node) -> None:
    """Add messages with words that only contain what was typed."""
    parts: dict[str, list[Leaf]] = {}
    literal: set[str] = set()  # what must occur literally
    loose = False  # whether many candidates will not contain it
    for leaf in positive(tree):
        if leaf.kind == "word" and not leaf.prefix and leaf.text not in parts:
            parts[leaf.text], exact = words_around(findings, leaf)
            loose = loose or (bool(parts[leaf.text]) and not exact)
            if not exact or (is_name(leaf.text) and any(other.kind == "phrase" for other in parts[leaf.text])):
                literal.add(leaf.text)
    if not any(parts.values()):
        return
    checked = bool(literal) or any(True for _ in dropped(tree))
    needed = [*required(tree, literal)] if checked else []
    looked_at: set[int] = set(findings.seen)

    def passes(text: str) -> bool:
        return holds(tree, text, literal, inside=True)

    def add(found: list[Candidate]) -> None:
        fresh = [one for one in found if one[0] not in looked_at]
        looked_at.update(one[0] for one in fresh)
        if loose:
            _add_newest_passing(findings, fresh, passes, needed)
        elif checked:
            findings.add_passing(passes, needed, fresh, "substring")
        else:
            findings.add(fresh, "substring")

    for start in range(0, max(map(len, parts.values())), MOST_WORDS):
        cut = {text: leaves[start : start + MOST_WORDS] for text, leaves in parts.items()}
        if not any(cut.values()):
            break
        # A single word itself was already searched.
        wide = either(cut[tree.text]) if isinstance(tree, Leaf) else widened(tree, cut)
        read = 0
        for block in findings.blocks(wide):
            before = len(findings.hits)
            add(block)
            read += len(block)
            if checked and read >= MOST_TEXTS and len(findings.hits) == before:
                break
        if findings.missing <= 0:
            break
    findings.needles += [
        one for text, leaves in parts.items() if leaves and (one := needle(text, inside=True)) is not None
    ]


def _add_newest_passing(
    findings: Findings, found: list[Candidate], passes: Callable[[str], bool], needed: list[str]
) -> None:
    """Add those whose text passes, the newest first: no more texts are read than there are hits to fill."""
    passed: list[Candidate] = []
    for start in range(0, len(found), LOOKED_AT):
        some = found[start : start + LOOKED_AT]
        known = passing(findings.tx, [one[0] for one in some], passes, needed)
        passed += [one for one in some if one[0] in known]
        if len(passed) >= TOGETHER:
            findings.add(passed, "substring")
            passed = []
            if findings.missing <= 0:
                return
    findings.add(passed, "substring")


def words_around(findings: Findings, leaf: Leaf) -> tuple[list[Leaf], bool]:
    """Leaves for the words of the store that contain the typed text, and whether all their matches contain it.

    Of several words in a row the first may be an end and the last a beginning. One or two letters begin or end too
    many words: they are left out, and the texts of the matches are read.
    """
    folded = fold(leaf.text)
    if has_no_word_border(folded):
        return _words_around_glued(findings, folded), False
    words = runs(folded)
    if not words:
        return [], True
    if len(words) == 1:
        return _longer_words(findings, words[0]), True
    if is_name(leaf.text):
        names = findings.text.names_containing(findings.tx, folded, MOST_WORDS * 8)
        if names is not None:
            return [Leaf(name, "name") for name in sorted(names, key=len) if name != folded], True
    return _names_around(findings, words, is_whole=not folded[0].isalnum())


def _longer_words(findings: Findings, part: str) -> list[Leaf]:
    words = findings.text.words_containing(findings.tx, part, MOST_WORDS * 8)
    around = [Leaf(word, "phrase") for word in sorted(words, key=len) if word != part]
    if len(part) >= 4 and any(c in DIGITS for c in part[:4]):
        around.insert(0, Leaf(part, "phrase", prefix=True))  # numbers and hashes are not in the list of words
    return around


def _names_around(findings: Findings, words: list[str], *, is_whole: bool) -> tuple[list[Leaf], bool]:
    """The same for several words in a row: `er_by_i` in user_by_id. In `_by_id` the first one is whole."""
    first, last = words[0], words[-1]
    prefix = len(last) >= 3
    whole = words[1:] if prefix else words[1:-1]
    rest = " ".join(whole)
    if len(first) < 3 and len(rest) < 3:  # t_id
        is_large = len(words) == 2 and len(last) < 2 and findings.tx.value("SELECT max(id) FROM messages") >= LARGE
        told = " ".join(words if is_large else words[1:])
        return ([Leaf(told, "phrase", prefix=True)] if sum(map(len, words)) >= 3 else []), False
    if (between := _messages_between(findings, words, prefix)) is not None:
        return between, False
    starts = [first] if is_whole else _endings(findings, first) if len(first) >= 3 else []
    are_all = is_whole or not any(c in DIGITS for c in first)  # the list of words lacks hashes
    phrases = [Leaf(f"{word} {rest}".strip(), "phrase", prefix=prefix) for word in starts]
    if len(rest) < 3 or (are_all and 0 < len(starts) <= A_FEW_STARTS):
        return phrases, prefix
    leaf = Leaf(rest, "phrase", prefix=prefix)
    few = len(findings.candidates(leaf, FEW + 1))
    if few <= FEW:  # reading them is faster than searching all words with this ending
        return [leaf] if few else [], False
    if not starts or (len(starts) > FEW_STARTS and len(whole) > 1):
        if len(last) == 2 and findings.tx.value("SELECT max(id) FROM messages") < LARGE:
            leaf = Leaf(f"{rest} {last}", "phrase", prefix=True)
        return [leaf], False
    return phrases, prefix


def _messages_between(findings: Findings, words: list[str], prefix: bool) -> list[Leaf] | None:
    """A leaf for the words between the first and the last, if few messages have them (none: no leaf), else None. Whole words
    are found sooner than beginnings."""
    between = Leaf(" ".join(words[1:-1]), "phrase")
    if not prefix or len(between.text) < 3:
        return None
    few = len(findings.candidates(between, A_FEW + 1))
    return None if few > A_FEW else [between] if few else []


def _endings(findings: Findings, part: str) -> list[str]:
    """The words with this ending, this one first."""
    found = findings.text.words_containing(findings.tx, part, MOST_WORDS * 8)
    return list(dict.fromkeys([part, *(word for word in found if word.endswith(part))]))


def _words_around_glued(findings: Findings, folded: str) -> list[Leaf]:
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
    words = findings.text.words_containing(findings.tx, first, MOST_WORDS)
    starts = dict.fromkeys([first, *(word for word in words if word.endswith(first))])
    return [Leaf(word + rest, "phrase", prefix=opened) for word in starts]
