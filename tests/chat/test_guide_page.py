"""docs/guide/chat.md: its screens are what a terminal shows, and it knows every command.

(The ```console blocks are run by tests/docs.) A screen is a ```text block after `<!-- screen: name -->`; `…` stands for
anything within a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.commands.registry import TERMINAL, load
from tests.chat.guide import Guide
from tests.support.guide import GUIDE, agrees
from tests.support.labs.base import until
from tests.support.screen import Screen

PAGE = (GUIDE / "chat.md").read_text()
SCREENS = dict(re.findall(r"<!-- screen: (\S+) -->\n+```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def server(home: Path) -> Iterator[Guide]:
    with Guide() as one:
        (home / "config.yaml").write_text(one.config())
        yield one


def shows(screen: Screen, name: str) -> None:
    """The screen holds the lines the page shows, one after the other."""
    wanted = SCREENS[name].split("\n")
    lines = screen.text().split("\n")
    found = any(agrees("\n".join(wanted), "\n".join(lines[at : at + len(wanted)])) for at in range(len(lines)))
    assert found, f"the page says\n{SCREENS[name]}\n--- the screen\n{screen.text()}"


def test_the_screens_of_the_page_are_what_a_terminal_shows(
    server: Guide, open_screen: Callable[..., Screen], look: Callable[[Callable[[Any], Any]], Any], tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    for number in range(12):
        (tmp_path / "tests" / f"test_{number}.py").touch()
    screen = open_screen(cwd=tmp_path)
    shows(screen, "start")
    screen.line("Which of the two parsers did we take?")
    screen.wait_for("the line of an error.")
    screen.line("How many tests does it have?")
    screen.wait_for("There are 12 of them.")
    shows(screen, "tools")
    until(lambda: look(lambda db: db.list_sessions_rich()[0]["title"]), "the title")
    screen.leave()
    shows(screen, "leave")
    again = open_screen("-c", cwd=tmp_path)
    shows(again, "recap")
    again.paste("one line of a long text\n" * 300)
    again.wait_for("characters]")
    shows(again, "paste")
    again.press("C-c")
    assert set(SCREENS) == {"start", "tools", "leave", "recap", "paste"}


def test_the_page_tells_of_every_command() -> None:
    messengers = (GUIDE / "gateway.md").read_text()
    for name, command in load().items():
        assert f"/{name}" in (PAGE if TERMINAL in command.where else messengers), name
