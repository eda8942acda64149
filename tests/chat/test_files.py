"""Files in the terminal: @path in a question, the file tools with their diffs, undoing changes, and the answers to a question."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chat.server import Call, ModelServer
from tests.support.screen import Screen

Open = Callable[..., Screen]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a few files."""
    made = tmp_path / "project"
    (made / "parts").mkdir(parents=True)
    (made / "notes.txt").write_text("one\ntwo\nthree\n")
    (made / "a b.txt").write_text("with a space\n")
    (made / "parts" / "x.py").write_text("print(1)\n")
    (made / "dot.png").write_bytes(PIXEL)
    (made / "blob.bin").write_bytes(b"\0\1\2" * 100)
    return made


def sent(server: ModelServer) -> Any:
    return server.requests[-1]["messages"][-1]["content"]


def results(server: ModelServer) -> list[str]:
    return [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]


def test_a_path_after_an_at_sign_goes_with_the_question(server: ModelServer, open_screen: Open, folder: Path) -> None:
    screen = open_screen(cwd=folder, width=100)
    screen.type("look at @no")
    screen.wait_for("  notes.txt")
    screen.press("Tab")
    screen.type(' and @"a b.txt" and @parts, me@example.org')
    screen.press("Enter")
    text = screen.wait_for("That is all")
    assert "With notes.txt: 3 lines, 14 bytes" in text and "With a b.txt: 1 line" in text
    assert "With parts: folder, 1 entry" in text
    assert sent(server) == (
        'look at @notes.txt and @"a b.txt" and @parts, me@example.org\n\n[file notes.txt: 3 lines, 14 bytes]\none\ntwo\n'
        "three\n[end of notes.txt]\n\n[file a b.txt: 1 line, 13 bytes]\nwith a space\n[end of a b.txt]\n\n"
        "[folder parts: 1 entry]\nx.py  9 bytes"
    )
    screen.line("what is @dot.png?")
    screen.wait_for("With dot.png: picture, 70 bytes")
    screen.wait_for("That is all", times=2)
    assert sent(server)[0] == {"type": "text", "text": "what is @dot.png?"}
    assert sent(server)[1]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    screen.line("and @blob.bin?")  # refused; the line comes back
    screen.wait_for("@blob.bin is a binary file (300 bytes); the message was not sent")
    screen.wait_for("❯ and @blob.bin?", times=2)
    assert len(server.requests) == 2


def test_files_are_changed_with_a_diff_and_put_back_by_undo(
    server: ModelServer, open_screen: Open, folder: Path
) -> None:
    patch = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,2 +1,2 @@\n-one\n+ONE\n zwei\n"
    server.scripts = [
        [Call("edit_file", path="notes.txt", old="two", new="zwei")],
        [Call("edit_file", path="notes.txt", patch=patch)],
        [Call("write_file", path="new/made.txt", content="fresh\n")],
        [Call("read_file", path="notes.txt", offset=2, limit=1)],
        ["Changed."],
    ]
    os.chmod(folder / "notes.txt", 0o640)
    screen = open_screen(cwd=folder)
    screen.line("change them")
    text = screen.wait_for("Changed.")
    assert re.search(r"✓ edit_file  notes.txt  \S+\n    @@ .*\n     one\n    -two\n    \+zwei\n     three\n", text)
    assert re.search(r"✓ write_file  new/made.txt  \S+\n    @@ .*\n    \+fresh\n", text)
    coloured = screen.styled()
    assert re.search(r"\x1b\[31m\S* *-two", coloured) and re.search(r"\x1b\[32m\S* *\+zwei", coloured), coloured
    assert (folder / "notes.txt").read_text() == "ONE\nzwei\nthree\n"
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o640
    assert results(server)[-1] == f"[{folder}/notes.txt: 3 lines, 15 bytes; lines 2 to 2]\nzwei\n"
    screen.line("/undo")
    screen.wait_for("Restore 2 files")
    screen.line("y")
    screen.wait_for("Removed new/made.txt.")
    assert (folder / "notes.txt").read_text() == "one\ntwo\nthree\n"
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o640
    assert not (folder / "new" / "made.txt").exists()
    server.scripts = [[Call("write_file", path="notes.txt", content="other\n")], ["Written."]]
    screen.line("and again")
    screen.wait_for("Written.")
    (folder / "notes.txt").write_text("by hand\n")  # somebody else's work is not overwritten
    screen.line("/undo")
    screen.wait_for("Restore 1 file")
    screen.line("y")
    screen.wait_for("alone: it was changed since.")
    assert (folder / "notes.txt").read_text() == "by hand\n"


def test_the_answers_to_a_question(server: ModelServer, open_screen: Open, folder: Path, home: Path) -> None:
    """No with a reason; yes; always in this folder; always everywhere; and what /allowed makes of it."""
    (folder / "link").symlink_to(folder.parent)
    (folder.parent / "secret.txt").write_text("hidden\n")
    rows = " ".join(f"row-{number}" for number in range(400))
    server.scripts = [
        [Call("read_file", path="link/secret.txt")],
        ["As you say."],
        [Call("terminal", command=f"touch once && echo {rows}")],
        ["Once."],
        [Call("terminal", command="touch here")],
        ["Here."],
        [Call("terminal", command="touch here-too && ls")],
        ["Not asked."],
        [Call("terminal", command="mkdir -p everywhere")],
        ["Everywhere."],
        [Call("terminal", command="cd / && mkdir -p /tmp && touch nowhere")],
        ["Asked about touch alone."],
        [Call("terminal", command="touch asked-again")],
        ["The end."],
    ]
    screen = open_screen(cwd=folder, width=100, height=60)
    screen.line("read it")
    text = screen.wait_for("[y/N]")
    assert f"Read {folder.parent}/secret.txt?" in " ".join(text.split())
    screen.line("take notes.txt instead")
    text = screen.wait_for("As you say.")
    assert results(server)[-1].endswith("The user said: take notes.txt instead")
    assert re.search(r"✗ read_file .*declined  0\.\ds", text)  # the wait for the user is not the tool's time
    screen.line("once")
    text = screen.wait_for("[y/N]", times=2)
    assert [word for word in rows.split() if word not in text.split("Run `")[-1]] == []  # whole, never cut
    assert "always for touch" in text
    screen.line("y")
    screen.wait_for("Once.")
    screen.line("here")
    screen.wait_for("[y/N]", times=3)
    screen.line("a")
    screen.wait_for("Here.")
    screen.line("here, too")
    screen.wait_for("Not asked.")
    assert (folder / "here-too").exists()
    screen.line("everywhere")
    screen.wait_for("[y/N]", times=4)
    screen.line("e")
    screen.wait_for("Everywhere.")
    rules = yaml.safe_load((home / "config.yaml").read_text())["permissions"]["allow"]
    assert rules == [{"command": "touch", "folder": str(folder)}, "mkdir"]
    screen.line("/allowed")
    text = screen.wait_for("  2  mkdir  everywhere")
    assert f"1touchin{folder}" in "".join(text.split())  # a long folder is wrapped
    screen.line("/permissions remove 1")
    screen.wait_for("Removed: touch")
    assert yaml.safe_load((home / "config.yaml").read_text())["permissions"]["allow"] == ["mkdir"]
    screen.line("elsewhere")
    text = screen.wait_for("[y/N]", times=5)
    assert "(touch is not known to only read)" in text.split("Run `")[-1]
    screen.line("")
    screen.wait_for("Asked about touch alone.")
    screen.line("again")
    screen.wait_for("[y/N]", times=6)
    screen.line("n")
    screen.wait_for("The end.")
    assert not (folder / "asked-again").exists()
