"""The pictures of the README show what the program does today, fit into a page, and load nothing."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


def shown(picture: Path) -> str:
    """The screens of a recording as text, without the model's port and the prompt's length, which has the folder's path."""
    found = re.search(r"<desc[^>]*>(.*?)</desc>", picture.read_text(), re.DOTALL)
    assert found is not None
    return re.sub(r"[\d,]+ (?=of \S+ tokens)", "", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1", found[1]))


def test_the_recording_is_small_and_needs_nothing_but_itself() -> None:
    text = (PICTURES / "terminal.svg").read_text()
    assert len(text.encode()) < 150 * 1024
    assert re.findall(r"https?://[^\s\"'<)]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<image|<foreignObject|@import|url\(", text)
    assert "prefers-color-scheme:dark" in text and "prefers-reduced-motion" in text


@pytest.mark.parametrize("name", ["web-light.png", "web-dark.png"])
def test_the_photographs_are_small_pictures(name: str) -> None:
    data = (PICTURES / name).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) < 200 * 1024
    assert struct.unpack(">I", data[16:20])[0] >= 1000


def test_the_readme_shows_every_picture() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [file.name for file in PICTURES.iterdir() if f"docs/pictures/{file.name}" not in readme] == []


@pytest.mark.thorough
def test_the_recording_shows_what_the_program_shows_today(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.pictures", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if "is not installed" in done.stderr:
        from tests.support.environments import missing

        missing(done.stderr.strip().rpartition("\n")[2])
    assert done.returncode == 0, done.stderr
    assert shown(tmp_path / "terminal.svg") == shown(PICTURES / "terminal.svg"), "remake it: make pictures"
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in PICTURES.iterdir()}
