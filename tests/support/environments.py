"""Programs of others that tests run beside ours, each in a folder of its own outside the tree.

    bin = environment("synapse", ["matrix-synapse==1.140.0"])     # a virtual environment; its bin folder
    folder = npm("octokit", ["@octokit/webhooks-methods@6"])      # node_modules lies in it

Installed once (HERMES_TEST_CACHE, else ~/.cache/hermes-tests) by whichever test process comes first. What can't be had
skips the test with the reason, or fails it where HERMES_TEST_REQUIRE=all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.sizes import THOROUGH


def missing(reason: str) -> None:
    """Skip for this reason, or fail where everything is required."""
    if os.environ.get("HERMES_TEST_REQUIRE") == "all":
        pytest.fail(f"{reason} (HERMES_TEST_REQUIRE=all)")
    pytest.skip(reason)


def cache() -> Path:
    """The folder for what tests install."""
    return Path(os.environ.get("HERMES_TEST_CACHE") or Path.home() / ".cache" / "hermes-tests")


@contextmanager
def _once(folder: Path) -> Iterator[bool]:
    """Whether there is work to do in the folder, with everybody else kept out; done when the block ends well."""
    done = folder / "installed"
    if done.exists():
        yield False
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            yield False
            return
        yield True
        done.touch()


def installed(name: str, install: Callable[[Path], None]) -> Path:
    """A folder that `install` has filled; it is called once."""
    folder = cache() / name
    with _once(folder) as needed:
        if needed:
            install(folder)
    return folder


def _run(words: Sequence[str], folder: Path, what: str) -> None:
    outcome = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900)
    if outcome.returncode != 0:
        missing(f"{what} can't be installed: {(outcome.stderr or outcome.stdout)[-400:]}")


def environment(
    name: str,
    requirements: Sequence[str],
    *,
    python: str | None = None,
    options: Sequence[str] = (),
    large: bool = False,
) -> Path:
    """The bin folder of a virtual environment with these packages; `python` is the interpreter to make it with.

    What is `large` takes minutes to install: a quick run uses it where it is installed already.
    """
    interpreter = python or sys.executable
    words = [*requirements, *options, interpreter]
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]

    def install(folder: Path) -> None:
        if large and not THOROUGH:
            pytest.skip(f"{name} is large: HERMES_TEST_SIZE=all installs it")
        place = folder / "venv"
        _run([interpreter, "-m", "venv", "--clear", "--without-pip", str(place)], folder, name)
        # This interpreter's pip, and nothing compiled: most of what is installed is never loaded.
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-compile"]
        _run([*pip, "--quiet", "--disable-pip-version-check", *options, *requirements], folder, name)

    return installed(f"{name}-{digest}", install) / "venv" / "bin"


def npm(name: str, packages: Sequence[str], *, options: Sequence[str] = ()) -> Path:
    """A folder whose node_modules holds these packages; no install scripts are run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("needs node and npm")
    digest = hashlib.sha256("\n".join([*packages, *options]).encode()).hexdigest()[:12]

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *options, *packages], folder, name)

    return installed(f"{name}-{digest}", install)


def program(name: str, package: str) -> str:
    """A program of the system; `package` is what brings it."""
    found = shutil.which(name) or next(
        (str(place) for folder in ("/usr/sbin", "/sbin") if (place := Path(folder) / name).exists()), None
    )
    if found is None:
        missing(f"needs {name} (package {package})")
    return str(found)
