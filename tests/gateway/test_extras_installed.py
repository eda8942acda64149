"""Each extra installed for real: a wheel of this tree, with the extra, in a virtual environment with nothing else in it.

The environment of an extra is made once for its requirements (see tests.support.environments); this tree's own wheel is
then laid before it for each run. The quick run tries one extra, the thorough one all of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.gateway.test_extras import PARTS, PROJECT, ROOT
from tests.support.environments import cache, installed, missing
from tests.support.gateway import written
from tests.support.labs.base import Lab
from tests.support.sizes import THOROUGH

pytestmark = pytest.mark.thorough

# Of extras that bring the same packages one is installed; tests/gateway/test_extras.py tries the imports of all.
DIFFERENT = {tuple(sorted(PROJECT["optional-dependencies"][one])): one for one in reversed(PARTS) if one}
HEAVY = ("embedded", "meaning", "multilingual")  # installed whole by `make test` itself
EXTRAS = [one for one in DIFFERENT.values() if one not in HEAVY] if THOROUGH else ["telegram"]
PATIENCE = 1200  # seconds for the downloads of the largest extra on a slow line

IMPORTS = """
import importlib, pkgutil, sys

for name in sys.argv[1].split(","):
    module = importlib.import_module(name)
    if name.startswith("hermes") and hasattr(module, "__path__"):
        for found in pkgutil.walk_packages(module.__path__, name + "."):
            if not found.name.startswith("hermes.serve.acp_"):  # which have an extra of their own
                importlib.import_module(found.name)
import hermes
print(hermes.__file__)
"""


def run(*words: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "HERMES_HOME")
    }
    line = [str(word) for word in words]
    return subprocess.run(line, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree, built."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    if done.returncode != 0:
        missing(f"the wheel can't be built: {done.stderr[-400:]}")
    (made,) = folder.glob("hermes_sessions-*.whl")
    return made


@pytest.fixture(params=EXTRAS)
def extra(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def environment(extra: str, wheel: Path) -> Path:
    """A virtual environment with the extra. One that brings `chat` begins as a copy of that one: it is installed once."""
    wanted = f"{sys.version} {PROJECT['dependencies']} {sorted(PROJECT['optional-dependencies'].items())}"
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:12]

    def install(folder: Path) -> None:
        place, words = folder / "venv", []
        if "hermes-sessions[chat]" in PROJECT["optional-dependencies"][extra]:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(environment("chat", wheel), place, symlinks=True)
        else:
            words = [[sys.executable, "-m", "venv", "--clear", place]]
        pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for line in (*words, [*pip, f"{wheel}[{extra}]"]):
            done = run(*line, cwd=folder)
            if done.returncode != 0:
                missing(f"the extra {extra} can't be installed: {done.stderr[-400:]}")

    return installed(f"extra-{extra}-{digest}", install) / "venv"


@pytest.fixture
def python(extra: str, wheel: Path, tmp_path: Path) -> tuple[Path, str]:
    """The interpreter of an environment with the extra, and where this tree's own package lies before it."""
    found = environment(extra, wheel) / "bin" / "python"
    ours = tmp_path / "ours"
    done = run(found, "-m", "pip", "install", "--quiet", "--no-deps", "--target", ours, wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-800:]
    return found, str(ours)


def test_an_extra_installed_alone_can_be_imported_and_talks_to_its_platform(
    extra: str, python: tuple[Path, str], tmp_path: Path
) -> None:
    interpreter, ours = python
    assert cache() in interpreter.parents
    done = run(interpreter, "-m", "pip", "check", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    done = run(interpreter, "-c", IMPORTS, ",".join(PARTS[extra]), cwd=tmp_path, PYTHONPATH=ours)
    assert done.returncode == 0, done.stderr[-1500:]
    assert Path(done.stdout.strip()).is_relative_to(ours)
    if (lab := lab_of(extra)) is None:
        return
    try:
        home = tmp_path / "home"
        home.mkdir()
        (home / "config.yaml").write_text(written([lab]))
        words = (interpreter, "-m", "hermes.cli.main", "doctor")
        said = run(*words, cwd=tmp_path, PYTHONPATH=ours, HERMES_HOME=str(home), COLUMNS="300")
        assert "logged in to" in " ".join(said.stdout.split()), said.stdout + said.stderr
    finally:
        lab.close()


def lab_of(extra: str) -> Lab | None:
    """A platform for the extra of an adapter, to log in to."""
    if extra not in ("telegram", "discord", "slack", "matrix", "email", "homeassistant"):
        return None
    made: Lab = import_module(f"tests.support.labs.{extra}").Lab()
    return made
