"""Markdown on Telegram: text and marks that are always whole, never too long, and can't be broken out of."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("telegram", reason="needs python-telegram-bot")

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms.telegram.adapter import LONGEST, Formatted, formatted, plain
from tests.support.labs.telegram_wire import marks_wrong
from tests.support.markdown import MARKDOWN

pytestmark = pytest.mark.mechanism


def looks(result: Formatted) -> list[tuple[str, str]]:
    """(kind, the marked words) of each mark."""
    units = result.text.encode("utf-16-le")
    return [
        (one.type, units[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le")) for one in result.entities
    ]


def wrong(result: Formatted) -> list[str]:
    return marks_wrong(result.text, [one.to_dict() for one in result.entities])


@given(MARKDOWN)
@example("*" * 2000 + "a" + "*" * 2000)
@example("- " * 300 + "deep")
@example("> " * 300 + "deep")
@example("***\n" * 1000)
@example("\ud800 half a sign")
@example("[a][b] " * 500 + "\n\n[b]: mailto:" + "x" * 500)
@example("|a|\n|-|\n" + "|漢|\n" * 400)
def test_any_text_becomes_whole_marks_within_the_limit(text: str) -> None:
    while utf16_units(text) > LONGEST:
        text = text[: len(text) // 2]
    result = formatted(text)
    assert wrong(result) == []
    assert utf16_units(result.text) <= LONGEST
    result.text.encode()


@given(st.lists(st.from_regex(r"[a-zäöü]{1,9}", fullmatch=True), min_size=1, max_size=30), st.randoms())
def test_no_word_is_lost(words: list[str], random: object) -> None:
    wraps = [
        "{}",
        "**{}**",
        "*{}*",
        "`{}`",
        "~~{}~~",
        "[{}](https://e.org)",
        "\n\n# {}\n\n",
        "\n- {}\n",
        "\n> {}\n",
        "\n```\n{}\n```\n",
    ]
    text = " ".join(random.choice(wraps).format(word) for word in words)  # type: ignore[attr-defined]
    assert re.findall(r"[a-zäöü]+", formatted(text).text) == words


@given(MARKDOWN, st.integers(1, 60))
def test_a_text_that_no_longer_fits_is_sent_as_it_was_written(text: str, longest: int) -> None:
    result = formatted(text, longest)
    assert utf16_units(result.text) <= longest or result == plain(text)


def test_what_models_write_looks_as_they_meant_it() -> None:
    result = formatted(
        "## Plan\nUse **bold *and italic***, `code` and [a link](https://e.org/x).\n\n- one\n  1. first\n  2. second\n- two\n\n"
        "> said\n\n```python\nprint(1)\n```\n~~old~~"
    )
    assert result.text == (
        "Plan\nUse bold and italic, code and a link.\n\n• one\n  1. first\n  2. second\n• two\n\nsaid\n\nprint(1)\nold"
    )
    assert looks(result) == [
        ("bold", "Plan"), ("bold", "bold and italic"), ("italic", "and italic"), ("code", "code"), ("text_link", "a link"),
        ("blockquote", "said"), ("pre", "print(1)"), ("strikethrough", "old"),
    ]  # fmt: skip
    assert [one.url for one in result.entities if one.url] == ["https://e.org/x"]
    assert [one.language for one in result.entities if one.language] == ["python"]


def test_a_table_stands_in_columns_also_with_wide_letters() -> None:
    result = formatted("| Name | Wert |\n|---|---|\n| 漢字 | 1 |\n| b<br>c | `2` |\n")
    assert result.text == "Name │ Wert\n─────┼─────\n漢字 │ 1\nb c  │ 2"
    assert [kind for kind, _ in looks(result)] == ["pre"]


def test_a_table_too_wide_for_a_screen_keeps_its_cells() -> None:
    result = formatted(f"| a | b |\n|---|---|\n| {'x' * 50} | {'y' * 50} |\n")
    assert result.text == f"a | b\n{'x' * 50} | {'y' * 50}"


def test_code_shares_its_letters_with_no_other_mark() -> None:
    assert looks(formatted("**bold `code` bold**")) == [("bold", "bold "), ("code", "code"), ("bold", " bold")]
    assert looks(formatted("[`code`](https://e.org)")) == [("text_link", "code")]


def test_nobody_is_called_by_number_and_other_addresses_are_shown() -> None:
    assert formatted("[you](tg://user?id=5)") == Formatted("you")
    assert formatted("[write](mailto:a@b.c), [see](src/x.py)").text == "write (a@b.c), see (src/x.py)"
    assert formatted("[script](javascript:alert)").entities == ()


def test_html_is_text() -> None:
    assert formatted("<b>x</b> <script>") == Formatted("<b>x</b> <script>")


def test_what_would_look_like_nothing_is_sent_as_written() -> None:
    assert formatted("[a]: http://b") == Formatted("[a]: http://b")


def test_boxes_of_a_task_list() -> None:
    assert formatted("- [x] done\n- [ ] open\n").text == "• ☑ done\n• ☐ open"


@pytest.mark.parametrize(
    "text", ["x" * LONGEST, "**" + "x" * (LONGEST - 4) + "**", "👍" * (LONGEST // 2), "- a\n" * (LONGEST // 4)]
)
def test_a_text_of_exactly_the_longest_fits(text: str) -> None:
    assert utf16_units(text) == LONGEST
    assert utf16_units(formatted(text).text) <= LONGEST
