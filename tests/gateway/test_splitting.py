"""Long texts in messages that fit: nothing is lost, code stays code, and what was shown once is not cut anew."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import iter_graphemes

from hermes.gateway.adapter import utf16_units
from hermes.gateway.flow.splitting import split, with_cursor

pytestmark = pytest.mark.mechanism

Measure = Callable[[str], int]
MEASURES: list[Measure] = [len, utf16_units, lambda text: len(text.encode())]

FAMILY, FLAGS, WAVE, HANGUL, ACCENTS = "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👋🏽", "각", "é̂"
WORDS = st.sampled_from(
    ["word", "a", "Satz.", "。漢字", FAMILY, FLAGS, WAVE, HANGUL, ACCENTS, "`code`", "a```b", "-", "x" * 70, " " * 5]
)
LINES = st.lists(WORDS, max_size=12).map(" ".join)
PARAGRAPHS = st.lists(LINES, min_size=1, max_size=4).map("\n".join)
FENCES = st.tuples(
    st.sampled_from(["```", "````", "~~~", "   ```", "      ```"]),
    st.sampled_from(["", "7", "7 title=" + "8" * 50]),
    st.lists(LINES | st.sampled_from(["", "    indented", "~~", "``"]), max_size=20).map("\n".join),
    st.booleans(),
).map(lambda one: f"{one[0]}{one[1]}\n{one[2]}" + (f"\n{one[0]}" if one[3] else ""))
TEXTS = st.lists(PARAGRAPHS | FENCES, max_size=8).map("\n\n".join)
ROOMS = st.integers(60, 400)


def open_fence(text: str) -> str | None:
    """The fence that is still open at the end of a text, read as Markdown is."""
    fence: str | None = None
    for line in text.split("\n"):
        match = re.match(r"\s*(`{3,}|~{3,})(.*)$", line)
        if fence is not None:
            bare = line.strip()
            if len(bare) >= len(fence) and set(bare) == {fence[0]}:
                fence = None
        elif match and not ("`" in match[1] and "`" in match[2]):
            fence = match[1]
    return fence


def visible(text: str) -> str:
    """A text without white space, without fences, and without what the tests have behind them (7 title=88…)."""
    return re.sub(r"^\s*(?:`{3,}|~{3,})(?=[^`]*$)|7|title=|8|\s", "", text, flags=re.MULTILINE)


@given(TEXTS, ROOMS, st.sampled_from(MEASURES))
@example("a```b " * 40, 60, len)
def test_every_part_fits_and_nothing_is_lost(text: str, longest: int, measure: Measure) -> None:
    parts = split(text, longest, measure)
    assert all(measure(part) <= longest for part in parts)
    assert all(part.strip() for part in parts)
    assert visible("\n".join(parts)) == visible(text)


@given(st.text(max_size=600), st.integers(10, 80), st.sampled_from(MEASURES))
def test_any_text_at_all_is_cut_to_fit(text: str, longest: int, measure: Measure) -> None:
    parts = split(text, longest, measure)
    assert all(0 < measure(part) <= longest for part in parts)
    if "```" not in text and "~~~" not in text:
        assert "".join("".join(parts).split()) == "".join(text.split())


@given(TEXTS, ROOMS)
def test_fences_are_whole_in_each_part(text: str, longest: int) -> None:
    for part in split(text, longest):
        assert open_fence(part) is None, part


@given(TEXTS, ROOMS, st.data())
def test_a_growing_text_keeps_the_parts_that_were_shown(text: str, longest: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(text)))
    before, after = split(text[:length], longest), split(text, longest)
    assert after[: max(0, len(before) - 2)] == before[:-2]


@given(st.lists(st.sampled_from([FAMILY, FLAGS[:2], WAVE, HANGUL, ACCENTS, "x"]), min_size=1, max_size=80), ROOMS)
def test_no_sign_is_torn(signs: list[str], longest: int) -> None:
    text = "".join(signs)
    parts = split(text, longest, utf16_units)
    assert [one for part in parts for one in iter_graphemes(part)] == list(iter_graphemes(text))


def test_a_sign_longer_than_a_message_is_cut_all_the_same() -> None:
    tower = "a" + "\N{COMBINING ACUTE ACCENT}" * 500
    parts = split(tower, 100)
    assert "".join(parts) == tower
    assert all(len(part) <= 100 for part in parts)
    assert unicodedata.combining(tower[1])


def test_paragraphs_are_borders_and_short_ones_stay_together() -> None:
    assert split("one\n\ntwo\n\n" + "three " * 20, 100) == ["one\n\ntwo", ("three " * 20)[:96].rstrip(), "three " * 4]


def test_sentences_are_better_borders_than_words_and_words_than_none() -> None:
    assert (
        split("A sentence that is here. " * 2 + "And more of it", 60)[0] == ("A sentence that is here. " * 2).rstrip()
    )
    assert split("wordy " * 20, 50)[0] == ("wordy " * 8).rstrip()
    assert split("x" * 120, 50) == ["x" * 50, "x" * 50, "x" * 20]


def test_a_long_fence_is_closed_and_opened_again_with_its_language() -> None:
    code = "\n".join(f"line_{n} = {n}" for n in range(40))
    parts = split(f"Look:\n```python\n{code}\n```\nThat was it.", 120)
    assert parts[0] == "Look:"
    assert all(part.startswith("```python\n") and part.count("```") == 2 for part in parts[1:])
    assert parts[-1].endswith("```\n\nThat was it.")
    lines = [line for part in parts for line in part.split("\n") if line.startswith("line_")]
    assert "\n".join(lines) == code


def test_what_a_fence_says_of_itself_is_not_lost_when_it_is_long() -> None:
    parts = split("```py title=" + "t" * 100 + "\nx = 1\n" + "y = 2\n" * 30 + "```", 60)
    assert "".join(parts).replace("```", "").replace("\n", "").startswith("py title=" + "t" * 100 + "x = 1")


def test_white_space_in_code_is_kept() -> None:
    code = "if x:\n\n\n        deep  =  1\n\ty"
    assert split(f"```\n{code}\n```", 1000) == [f"```\n{code}\n```"]


@pytest.mark.parametrize("text", ["", " \n\n ", "\n"])
def test_nothing_visible_is_no_message(text: str) -> None:
    assert split(text, 100) == []


@pytest.mark.parametrize("text", ["Look", "```py\ncode", "```py\ncode\n```", "```", "~~~"])
def test_the_cursor_of_a_growing_reply_opens_and_breaks_no_fence(text: str) -> None:
    (shown,) = split(with_cursor(text, " ▉"), 100)
    assert open_fence(shown) is None
    assert shown.count("▉") == 1
    whole = split(text, 100)[0]
    assert open_fence(whole) is None and shown.replace("▉", "").split() in (whole.split(), [*whole.split(), whole[:3]])


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "word " * 200_000,
        "a\n" * 500_000,
        "a\n\n" * 333_000,
        "```\n" + "x" * 1_000_000 + "\n```",
        "```\n" + "a\n" * 500_000 + "```",
        "😀" * 500_000,
        "`" * 3 + "x" * 300 + "a ``` " * 100_000,
    ],
    ids=["line", "words", "lines", "paragraphs", "fence-line", "fence-lines", "emoji", "ticks"],
)
def test_a_megabyte_takes_work_in_proportion_to_its_length(text: str) -> None:
    looked_at = 0

    def counting(piece: str) -> int:
        nonlocal looked_at
        looked_at += len(piece)
        return len(piece)

    def work(share: str) -> int:
        nonlocal looked_at
        looked_at = 0
        split(share, 4000, counting)
        return looked_at

    tenth, whole = work(text[: len(text) // 10]), work(text)
    assert whole <= 12 * tenth
    assert whole <= 6 * len(text)
