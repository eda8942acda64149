"""Facts that survive a compression whatever the summarising model writes: decisions, commands, files and open work.

working_sessions.txt holds ten invented working sessions; their decisions were marked without looking at what is found. In it "[[…]]" marks a
decision, "$ …" is a command that the agent ran ("!list …": given as a list of words), "> …" is output (">*12 …": that many lines).
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.loop import Agent
from hermes.agent.summary import exact_lines
from hermes.agent.turn import Followed
from hermes.config import Config
from hermes.texts import text_tokens

from .saying import Canned, compress
from .transcripts import assistant, call, tool, user

EMPTY_NOTES = "## Goal\n- to go on with the work\n## Decisions\n- none found"


@dataclass
class Work:
    """One session: its messages, and what was marked in it."""

    title: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def say(self, role: str, lines: list[str]) -> None:
        text = "\n".join(lines)
        self.decisions += [part.partition("]]")[0] for part in text.split("[[")[1:]]
        content = text.replace("[[", "").replace("]]", "")
        self.messages.append(user(content) if role == "U" else assistant(content))

    def run(self, command: str, words: list[str] | None) -> None:
        number = len(self.messages)
        arguments = json.dumps({"command": words or command})
        self.messages.append(assistant(None, tool_calls=[call(number, "terminal", arguments)]))
        self.messages.append(tool(number, "terminal", ""))
        self.commands.append(command)

    @property
    def wanted(self) -> list[str]:
        """The commands that were used more than once, and the last one."""
        counts = Counter(self.commands)
        return list(dict.fromkeys([one for one in self.commands if counts[one] > 1] + self.commands[-1:]))


def works() -> list[Work]:
    out: list[Work] = []
    role, lines, fence = "", [], None
    for line in [*(Path(__file__).parent / "working_sessions.txt").read_text().splitlines(), "==="]:
        if fence is None and line[:2] in ("U:", "A:", "$ ", "> ", ">*", "!l", "==", "") and lines:
            out[-1].say(role, lines)
            lines = []
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        if fence is not None or line.startswith("```"):
            lines.append(line)
            if fence == "bash" and not line.startswith("```"):
                out[-1].commands.append(line)
            elif fence == "console" and line.startswith("$ "):
                out[-1].commands.append(line[2:])
        elif line.startswith("=== "):
            out.append(Work(line[4:]))
        elif line[:2] in ("U:", "A:"):
            role, lines = line[0], [line[3:]]
        elif line.startswith("$ "):
            out[-1].run(line[2:], None)
        elif line.startswith("!list "):
            words = shlex.split(line[6:])
            out[-1].run(words[2] if words[:2] == ["bash", "-lc"] else line[6:], words)
        elif line.startswith(">"):
            times, text = (int(line[2:].split()[0]), line.partition(" ")[2]) if line[1] == "*" else (1, line[2:])
            result = out[-1].messages[-1]
            result["content"] += "".join(text.replace("{n}", str(n)) + "\n" for n in range(times))
        elif line and line != "===":
            lines.append(line)
    return out


WORKS = works()


def stored(db: Any, work: Work, session_id: str = "s") -> None:
    db.create_session(session_id, "cli", system_prompt="You are Hermes.")
    db.append_message(session_id, "user", "hello")
    db.append_message(session_id, "assistant", "Hello!")
    for message in work.messages:
        db.append_message(session_id, **message)


def compressed(db: Any, session_id: str, window: int) -> str:
    """Everything that a model is shown of the session after it was compressed, the answer of the last exchange apart."""
    config = Config()
    config.compression.protect_last_n = 2
    db.append_message(session_id, "user", "Thanks. Shall we go on?")
    db.append_message(session_id, "assistant", "Gladly.")
    child = compress(db, session_id, Canned(EMPTY_NOTES, context_length=window), config, shrink=True)
    (notes,) = [row["content"] for row in db.get_messages(child) if str(row["content"]).startswith("[Summary")]
    return f"{child}\n{notes}"


@pytest.mark.parametrize("window", [16_000, 128_000])
@pytest.mark.parametrize("times", [1, 3])
def test_decisions_and_commands_survive_whatever_the_model_writes(db: Any, window: int, times: int) -> None:
    assert len(WORKS) == 10
    kept, lost = Counter[str](), []
    for number, work in enumerate(WORKS):
        session_id = f"s{number}"
        stored(db, work, session_id)
        for _ in range(times):
            session_id, _, notes = compressed(db, session_id, window).partition("\n")
        for kind, wanted in (("decisions", work.decisions), ("commands", work.wanted)):
            missing = [one for one in wanted if one not in notes]
            kept[kind] += len(wanted) - len(missing)
            lost += [(kind, one) for one in missing]
    gone = Counter(kind for kind, _ in lost)
    assert kept["decisions"] >= 0.95 * (kept["decisions"] + gone["decisions"]), lost
    assert kept["commands"] >= 0.9 * (kept["commands"] + gone["commands"]), lost
    assert kept["decisions"] > 55 and kept["commands"] > 20


# The share of decisions and of repeated commands that a long conversation keeps, by the model's window.
LONG = [(8_192, 0.85, 0.6), (32_000, 0.95, 0.9), (128_000, 0.95, 0.9)]


@pytest.mark.parametrize(("window", "decided", "used"), LONG)
def test_a_long_conversation_keeps_its_decisions_as_well(db: Any, window: int, decided: float, used: float) -> None:
    """All ten one after the other, compressed at once."""
    stored(db, Work("all", [message for work in WORKS for message in work.messages]))
    notes = compressed(db, "s", window)
    decisions = [one for work in WORKS for one in work.decisions]
    assert sum(one in notes for one in decisions) >= decided * len(decisions)
    repeated = [one for work in WORKS for one in work.wanted if work.commands.count(one) > 1]
    assert sum(one in notes for one in repeated) >= used * len(repeated)


@pytest.mark.parametrize(("window", "decided", "compressions"), [(8_192, 0.5, 5), (16_384, 0.95, 2), (32_768, 0.95, 1)])
def test_a_conversation_that_grows_is_compressed_seldom_and_keeps_what_was_decided(
    db: Any, tmp_path: Path, window: int, decided: float, compressions: int
) -> None:
    """The users' messages of all ten, one turn each, beside 3,000 tokens of system prompt and tools."""
    agent = Agent(db, Config(), Canned(EMPTY_NOTES, context_length=window), session_id="s", home=tmp_path, cwd=tmp_path)
    agent.titles, agent.system = False, "You are Hermes. " + 1_000 * "Be brief. "
    asked = [message["content"] for work in WORKS for message in work.messages if message["role"] == "user"]
    followed = 0
    for text in asked:
        followed += sum(isinstance(event, Followed) for event in agent.turn(text))
    assert followed <= compressions
    seen = "\n".join(str(row["content"]) for row in db.get_messages(agent.session_id))
    decisions = [one for work in WORKS for one in work.decisions if any(one in text for text in asked)]
    assert sum(one in seen for one in decisions) >= decided * len(decisions)
    agent.close()


def test_open_work_and_files_survive_as_well(db: Any) -> None:
    stored(db, WORKS[0])
    notes = compressed(db, "s", 32_000)
    assert "regenerate stow.1 with help2man" in notes
    assert all(name in notes for name in ("src/stow/cli.py", "tests/test_cli.py", "CHANGELOG.md"))
    assert "python -m pytest -q tests/test_cli.py  # used 2 times" in notes


def test_what_is_copied_is_bounded_and_repeated_commands_come_first() -> None:
    many = [
        assistant(None, tool_calls=[call(n, "terminal", json.dumps({"command": f"echo number {n}"}))])
        for n in range(900)
    ]
    again = assistant(None, tool_calls=[call(1000 + n, "terminal", '{"command": "make check"}') for n in range(2)])
    lines = exact_lines([again, *many], "", 500)
    assert text_tokens(lines) <= 500
    assert "- make check  # used 2 times\n- echo number 899\n" in lines
