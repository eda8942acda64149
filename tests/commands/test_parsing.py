"""Which lines are commands, and which are texts to send."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.commands.registry import known, load, parse, sent_text

pytestmark = pytest.mark.mechanism

NAMES = sorted(load())
words = st.text(st.characters(exclude_categories=["Cs"]))
name_letters = st.text(string.ascii_letters + string.digits + "-_?", min_size=1, max_size=12)


@given(words)
def test_every_line_is_either_a_command_or_a_text_and_never_an_error(line: str) -> None:
    parsed = parse(line)
    if parsed is None:
        assert sent_text(line) == (line[1:] if line.startswith("//") else line)
    else:
        name, arguments = parsed
        assert line.startswith("/") and "/" not in name and not any(c.isspace() for c in name)
        assert arguments == arguments.strip()


@given(words)
def test_two_slashes_send_any_text_that_begins_with_one(rest: str) -> None:
    assert parse("//" + rest) is None
    assert sent_text("//" + rest) == "/" + rest


@given(name_letters, st.text(string.ascii_letters + " .,'\"\n", max_size=40))
def test_name_and_arguments_come_back(name: str, arguments: str) -> None:
    assert parse(f"/{name} {arguments}") == (name.casefold(), arguments.strip())
    assert parse(f"/{name}") == (name.casefold(), "")


@given(st.lists(name_letters, min_size=2, max_size=4), words)
def test_a_path_is_a_text(parts: list[str], rest: str) -> None:
    assert parse("/" + "/".join(parts) + " " + rest) is None


def test_every_command_of_the_terminal_is_there_and_says_where_it_works() -> None:
    both = "new title resume sessions compress branch undo retry history status usage tag pin stop help handoff"
    both += " model search why recall"
    assert {one.name for one in known("cli")} == {
        *both.split(),
        *"quit clear context show reasoning allowed".split(),
    }
    assert {one.name for one in known("gateway")} == {
        *both.split(),
        "sethome",
        "queue",
    }
    for name in {one.name for one in (*known("cli"), *known("gateway"))}:
        one = load()[name]
        assert one.name == name and one.help and one.where and one.where <= {"acp", "cli", "gateway"}
