"""The pages of the guide show what the commands print. `python -m tests.support.guide --write` brings them up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import guide


@pytest.mark.parametrize("page", guide.pages(), ids=lambda path: path.name)
def test_the_commands_of_the_page_print_what_it_shows(page: Path) -> None:
    assert guide.differences(page.read_text()) == []
