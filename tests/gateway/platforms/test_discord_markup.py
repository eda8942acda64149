"""Markdown as Discord shows it: what is changed, what stays, and that no text can break it."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms.discord.outgoing import LONGEST, to_discord
from tests.support.markdown import MARKDOWN

pytestmark = pytest.mark.mechanism


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# One\n## Two\n### Three", "# One\n## Two\n### Three"),
        ("#### Four\n###### **Six**", "**Four**\n**Six**"),
        ("**bold** *italic* ~~gone~~ `code`", "**bold** *italic* ~~gone~~ `code`"),
        ("__Note__ well", "**Note** well"),
        ("call __init__ first", r"call \_\_init\_\_ first"),
        ("a || b || c", r"a \|\| b \|\| c"),
        ("`a || b` and `__x__`", "`a || b` and `__x__`"),
        ("above\n\n---\n\nbelow", "above\n\n───\n\nbelow"),
        ("- one\n  - two\n+ three\n1. four", "- one\n  - two\n- three\n1. four"),
        ("- [ ] open\n- [x] done", "- ☐ open\n- ☑ done"),
        ("![a cat](https://x.org/cat.png)", "[a cat](https://x.org/cat.png)"),
        ("![](https://x.org/cat.png)", "https://x.org/cat.png"),
        ("[docs](https://x.org/a_b)", "[docs](https://x.org/a_b)"),
        ("[https://x.org](https://x.org)", "https://x.org"),
        (">>> print(1)\nnot quoted", "\\>>> print(1)\nnot quoted"),
        ("> quoted", "> quoted"),
        ("```python\na || b\n#### c\n```", "```python\na || b\n#### c\n```"),
        ("```python title=x\n1\n```", "```python\n1\n```"),
        ("~~~js\n1\n~~~", "```js\n1\n```"),
        ("````md\n```\nx\n```\n````", "```md\n``\u200b`\nx\n``\u200b`\n```"),
        ("- item\n  ```sh\n  ls\n  ```\n- next", "- item\n  ```sh\n  ls\n  ```\n- next"),
        ("```python\nx = 1", "```python\nx = 1\n```"),
        ("```not really a fence", "```\nnot really a fence\n```"),
        ("type ``` to begin", r"type \`\`\` to begin"),
        ("with ```three``` inside", "with ``three`` inside"),
    ],
)
def test_what_discord_shows_differently_is_changed_and_the_rest_is_left(markdown: str, shown: str) -> None:
    assert to_discord(markdown) == shown


def test_a_table_stands_in_columns() -> None:
    table = "Prices:\n\n| Fruit | **Price** |\n|:--|--:|\n| Kiwi | `1` |\n| 桃 | 22 |\n\nThat is all."
    assert to_discord(table) == ("Prices:\n\n```\nFruit  Price\n─────  ─────\nKiwi   1\n桃     22\n```\n\nThat is all.")


def test_a_wide_table_becomes_a_list_with_all_its_words() -> None:
    table = f"| Name | Why | Link |\n|---|---|---|\n| Kiwi | {'good ' * 14}| [x](https://x.org) |\n| Fig | | none |"
    assert to_discord(table) == (
        f"- **Kiwi** · Why: {('good ' * 14).strip()} · Link: x (https://x.org)\n- **Fig** · Link: none"
    )


def test_code_in_a_table_can_not_end_the_table() -> None:
    shown = to_discord("| a | b |\n|---|---|\n| x``\u0060y | z |")
    assert shown.count("```") == 2


def test_a_text_that_would_grow_over_the_limit_takes_a_plainer_form() -> None:
    pipes = ("a || b " * 400)[:LONGEST]
    assert to_discord(pipes) == pipes
    code = "```\n" + "x" * (LONGEST - 12) + "\n```\n||"
    assert utf16_units(code) < LONGEST
    assert to_discord(code + "|")[-3:] == "|||"
    assert to_discord(code + "|").startswith("```\nxxx")
    cut = "```python\n" + "x" * (LONGEST - 10)
    assert to_discord(cut) == cut.replace("```", "'''")


@given(MARKDOWN)
@example("`" * 7)
@example("```\n````\n~~~\n```")
@example("> ```\n> x\n> ```")
@example("a ``` b\n```\nc\n```")
def test_no_text_leaves_a_block_of_code_open_or_hides_words(text: str) -> None:
    shown = to_discord(text)
    assert shown.count("```") % 2 == 0
    outside = "".join(re.split(r"```.*?```", shown, flags=re.DOTALL))
    outside = re.sub(r"(`+)[^\n]+?\1", "", outside)
    assert "||" not in outside


@given(MARKDOWN, st.integers(1, LONGEST))
def test_no_text_grows_over_the_limit_that_it_keeps_itself(text: str, limit: int) -> None:
    while utf16_units(text) > limit:
        text = text[:-1]
    assert utf16_units(to_discord(text, limit)) <= limit


@given(st.text(alphabet="abcdefgh ,.\n()=", max_size=500), st.text(alphabet="ab|_*#[]()>+-\\ \n", max_size=500))
def test_plain_words_and_code_stay_as_they_are(words: str, code: str) -> None:
    assert to_discord(words) == words
    block = f"```python\n{code}\n```"
    assert to_discord(block) == block
