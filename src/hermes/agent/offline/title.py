"""Titles taken from the words of the first exchange: the beginning of what the first request is about."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime

from hermes.agent.offline.language import (
    DENSE_ENDINGS,
    DENSE_OPENINGS,
    DENSE_RUN,
    is_stop,
    paragraphs,
    sentences,
    words,
)
from hermes.store.text.index_text import fold
from hermes.texts import harmless

_MOST_WORDS, _FEWEST_WORDS = 7, 3
_TITLE_LENGTH = 80
_MARKUP = re.compile(r"[*`~#>|\[\]{}()<>\"“”„«»「」『』【】]+")
_CODE = re.compile(r"(?s)```.*?(?:```|$)|~~~.*?(?:~~~|$)")
_LINK = re.compile(r"\b\w+://\S+")


def title_of(user_text: str, assistant_text: str = "") -> str:
    """A title of 3 to 7 words from the first exchange; never empty, no stop word at its ends."""
    taken: list[str] = []
    for text in (user_text, assistant_text):
        for clause in _clauses(text):
            rest = _trimmed(clause)
            if taken:  # a short question, and an answer that often repeats it
                known = {fold(word) for word in taken}
                rest = [word for word in rest if fold(word) not in known]
            if rest:
                taken = _trimmed(taken + rest) if taken else rest
            if _weight(taken) >= _FEWEST_WORDS:
                return _as_title(taken)
    if taken:
        return _as_title(["Conversation", "about", *taken])
    today = datetime.now()
    return f"Conversation of {today.day} {today:%B %Y}"


def dated(title: str, when: float) -> tuple[str, ...]:
    """Titles for a conversation whose title another has: with its date, else with its date and time."""
    day = datetime.fromtimestamp(when)
    date = f"{day.day} {day:%B %Y}"
    if title.endswith(date):  # "Conversation of 16 November 2026"
        return (f"{title}, {day:%H:%M}",)
    return f"{title}, {date}", f"{title}, {date} {day:%H:%M}"


def word_count(text: str) -> int:
    """How many words a title has; three (or five) characters of a script without spaces count as one."""
    return _weight(words(text))


def cut_title(text: str) -> str:
    """At most seven words of a title, without a stop word at its end."""
    if word_count(text) <= _MOST_WORDS and len(text) <= _TITLE_LENGTH:
        return text
    return _as_title(words(text))


def _clauses(text: str) -> Iterable[list[str]]:
    text = _LINK.sub(" ", _CODE.sub("\n", harmless(text[:20_000])))
    prose, _ = paragraphs(_MARKUP.sub(" ", text))
    for line in prose[:40]:
        for sentence in sentences(line):
            for clause in re.split(
                r"[,;:!?，；：、。！？؟—]+(?=\s|$|[^\x00-\x7f])|\s[-–]\s|[，；：、。！？؟,](?=[^\x00-\x7f])", sentence
            ):
                yield [word for word in words(clause) if len(word) <= 60]


def _trimmed(clause: Sequence[str]) -> list[str]:
    """A clause without the meaningless words at its ends."""
    out = list(clause)
    while out:
        if DENSE_RUN.match(out[0]):
            out[0] = DENSE_OPENINGS.sub("", out[0])
            if out[0]:
                break
            out.pop(0)
        elif is_stop(out[0]):
            out.pop(0)
        else:
            break
    while out:
        if DENSE_RUN.match(out[-1]):
            out[-1] = DENSE_ENDINGS.sub("", out[-1])
            if out[-1]:
                break
            out.pop()
        elif is_stop(out[-1]):
            out.pop()
        else:
            break
    return out


def _weight(taken: Sequence[str]) -> int:
    return sum(-(-len(word) // _letters_a_word(word)) if DENSE_RUN.match(word) else 1 for word in taken)


def _letters_a_word(run: str) -> int:
    """Word length where no space separates words: short in Chinese and Japanese, longer in Thai, Lao, Burmese, Khmer."""
    return 5 if "\u0e00" <= run[0] <= "\u17ff" else 3


def _as_title(taken: Sequence[str]) -> str:
    """The first seven words, joined as in the text."""
    out: list[str] = []
    room = _MOST_WORDS
    for word in taken:
        if room <= 0:
            break
        if DENSE_RUN.match(word):
            word = _cut_dense(word, room * _letters_a_word(word))
            room -= _weight([word])
        else:
            room -= 1
        if sum(map(len, out)) + len(out) + len(word) > _TITLE_LENGTH and out:
            break
        out.append(word)
    if _FEWEST_WORDS < len(out) < len(taken) and out[-1].replace(".", "").replace(",", "").isdigit():
        out.pop()  # its unit was cut off
    out = _trimmed(out) or out
    title = ""
    for word in out:
        glue = "" if not title or (DENSE_RUN.match(word) and DENSE_RUN.match(title[-1])) else " "
        title += glue + word
    if title[:1].islower() and out[0].isalpha() and out[0].islower():
        title = title[0].upper() + title[1:]
    return title


def _cut_dense(run: str, room: int) -> str:
    """The beginning of a run, cut before no vowel sign and, where possible, not inside a word of another script."""
    if len(run) <= room:
        return run
    cut = room
    while cut > 1 and unicodedata.category(run[cut]).startswith("M"):
        cut -= 1
    return DENSE_ENDINGS.sub("", run[:cut]) or run[:cut]
