"""A conversation with a fake model that was written elsewhere (npm @copilotkit/aimock)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.aimock import Aimock
from tests.support.screen import Screen

FIXTURES = [
    {"match": {"toolResultContains": "from the shell"}, "response": {"content": "The shell said hello."}},
    {
        "match": {"userMessage": "run something"},
        "response": {"toolCalls": [{"name": "terminal", "arguments": '{"command": "echo from the shell"}'}]},
    },
    {
        "match": {"userMessage": "talk slowly"},
        "response": {"content": "One word, then another, and then many more words that nobody waits for."},
        "latency": 400,
        "chunkSize": 4,
    },
    {"match": {"userMessage": "good morning"}, "response": {"content": "# Hello\n\nA *fine* day."}},
]


def test_talking_tools_interrupting_and_coming_back(
    home: Path, open_screen: Callable[..., Screen], look: Callable[[Callable[[Any], Any]], Any]
) -> None:
    with Aimock(FIXTURES) as mock:
        (home / "config.yaml").write_text(f"model: {{default: fake, base_url: '{mock.base_url}', api_key: x}}\n")
        screen = open_screen()
        screen.line("good morning")
        screen.wait_for("A fine day.")
        screen.line("run something")
        screen.wait_for("The shell said hello.")
        assert "✓ terminal  echo from the shell" in screen.text()
        screen.line("talk slowly")
        screen.wait_for("One word")
        screen.press("C-c")
        screen.wait_for("Stopped; the reply so far is kept.")
        screen.press("C-d")
        assert screen.wait_until_over() == 0
        again = open_screen("-c", until="")
        text = again.wait_for("❯")
        assert "● run something" in text and "[1 tool call: terminal]" in text and "◆ One word" in text
        (row,) = look(lambda db: db.list_sessions_rich())
        kept = look(lambda db: db.get_messages(row["id"]))
        assert [one["role"] for one in kept] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert kept[-1]["content"].startswith("One word") and not kept[-1]["content"].endswith("waits for.")
        assert kept[-1]["finish_reason"] == "interrupted"
