"""The conversation that docs/guide/chat.md tells of: who answers, and what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chat.server import Call, ModelServer

ANSWERS: dict[str, list[Any]] = {
    "What is the capital of Peru?": ["Lima."],
    "And of Chile?": ["Santiago."],
    "Anything odd in this?": ["`timeout` is 0: every request fails at once."],
    "Which of the two parsers did we take?": ["The hand-written one: it tells the line of an error."],
    "How many tests does it have?": [Call("terminal", command="ls tests | wc -l")],
}


class Guide(ModelServer):
    """Answers the questions of the page, whatever their order."""

    def __init__(self) -> None:
        super().__init__(models=("llama3.2",))
        self.task_answer = lambda body: "Parser for config files"

    def script_for(self, body: dict[str, Any]) -> list[Any]:
        if "max_tokens" in body or "stream_options" not in body:
            return super().script_for(body)
        last = body["messages"][-1]
        if last["role"] == "tool":
            return ["There are 12 of them."]
        question = str(last["content"]).split("\n")[0]
        return ANSWERS.get(question, ["I don't know."])


@contextmanager
def seed(home: Path) -> Iterator[dict[str, str]]:
    """A home whose model knows the answers of the page; `server.ini` lies in the folder the commands run in."""
    with Guide() as server:
        (home / "config.yaml").write_text(server.config())
        (home.parent / "work" / "server.ini").write_text("[server]\ntimeout = 0\n")
        yield {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"}
