"""The programs of examples/ do what their first lines say, run as a reader runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import program
from tests.support.echo import Echo
from tests.support.environments import missing
from tests.support.labs.base import until

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *words: str, home: Path, **variables: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *words], env=program.environment(home, variables),
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_agent_of_ones_own_stores_its_conversations_and_a_script_searches_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Echo() as model:
        for words in (["Where", "is", "the", "kingfisher?"], ["--continue", "And", "the", "heron?"]):
            said = run("agent.py", *words, home=home, OPENAI_BASE_URL=model.base_url, MODEL="echo")
            assert said == f"echo: {' '.join(words).removeprefix('--continue ')}\n"
        assert [message["role"] for message in model.requests[-1]["messages"]] == ["user", "assistant", "user"]
    listed = program.run("sessions", "list", "--source", "example", home=home)
    assert "kingfisher" in listed.out
    found = run("search.py", "heron NOT kingfisher", home=home).splitlines()
    assert len(found) == 2 and all(">>>heron<<<" in line for line in found)
    assert run("search.py", "heron", "telegram", home=home) == ""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "installed"
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
    done = subprocess.run([*words, folder, EXAMPLES / "folder_platform"], capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"the example can't be installed: {done.stderr[-400:]}")
    return folder


def test_a_platform_of_another_package_is_configured_and_answers(tmp_path: Path, installed: Path) -> None:
    home, box = tmp_path / "home", tmp_path / "mailbox"
    variables = {"PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])}
    with Echo() as model:
        for key, value in (
            ("model.base_url", model.base_url),
            ("model.default", "echo"),
            ("platforms.folder.enabled", "true"),
            ("platforms.folder.path", str(box)),
            ("platforms.folder.allowed_users", "[alice]"),
        ):
            assert program.run("config", "set", key, value, home=home, env=variables).status == 0
        checked = program.run("doctor", home=home, env=variables).out.splitlines()
        assert [line for line in checked if line.startswith("✓ folder") and str(box) in line], checked
        gateway = program.start("gateway", home=home, env=variables)
        try:
            until(lambda: (box / "in").is_dir(), "the gateway did not start")
            for name in ("alice.1", "mallory.1"):
                (box / "in" / f"{name}.part").write_text("Hello there.")
                (box / "in" / f"{name}.part").rename(box / "in" / f"{name}.txt")
            until(lambda: list((box / "out").glob("alice.*.txt")), "no reply")
            assert "echo: Hello there." in [file.read_text() for file in (box / "out").glob("alice.*.txt")]
            until(lambda: not list((box / "in").iterdir()), "files are left")
        finally:
            gateway.terminate()
            gateway.communicate(timeout=120)
    assert "echo: Hello there." not in [file.read_text() for file in (box / "out").glob("mallory.*")]
