"""What the pictures show: a person's home with the histories of two programs, a repository they changed, and a model.

The store is filled with the functions of tests/support/seeds.py, the histories are files as Claude Code and Codex write
them, and the model is a local server with prepared replies. Every time is fixed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chat.server import ModelServer
from tests.quality.why_story import Story, claude, codex, histories
from tests.support import program, seeds

NOW = 1_774_022_400.0  # 2026-03-20 16:00 UTC: later than every message below

QUESTION = "What did we decide about the old parser?"
REPLY = (
    "You kept it for one release behind `--legacy`, because two customers depend on its error messages. "
    "It goes in 2.0: [Parser reads in pieces], 2 March."
)
TITLE, REWRITE = "Parser reads in pieces", "I read the file in pieces of 64 KB: 41 MB of memory instead of 2.1 GB."
LEGACY = "Keep the old parser behind a flag for one release"

PARSER = '''\
"""Read records, one a line."""


def parse(path):
    with open(path) as file:
        text = file.read()
    return [record(line) for line in text.splitlines()]


def record(line):
    name, _, value = line.partition("=")
    return name.strip(), value.strip()
'''
WHOLE = """\
    with open(path) as file:
        text = file.read()
    return [record(line) for line in text.splitlines()]
"""
PIECES = """\
    for number, line in enumerate(pieces(path), 1):
        yield record(line)


def pieces(path, size=64 * 1024):
    rest = ""
    with open(path) as file:
        while piece := file.read(size):
            *lines, rest = (rest + piece).split("\\n")
            yield from lines
    if rest:
        yield rest
"""


def _tell(root: Path) -> Story:
    """The repository, and what Claude Code and Codex have noted about it."""
    story = Story(root, "records")
    story.write("records/parser.py", PARSER)
    story.commit(1)
    file = str(story.repository / "records/parser.py")

    def edit(old: str, new: str) -> dict[str, Any]:
        return {"name": "Edit", "input": {"file_path": file, "old_string": old, "new_string": new}}

    rewrite = story.begin("claude", "rewrite", 2)
    claude(
        story, rewrite, "The parser eats all memory on large files. Make it read in pieces.",
        REWRITE, [edit(WHOLE, PIECES)],
    )  # fmt: skip
    claude(
        story, rewrite, LEGACY + ": two customers depend on its error messages.",
        "`--legacy` selects the old one; it can go in 2.0.",
        [edit('"""Read records, one a line."""\n', '"""Read records, one a line."""\n\nLEGACY = False  # --legacy\n')],
    )  # fmt: skip
    rewrite.records.append({"type": "ai-title", "aiTitle": TITLE, "sessionId": "x"})
    story.commit(2)

    errors = story.begin("codex", "errors", 9)
    codex(story, errors, "An error has to name the line it is in, without more memory.", "I count lines while reading.", """\
*** Begin Patch
*** Update File: records/parser.py
@@
-        yield record(line)
+        yield record(line, number)
@@
-def record(line):
-    name, _, value = line.partition("=")
+def record(line, number):
+    name, equals, value = line.partition("=")
+    if not equals:
+        raise ValueError(f"line {number}: no '='")
*** End Patch""")  # fmt: skip
    errors.records.append(
        {"timestamp": errors.at(), "type": "event_msg",
         "payload": {"type": "thread_name_updated", "thread_name": "Errors name their line"}}
    )  # fmt: skip
    story.commit(9)

    tests = story.begin("claude", "tests", 19)
    written = {"file_path": str(story.repository / "tests/test_parser.py"), "content": "def test_pieces(): ...\n"}
    claude(story, tests, "Add a test for a record that two pieces share.", "The record lies across byte 65,536.",
           [{"name": "Write", "input": written}])  # fmt: skip
    tests.records.append({"type": "ai-title", "aiTitle": "Tests for the pieces", "sessionId": "x"})
    story.commit(19)
    return story


def _own(home: Path) -> None:
    """The conversations that were held with the program itself."""
    seeds.fill(
        home,
        seeds.session("20260310_083000_91f0aa3c", 0, ("user", "How much memory does the parser need on the server?"),
                      ("assistant", "41 MB, however long the file is: it has read in pieces since 2 March."),
                      source="telegram", user_id="4711", title="Server size"),
        seeds.session("20260314_110000_d4e5f6", 0, ("user", "Plan a week in Kyoto in October"),
                      ("assistant", "October is a good choice: mild days, and the maples begin to turn."), title="京都旅行"),
        seeds.session("20260320_125000_0badc0", 0, ("user", "The deploy fails: port 5432 already in use"),
                      ("assistant", "Another PostgreSQL is listening there. Shall I look which one?"), title="Deploy trouble"),
    )  # fmt: skip


def spoken(text: str) -> Iterator[str]:
    """A text word by word, about as quickly as a model writes."""
    for word in text.split(" "):
        time.sleep(0.05)
        yield word + " "


class Model(ModelServer):
    """Replies from the passage that the program recalled and sent with the question; fails where it did not."""

    def __init__(self) -> None:
        super().__init__(models=("llama3.2",))
        self.task_answer = lambda body: "The old parser"

    def script_for(self, body: dict[str, Any]) -> list[Any]:
        if "max_tokens" in body or "stream_options" not in body:
            return super().script_for(body)
        assert LEGACY in json.dumps(body["messages"]), "what the reply says was not recalled"
        return spoken(REPLY)  # type: ignore[return-value]


@contextmanager
def home(root: Path, *, imported: bool = False) -> Iterator[tuple[Path, dict[str, str]]]:
    """A person's folder with all of it; the repository's folder and the variables to run programs with."""
    root.mkdir(parents=True, exist_ok=True)
    story = _tell(root)
    list(histories(story, root))
    hermes = root / ".hermes"
    _own(hermes)
    with Model() as model:
        (hermes / "config.yaml").write_text(model.config())
        more = {"HOME": str(root), "HERMES_NOW": str(NOW), "HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"}
        variables = program.environment(hermes, more)
        for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            variables.pop(name, None)
        if imported:
            done = program.run("sessions", "import", "--found", "--yes", home=hermes, env=more, cwd=story.repository)
            assert done.status == 0, done
        yield story.repository, variables
