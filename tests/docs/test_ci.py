"""`.ci/run` runs the README's commands as a newcomer does, and names the tests that passed only when they were repeated.

`make` and what it installs are stand-ins here; the script is the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mechanism

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"

MAKE = """#!/bin/sh
echo "$*" >> made
case $1 in
  chat) cat > asked; env > environment; ls -A "$HOME" > home ;;
  test) mkdir -p .pytest_cache/v/cache; cp first .pytest_cache/v/cache/lastfailed; [ "$(cat first)" = "{}" ] ;;
esac
"""
PYTHON = f"""#!/bin/sh
case "$*" in
  "-m pytest"*) cp second .pytest_cache/v/cache/lastfailed; [ "$(cat second)" = "{{}}" ] ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
HERMES = """#!/bin/sh
echo '{"messages":[{"role":"assistant"}]}'
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    programs = {
        "bin/make": MAKE,
        "bin/id": "#!/bin/sh\necho 1000\n",
        ".venv/bin/python": PYTHON,
        ".venv/bin/hermes": HERMES,
    }
    for name, text in programs.items():  # id: nothing is installed on this machine
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "tree" / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tree" / ".ci" / "run")
    (tmp_path / "temporary").mkdir()
    return tmp_path / "tree"


def run(tree: Path, first: list[str], second: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    for name, tests in (("first", first), ("second", second)):
        (tree / name).write_text(json.dumps(dict.fromkeys(tests, True)))
    kept = {"HOME": str(tree), "TMPDIR": str(tree.parent / "temporary"), "PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        [tree / ".ci" / "run"], env={**kept, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_commands_of_the_readme_see_nothing_of_this_machine_but_the_way_to_the_package_index(tree: Path) -> None:
    (tree / ".pip").mkdir()
    (tree / ".pip" / "pip.conf").write_text("")
    done = run(tree, [], [], PIP_INDEX_URL="https://index.example/simple", PYTHONUNBUFFERED="1", OPENAI_API_KEY="k",
               HERMES_HOME="/nowhere", CI="yes", NO_PROXY="localhost")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tree / "made").read_text() == "chat\ntest\n"
    assert (tree / "asked").read_text() == "Say hello.\n" and (tree / "home").read_text() == ""
    seen = dict(line.split("=", 1) for line in (tree / "environment").read_text().splitlines() if "=" in line)
    assert seen["PIP_INDEX_URL"] == "https://index.example/simple"
    assert seen["PIP_CONFIG_FILE"] == str(tree / ".pip" / "pip.conf")
    assert (seen["LANG"], seen["CI"], seen["NO_PROXY"]) == ("C.UTF-8", "yes", "localhost")
    assert seen["HERMES_TEST_REQUIRE"] == seen["HERMES_TEST_SIZE"] == "all"
    assert seen["HERMES_HYPOTHESIS_PROFILE"] == "ci"
    assert seen["HOME"] != str(tree) and not Path(seen["HOME"]).exists()  # it was there for this run only
    assert not {"PYTHONUNBUFFERED", "OPENAI_API_KEY", "HERMES_HOME"} & seen.keys()


@pytest.mark.parametrize(
    ("first", "second", "flaky", "status"),
    [
        (["t.py::one", "t.py::two[a b]"], [], ["t.py::one", "t.py::two[a b]"], 0),
        (["t.py::one", "t.py::two"], ["t.py::two"], ["t.py::one"], 1),
        (["t.py::one"], ["t.py::one"], [], 1),
    ],
)
def test_a_test_that_passes_when_repeated_is_named(
    tree: Path, first: list[str], second: list[str], flaky: list[str], status: int
) -> None:
    done = run(tree, first, second)
    assert done.returncode == status, done.stderr
    assert [line for line in done.stdout.splitlines() if "FLAKY" in line] == [f"FLAKY {name}" for name in flaky]
    assert (tree / "made").read_text() == "chat\ntest\nlint types contracts\n"
