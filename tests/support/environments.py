"""Programs of others that tests run beside ours, each in a folder of its own outside the tree.

    bin = environment("synapse", ["matrix-synapse==1.140.0"])     # a virtual environment; its bin folder
    folder = npm("octokit", ["@octokit/webhooks-methods@6"])      # node_modules lies in it

Installed once (HERMES_TEST_CACHE, else ~/.cache/hermes-tests) by whichever test process comes first. A quick run
(tests/support/sizes.py) installs only what many of its tests need, and skips a test that needs more. What can't be had skips the
test with the reason, too, or fails it where HERMES_TEST_REQUIRE=all.
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

installs_all = THOROUGH  # whether this run installs whatever programs of others its tests need


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


def at_hand(name: str) -> bool:
    """Whether a folder is filled, or may be filled in this run."""
    return installs_all or (cache() / name / "installed").exists()


def installed(name: str, install: Callable[[Path], None], *, quick: bool = False) -> Path:
    """A folder that `install` has filled; it is called once. `quick`: a quick run fills it, too."""
    folder = cache() / name
    if not quick and not at_hand(name):
        pytest.skip(f"{name} is not installed: HERMES_TEST_SIZE=all installs it")
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
    quick: bool = False,
) -> Path:
    """The bin folder of a virtual environment with these packages; `python` is the interpreter to make it with."""
    interpreter = python or sys.executable
    words = [*requirements, *options, interpreter]
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]

    def install(folder: Path) -> None:
        place = folder / "venv"
        _run([interpreter, "-m", "venv", "--clear", "--without-pip", str(place)], folder, name)
        # This interpreter's pip, and nothing compiled: most of what is installed is never loaded.
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-compile"]
        _run([*pip, "--quiet", "--disable-pip-version-check", *options, *requirements], folder, name)

    return installed(f"{name}-{digest}", install, quick=quick) / "venv" / "bin"


def npm(name: str, packages: Sequence[str], *, options: Sequence[str] = (), quick: bool = False) -> Path:
    """A folder whose node_modules holds these packages; no install scripts are run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("needs node and npm")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *options, *packages], folder, name)

    return installed(npm_name(name, packages, options), install, quick=quick)


def npm_name(name: str, packages: Sequence[str], options: Sequence[str] = ()) -> str:
    """The name of the folder that `npm` gives."""
    return f"{name}-{hashlib.sha256(chr(10).join([*packages, *options]).encode()).hexdigest()[:12]}"


def program(name: str, package: str) -> str:
    """A program of the system; `package` is what brings it."""
    found = shutil.which(name) or next(
        (str(place) for folder in ("/usr/sbin", "/sbin") if (place := Path(folder) / name).exists()), None
    )
    if found is None:
        missing(f"needs {name} (package {package})")
    return str(found)
