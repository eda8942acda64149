"""The agents themselves write sessions, which are imported, continued here, given back and resumed there.

Each runs headless on loopback with a stand-in for its model; a proxy before it sees what the agent sends. A session that goes there
and back stays one session, with everything that was said, once.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.importing import hidden, sessions, told
from tests.support import program
from tests.support.aimock import Aimock
from tests.support.node import node, npm_folder
from tests.support.wiretap import Wiretap

pytestmark = pytest.mark.thorough
MODEL = "stand-in"


@dataclass(frozen=True)
class Agent:
    """How an agent is installed, pointed to the stand-in and started."""

    name: str  # as in `hermes -r @name`
    package: str
    starts: str  # what is started, below node_modules; one with an ending is run by node
    writes: tuple[str, dict[str, str]]  # the tool that writes a file, its arguments for the path and the text
    first: Callable[[str], list[str]]  # the words of a run with this prompt
    again: Callable[[str, str], list[str]]  # the same, in the session of this id
    env: dict[str, str]  # {url}: the stand-in
    files: dict[str, str]  # below the home folder
    can_be_written: bool = False

    def program(self) -> list[str]:
        modules = npm_folder(self.name, [self.package]) / "node_modules"
        found = sorted(modules.glob(self.starts))[-1]
        return [node(), str(found)] if found.suffix else [str(found)]


def flags(*options: str) -> dict[str, Any]:
    """An agent that takes -p PROMPT, and --resume ID."""
    return {
        "first": lambda prompt: [*options, "-p", prompt],
        "again": lambda name, prompt: [*options, "--resume", name, "-p", prompt],
    }


FAKE = {"baseURL": "{url}/v1", "apiKey": "x"}
PATH_AND_TEXT = {"file_path": "{path}", "content": "alpha\n"}
CODEX = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
CODEX_CONFIG = f"""
model = "{MODEL}"
model_provider = "fake"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.fake]
name = "fake"
base_url = "{{url}}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
"""
PI_MODEL = {"id": MODEL, "name": MODEL, "reasoning": False, "input": ["text"], "contextWindow": 100_000, "maxTokens": 1000,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}  # fmt: skip
PI = ["--provider", "fake", "--model", MODEL]
AGENTS = [
    Agent(
        "claude", "@anthropic-ai/claude-code@2.1.327", "@anthropic-ai/claude-code/cli-wrapper.cjs", ("Write", PATH_AND_TEXT),
        **flags("--permission-mode", "acceptEdits", "--model", "claude-sonnet-4-5"), can_be_written=True, files={},
        env={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "sk-x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    Agent(
        "codex", "@openai/codex@0.169.0", "@openai/codex/bin/codex.js", ("exec_command", {"cmd": "echo alpha > a.txt"}),
        first=lambda prompt: ["exec", *CODEX, prompt], again=lambda name, prompt: ["exec", "resume", *CODEX, name, prompt],
        env={"FAKE_KEY": "x"}, files={".codex/config.toml": CODEX_CONFIG}, can_be_written=True,
    ),
    Agent(
        "pi", "@mariozechner/pi-coding-agent@0.73.1", "@mariozechner/pi-coding-agent/dist/cli.js",
        ("write", {"path": "{path}", "content": "alpha\n"}), first=lambda prompt: [*PI, "-p", prompt],
        again=lambda name, prompt: [*PI, "--session", name, "-p", prompt], env={"PI_OFFLINE": "1"},
        files={".pi/agent/models.json": json.dumps({"providers": {"fake": {
            "baseUrl": "{url}/v1", "api": "openai-completions", "apiKey": "x", "models": [PI_MODEL]}}})},
    ),
    Agent(
        "gemini", "@google/gemini-cli@0.61.0", "@google/gemini-cli/bundle/gemini.js", ("write_file", PATH_AND_TEXT),
        **flags("--yolo", "--skip-trust", "-m", "gemini-2.5-flash"),
        env={"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": "{url}"},
        files={".gemini/settings.json": json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}},
                                                    "privacy": {"usageStatisticsEnabled": False}})},
    ),
    Agent(
        "qwen", "@qwen-code/qwen-code@0.24.4", "@qwen-code/qwen-code/cli*.js", ("write_file", PATH_AND_TEXT),
        **flags("--yolo", "--auth-type", "openai"), files={},
        env={"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": MODEL},
    ),
    Agent(
        "opencode", f"opencode-{sys.platform}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'x64-baseline'}@1.18.33", "opencode-*/bin/opencode", ("write", {"filePath": "{path}", "content": "alpha\n"}),
        first=lambda prompt: ["run", "-m", f"fake/{MODEL}", prompt],
        again=lambda name, prompt: ["run", "-m", f"fake/{MODEL}", "--session", name, prompt],
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={".config/opencode/opencode.json": json.dumps({"provider": {"fake": {
            "npm": "@ai-sdk/openai-compatible", "options": FAKE, "models": {MODEL: {"tool_call": True}}}}})},
    ),
]  # fmt: skip
ANSWERS = {
    "Second": "The second answer.",
    "Third": "The third answer.",
    "said here": "Answered here.",
    "begun here": "Begun.",
}


class Desk:
    """A home folder with an agent, Hermes and a project."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent, self.folder, self.home, self.project = agent, folder, folder / "record", folder / "project"
        self.words = agent.program()
        self.project.mkdir()
        tool, given = agent.writes
        given = {name: value.replace("{path}", str(self.project / "a.txt")) for name, value in given.items()}
        call = {"id": "call_first", "name": tool, "arguments": json.dumps(given)}
        asked = {"userMessage": "make a.txt"}
        self.model = Aimock([
            *({"match": {"userMessage": words}, "response": {"content": answer}} for words, answer in ANSWERS.items()),
            {"match": {**asked, "hasToolResult": True}, "response": {"content": "The file is written."}},
            {"match": {**asked, "toolName": tool}, "response": {"content": "I write it.", "toolCalls": [call]}},
            {"match": {}, "response": {"content": "A title"}},
        ])  # fmt: skip
        self.tap = Wiretap(self.model.port)
        url = f"http://127.0.0.1:{self.tap.port}"
        record = f"model:\n  base_url: {url}/v1\n  default: {MODEL}\n  api_key: x\n"
        for name, content in {**agent.files, "record/config.yaml": record}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content.replace("{url}", url))
        ours = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.env = {**ours, "HOME": str(folder), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "CI": "1"}
        self.env |= {name: value.replace("{url}", url) for name, value in agent.env.items()}

    def close(self) -> None:
        self.tap.close()
        self.model.close()

    def run(self, words: list[str]) -> None:
        """The agent works to its end."""
        done = subprocess.run([*self.words, *words], env=self.env, cwd=self.project, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def hermes(self, *words: str) -> str:
        env = {"HOME": str(self.folder), "NO_PROXY": "127.0.0.1"}
        env |= dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME"), "")
        done = program.run(*words, home=self.home, env=env, cwd=self.project)
        assert done.status == 0, done
        assert "unknown" not in done.err, done.err
        return done.out

    def resumed(self, session: str, prompt: str) -> str:
        """Open a session in the agent and say something there; its id there."""
        line = self.hermes("sessions", "open", session, "--in", self.agent.name)
        assert line.startswith(f"cd {self.project} && {self.agent.name} "), line
        name = line.split()[-1]
        self.tap.forget()
        self.run(self.agent.again(name, prompt))
        self.hermes("sessions", "import", "--found", "--yes")
        return name

    def sent(self, *texts: str) -> bool:
        """Whether the model was sent all of these in one request."""
        return any(all(json.dumps(text)[1:-1].encode() in call.body for text in texts) for call in self.tap.calls)

    def said(self, session: str) -> list[str]:
        """The texts of the person and the model, in order."""
        spoken = (
            str(content).strip('"')
            for role, content in told(sessions(self.home)[session])
            if role in ("user", "assistant")
        )
        return [text for text in spoken if text != "None"]


@pytest.fixture(params=AGENTS, ids=lambda one: one.name)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    one = Desk(request.param, tmp_path)
    yield one
    one.close()


def test_there_and_back(desk: Desk) -> None:
    desk.run(desk.agent.first("make a.txt"))
    assert (desk.project / "a.txt").read_text() == "alpha\n"
    desk.hermes("sessions", "import", "--found", "--yes")
    ((session, brought),) = sessions(desk.home).items()
    begun = ["make a.txt", "I write it.", "The file is written."]
    assert desk.said(session) == begun and brought["cwd"] == str(desk.project)
    (call,) = [call["function"] for one in brought["messages"] for call in one.get("tool_calls") or ()]
    (result,) = [one for one in brought["messages"] if one["role"] == "tool"]
    assert call["name"] == desk.agent.writes[0] == result["tool_name"] and "a.txt" in call["arguments"]

    if desk.agent.can_be_written:
        desk.hermes("-r", f"@{desk.agent.name}", "-q", "said here")
        begun += ["said here", "Answered here."]
    desk.resumed(session, "Second question")
    assert desk.sent(*begun, "Second question")
    begun += ["Second question", "The second answer."]
    for _ in range(2):
        assert list(sessions(desk.home)) == [session] and desk.said(session) == begun
        assert not hidden(sessions(desk.home)[session])
        desk.hermes("sessions", "import", "--found", "--yes")
    desk.tap.forget()
    desk.hermes("-r", f"@{desk.agent.name}", "-q", "said here")
    assert desk.sent(*begun) and desk.said(session) == [*begun, "said here", "Answered here."]

    if desk.agent.can_be_written:
        desk.hermes("-q", "begun here")
        (ours,) = sessions(desk.home).keys() - {session}
        desk.resumed(ours, "Third question")
        assert desk.sent("begun here", "Begun.", "Third question")
        assert desk.said(ours) == ["begun here", "Begun.", "Third question", "The third answer."]
        assert len(sessions(desk.home)) == 2
