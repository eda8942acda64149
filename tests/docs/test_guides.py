"""The pages of the guide show what the commands print. `python -m tests.support.guide --write` brings them up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import guide
from tests.support.seeds import NOW


@pytest.mark.parametrize("page", guide.pages(), ids=lambda path: path.name)
def test_the_commands_of_the_page_print_what_it_shows(page: Path) -> None:
    assert guide.differences(page.read_text()) == []


def test_a_page_that_says_something_else_is_noticed_and_put_right() -> None:
    text = (
        "<!-- seed: tests.support.seeds:guide -->\n\n```console\n$ hermes sessions stats | head -2\nTotal sessions: 7\n"
        "Total messages: …\n$ echo a; \\\n> echo b\na\nb\n$ false\n```\n"
    )
    found = guide.differences(text)
    assert len(found) == 2
    assert "Total sessions: 5" in found[0]
    assert "(exit status 1)" in found[1]
    right = guide.rewritten(text)
    assert "Total sessions: 5\nTotal messages: 15\n$ echo a; \\\n> echo b\na\nb\n$ false\n\n(exit status 1)\n" in right
    assert guide.differences(right) == []
    assert guide.rewritten(right) == right


def test_a_seed_may_give_variables_and_the_clock_stands_still() -> None:
    text = (
        '<!-- seed: tests.docs.test_guides:seeded -->\n```console\n$ echo "$WORD $HERMES_NOW $COLUMNS"\nhello …\n```\n'
    )
    assert guide.differences(text) == []
    assert f"hello {NOW} 80" in guide.rewritten(text.replace("hello …", "?"))


def seeded(home: Path) -> dict[str, str]:
    return {"WORD": "hello"}


def test_three_dots_stand_for_anything_within_a_line() -> None:
    assert guide.agrees("a … c\nd", "a b b c\nd\n")
    assert not guide.agrees("a … c", "a b\nc")
    assert not guide.agrees("a … c\nd", "a b c")


def test_output_before_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with a command"):
        guide.steps("hello\n$ ls\n")
