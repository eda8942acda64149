"""The recording: bring the histories, find a passage, ask why a line is there, and go on."""

from __future__ import annotations

from pathlib import Path

from tools.pictures.recording import Camera, svg
from tools.pictures.scene import QUESTION

PROMPT = "~/work/records $"
TITLE = "hermes in a terminal"


def recorded(repository: Path, variables: dict[str, str]) -> str:
    """The animated picture; what it shows for a second or longer is its description, too."""
    variables = variables | {"PS1": r"\[\e[32m\]\w\[\e[0m\] $ ", "TERM": "tmux-256color", "HISTFILE": ""}
    with Camera(["bash", "--norc", "--noprofile"], env=variables, cwd=repository) as camera:
        camera.until_last_line(PROMPT)
        camera.frames.clear()
        camera.look(0.3)
        camera.command("hermes sessions import --found --yes", PROMPT, 2.5)
        camera.clear(PROMPT)
        camera.command('hermes sessions search "memory of the parser" --limit 3', PROMPT, 3.5)
        camera.clear(PROMPT)
        camera.command("hermes why records/parser.py:14", PROMPT, 4.0)
        camera.clear(PROMPT)
        camera.keys("hermes -r @claude")
        camera.press("Enter")
        first = len(camera.frames)
        camera.wait_for("k tokens")  # the prompt, after the lines above it
        del camera.frames[first:]
        camera.until_settled()
        camera.look(1.2)
        camera.keys(QUESTION)
        camera.press("Enter")
        camera.until_shown("2 March.")
        camera.until_settled()
        camera.look(4.0)
        return svg(camera.frames, TITLE)
