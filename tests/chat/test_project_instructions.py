"""AGENTS.md and its like in the system prompt, commands of the user's own, and the model's reasoning, at a real prompt."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chat.server import ModelServer
from tests.support.program import run
from tests.support.screen import Screen
from tests.support.wire import Wire, delta, end, sse

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def system(server: ModelServer) -> str:
    (first, *_) = server.requests[-1]["messages"]
    assert first["role"] == "system"
    return str(first["content"])


def test_the_files_from_the_root_down_are_part_of_the_prompt(server: ModelServer, home: Path, tmp_path: Path) -> None:
    inside = tmp_path / "repo" / "src" / "deep"
    inside.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "AGENTS.md").write_text("above the root")
    (home / "AGENTS.md").write_text("of the home")
    (tmp_path / "repo" / "AGENTS.md").write_text("Use tabs.")
    (tmp_path / "repo" / "CLAUDE.md").write_text("not beside AGENTS.md")
    (inside.parent / "CLAUDE.md").write_text("of Claude")
    (inside.parent / "GEMINI.md").write_text("not beside CLAUDE.md")
    (inside / ".cursorrules").write_text("of Cursor " + "x" * 200_000 + " the end")
    os.mkfifo(tmp_path / "repo" / "GEMINI.md")
    assert run("-q", "hello", home=home, cwd=inside).status == 0
    prompt = system(server)
    places = [
        prompt.index(text) for text in ("Working directory", "of the home", "Use tabs.", "of Claude", "of Cursor")
    ]
    assert places == sorted(places) and "the end" in prompt
    assert "above the root" not in prompt and "not beside" not in prompt and len(prompt) < 40_000
    assert run("--system", "Be brief.", "-q", "hello", home=home, cwd=inside).status == 0
    assert system(server) == "Be brief."


def test_a_changed_file_is_read_again_and_an_unchanged_one_changes_nothing(
    server: ModelServer, home: Path, tmp_path: Path, open_screen: Open
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("Use tabs.")
    screen = open_screen(width=100, cwd=folder, until="Project instructions:")
    screen.wait_for("❯")
    screen.line("first question")
    screen.wait_for("tokens")
    first = system(server)
    screen.line("second question")
    screen.wait_for("second question")
    screen.line("/context")
    screen.wait_for("Instructions ", times=2)
    text = screen.wait_for("the middle is summarised")
    assert f"Instructions{folder / 'AGENTS.md'}" in "".join(text.split())  # a long path is wrapped
    assert system(server) == first and "Use tabs." in first
    (folder / "AGENTS.md").write_text("Use spaces, always.")
    screen.line("third question")
    screen.wait_for("Project instructions read again")
    screen.line("/history")
    screen.wait_for("you: third question")
    assert "Use spaces, always." in system(server) and "Use tabs." not in system(server)
    screen.leave()
    (folder / "AGENTS.md").unlink()
    assert run("-c", "-q", "fourth question", home=home, cwd=folder).status == 0
    assert "Use spaces" not in system(server) and system(server) == first.partition("\n\n# Project")[0]


def test_a_command_of_the_users_own_runs_and_its_output_joins_the_conversation(
    server: ModelServer, tmp_path: Path, open_screen: Open, look: Look
) -> None:
    screen = open_screen(cwd=tmp_path)
    screen.line("!echo walrus $((40 + 2)); false")
    screen.wait_for("walrus 42")
    screen.wait_for("Exit status 1.")
    screen.line("!echo reads; read -r line; echo got $line")
    screen.wait_for("reads", times=2)
    screen.line("typed for it")
    screen.wait_for("got typed for it")
    screen.line("!echo begun; sleep 600")
    screen.wait_for("begun", times=2)
    screen.press("C-c")
    screen.wait_for("with your next message", times=3)
    screen.line("!!important: what did I run?")
    screen.wait_for("!important")
    screen.line("/history")
    screen.wait_for("agent:")
    texts = [str(one["content"]) for one in server.requests[-1]["messages"]]
    assert any("$ echo walrus $((40 + 2)); false\nwalrus 42\n[exit status 1]" in text for text in texts)
    assert any("got typed for it" in text for text in texts) and any("begun\n[exit status" in text for text in texts)
    assert texts[-1] == "!important: what did I run?" and not any(
        "interrupted before it began" in text for text in texts
    )
    rows = look(lambda db: db.get_messages(db.list_sessions_rich()[0]["id"]))
    assert [row["role"] for row in rows[:4]] == ["user"] * 4


def test_reasoning_is_one_line_until_it_is_asked_for(home: Path, open_screen: Open) -> None:
    thinking = [delta(reasoning_content="First the walrus,\n"), delta(reasoning_content="then the ice.")]
    answers = [sse(*thinking, delta(content=f"Answer {number}."), end(), "[DONE]") for number in (1, 2)]
    with Wire([*answers, sse(delta(content="Answer 3."), end(), "[DONE]")]) as wire:
        (home / "config.yaml").write_text(
            f"model: {{default: wire-1, base_url: '{wire.base_url}', api_key: x}}\n"
            "auxiliary: {title: {model: none, base_url: 'http://127.0.0.1:9/v1'}}\n"
        )
        screen = open_screen()
        screen.line("why?")
        screen.wait_for("Answer 1.")
        assert "Thought for" in screen.history() and "walrus" not in screen.history()
        screen.line("/reasoning")
        screen.wait_for("then the ice.")
        screen.line("/reasoning show")
        screen.wait_for("/reasoning hide folds it")
        screen.line("and why?")
        screen.wait_for("Answer 2.")
        screen.wait_for("then the ice.", times=2)
        screen.line("now?")
        screen.wait_for("Answer 3.")
        screen.line("/reasoning")
        screen.wait_for("came without reasoning")
