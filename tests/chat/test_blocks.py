"""Markdown that grows piece by piece looks as if it had come at once."""

from __future__ import annotations

from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hermes.agent.turn import Done, Text
from hermes.chat.render import LiveDisplay, blocks, markdown

pytestmark = pytest.mark.mechanism

SAMPLE = """# A heading

Some *text* with `code`, over
two lines.

- one
- two

  still two
- three

```python
def f():

    return "```"
```

| a | b |
|---|---|
| 1 | 2 |

> quoted

1. first
2. second

The end."""
samples = st.sampled_from(SAMPLE.split("\n\n") + ["---", "    indented", "<b>x</b>", "***", "```\nopen"])


@given(st.lists(samples, max_size=6), st.integers(0, 400))
def test_blocks_are_the_whole_text_cut_where_lines_begin(parts: list[str], until: int) -> None:
    text = "\n\n".join(parts)[:until]
    cut = blocks(text)
    assert "".join(cut) == text and all(block.endswith("\n") for block in cut[:-1])


def test_a_line_that_is_not_whole_begins_no_block() -> None:
    assert len(blocks("text\n#")) == 1  # "#hashtag" would go on with the paragraph


def shown(pieces: list[str], width: int = 60) -> str:
    out = StringIO()
    screen = Console(file=out, width=width, height=20, force_terminal=True, color_system=None)
    display = LiveDisplay(screen)
    for piece in pieces:
        display.feed(Text(piece))
    display.feed(Done("".join(pieces)))
    display.finish()
    return out.getvalue()


def visible(raw: str, width: int = 60, height: int = 200) -> list[str]:
    """The screen of a terminal after this output, which has lines, carriage returns, cursor up and erasing a line only."""
    lines, row, column, place = [""], 0, 0, 0
    while place < len(raw):
        if raw[place] == "\x1b":
            end = place + 2
            while not raw[end].isalpha():
                end += 1
            number, letter = raw[place + 2 : end], raw[end]
            if letter == "A":
                row = max(0, row - int(number or 1))
            elif letter == "K":
                lines[row] = ""
            place = end + 1
            continue
        if raw[place] == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append("")
        elif raw[place] == "\r":
            column = 0
        else:
            lines[row] = lines[row][:column].ljust(column) + raw[place] + lines[row][column + 1 :]
            column += 1
        place += 1
    return [line.rstrip() for line in lines]


@given(st.lists(st.integers(1, len(SAMPLE) - 1), max_size=12))
def test_nothing_of_a_reply_is_lost_or_doubled_however_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(SAMPLE)]
    pieces = [SAMPLE[one:two] for one, two in pairwise(places)]
    text = "\n".join(visible(shown(pieces)))
    for word in ("A heading", "two lines.", "still two", "three", 'return "```"', "quoted", "second", "The end."):
        assert text.count(word) == 1, (word, text)


def test_a_growing_reply_ends_up_like_the_whole_one() -> None:
    whole = "\n".join(line for line in visible(shown([SAMPLE])) if line)
    assert "\n".join(line for line in visible(shown(list(SAMPLE))) if line) == whole


def test_a_line_break_that_comes_in_two_pieces_is_one() -> None:
    whole = visible(shown(["one\ntwo"]))
    assert visible(shown(["one\r", "\ntwo"])) == whole and visible(shown(["one\r\ntwo"])) == whole


def test_addresses_are_shown_not_hidden() -> None:
    out = StringIO()
    Console(file=out, width=80, force_terminal=True).print(markdown("[my bank](https://evil.example)"))
    assert "evil.example" in out.getvalue()
