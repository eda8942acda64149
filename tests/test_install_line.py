"""The line that installs an optional part works where it is printed: in a clone, beside it, and without one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRINTS = "from hermes.errors import MissingExtra; print(MissingExtra('it', 'acp').install)"


def printed(cwd: Path, source: Path = ROOT / "src", path: str = os.defpath) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], cwd=cwd, env={"PYTHONPATH": str(source), "PATH": path}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def installs(line: str, cwd: Path) -> str:
    """Split the line as the shell does: pip's program must exist; returns the last word."""
    pip, install, *_, what = shlex.split(line)
    assert install == "install"
    assert (cwd / pip).exists() or shutil.which(pip, path=f"{Path(sys.executable).parent}:{os.defpath}")
    return what


def test_in_the_clone_and_beside_it(tmp_path: Path) -> None:
    line = printed(ROOT)
    assert line.endswith('pip install -e ".[acp]"') and installs(line, ROOT) == ".[acp]"
    assert installs(printed(tmp_path), tmp_path) == f"{ROOT}[acp]"
    if Path(sys.executable).is_relative_to(ROOT):
        assert line == '.venv/bin/pip install -e ".[acp]"'


def test_an_environment_that_is_active_has_the_short_name() -> None:
    assert printed(ROOT, path=f"{Path(sys.executable).parent}:{os.defpath}") == 'pip install -e ".[acp]"'


def test_without_a_clone_it_is_the_package(tmp_path: Path) -> None:
    source = tmp_path / "lib" / "site-packages"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    line = printed(tmp_path, source)
    assert line.endswith('install "hermes-sessions[acp]"') and installs(line, tmp_path) == "hermes-sessions[acp]"


def test_a_folder_that_was_removed_is_no_trouble(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"cd {gone} && rmdir {gone} && {shlex.quote(sys.executable)} -c {shlex.quote(PRINTS)}"
    done = subprocess.run(
        ["sh", "-c", words], env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.defpath}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stderr)
    assert str(ROOT) in done.stdout


def test_the_documents_name_extras_that_exist_as_a_clone_installs_them() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in re.findall(r"[^\s`]*pip install [^`\n]*\[.*?\]\S*", page.read_text())]
    assert len(lines) > 20
    for line in lines:
        found = re.match(r'\.venv/bin/pip install -e "\.\[(\w+)\]"', line)
        assert found and found[1] in extras, line
