"""The programs themselves list `hermes mcp` after `hermes mcp install`, and do not after `--remove`."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.test_agents import AGENTS
from tests.support import program
from tests.support.node import npm_folder

pytestmark = pytest.mark.thorough

ARCHITECTURE = "arm64" if platform.machine() in ("arm64", "aarch64") else "x64"
COPILOT = f"@github/copilot-{sys.platform}-{ARCHITECTURE}"
# What each is called here, and what starts it (as in test_agents).
CLIENTS = {
    "claude-code": "claude", "codex": "codex", "copilot": "copilot", "gemini": "gemini", "opencode": "opencode", "qwen": "qwen",
}  # fmt: skip
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "GEMINI_API_KEY": "x", "GEMINI_CLI_TRUST_WORKSPACE": "true", "OPENAI_API_KEY": "x", "CI": "1", "NO_COLOR": "1",
}  # fmt: skip


def _started(name: str) -> list[str]:
    if name == "copilot":
        modules = npm_folder("copilot", [f"{COPILOT}@1.0.102"]) / "node_modules"
        return [str(modules / COPILOT / "copilot")]
    return next(one for one in AGENTS if one.name == name).program()


@pytest.mark.parametrize("key", CLIENTS)
def test_a_program_lists_what_was_installed(key: str, tmp_path: Path) -> None:
    words, folder = _started(CLIENTS[key]), tmp_path / "project"
    folder.mkdir()
    kept = {one: os.environ[one] for one in ("PATH", "LANG", "TMPDIR") if one in os.environ}
    env = {**kept, **QUIET, "HOME": str(tmp_path)}

    def listed() -> bool:
        done = subprocess.run(
            [*words, "mcp", "list"], env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return (
            re.search(r"(?<![/\w])hermes(?![./\w])", done.stdout + done.stderr) is not None
        )  # and not as a part of a path

    def install(*options: str) -> None:
        own = dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "QWEN_HOME", "XDG_CONFIG_HOME"), "")
        done = program.run("mcp", "install", key, *options, home=tmp_path / "home", env={"HOME": str(tmp_path), **own})
        assert done.status == 0, done

    assert not listed()  # it makes its own settings first
    install()
    assert listed()  # whether it answers within a client's time limit is not asked
    install("--remove")
    assert not listed()
