"""Coming from the public Hermes Agent: its home is read at once, and a record of our own comes beside it when the user says so."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.old_files import build_foreign
from tests.support.program import environment, in_terminal, run

SAMPLE = Path(__file__).parents[1] / "support" / "foreign" / "schema-22.db.gz"
QUIET = {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"}
THEIR_SETTINGS = "# mine\nmodel:\n  provider: openrouter   # paid\nagent: {max_turns: 60}\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of Hermes Agent: its database, its settings, its transcripts."""
    home = tmp_path / ".hermes"
    (home / "sessions").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "state.db").write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    (home / "sessions" / "one.jsonl").write_text('{"role": "user"}\n')
    (home / "config.yaml").write_text(THEIR_SETTINGS)
    (home / "config.yaml").chmod(0o600)
    return home


def theirs(home: Path) -> dict[str, str]:
    """The contents of the other program's files."""
    files = [*home.glob("state.db*"), *(home / "sessions").rglob("*")]
    full = [
        one for one in files if one.stat().st_size and not one.name.endswith("-shm")
    ]  # reading creates an empty -wal
    return {str(one.relative_to(home)): hashlib.sha256(one.read_bytes()).hexdigest() for one in full}


def ids(home: Path, **env: str) -> set[str]:
    done = run("sessions", "list", "--all", "--json", "--limit", "100", home=home, env=env)
    assert done.status == 0, done.err
    return {one["id"] for one in json.loads(done.out)}


def accept(home: Path, *words: str, answer: str = "y\n") -> tuple[int, str]:
    """Run on a terminal and answer the question that comes."""
    return in_terminal(*words, home=home, env=QUIET, answer=lambda seen: answer if "[Y/n]" in seen else None, width=200)


def test_yes_brings_the_sessions_into_a_record_beside_it_and_goes_on(home: Path) -> None:
    before = theirs(home)
    status, seen = accept(home, "-q", "which bird was it?")
    assert status == 0, seen
    assert "This home belongs to Hermes Agent (schema 22, 6 sessions). Bring them into a record of your own" in seen
    assert theirs(home) == before
    assert (home / "config.yaml").read_text() == THEIR_SETTINGS + "store:\n  path: record.db\n"
    assert {"parts", "tools-2", "undone", "compacted"} < ids(home)
    done = run("-c", "Birds", "-q", "and now?", home=home, env=QUIET)
    assert done.status == 0, done.err
    with SessionDB(db_path=home / "record.db") as db:
        assert [one["role"] for one in db.get_messages("parts")] == ["user", "assistant", "user", "assistant"]
    assert theirs(home) == before


def test_no_leaves_everything_as_it_was_and_reading_works(home: Path) -> None:
    before = theirs(home)
    status, seen = accept(home, "-q", "hello", answer="n\n")
    assert status == 1 and "sessions import" in seen
    assert theirs(home) == before and not (home / "record.db").exists()
    assert (home / "config.yaml").read_text() == THEIR_SETTINGS
    assert "parts" in ids(home)
    assert "kestrel" in run("sessions", "search", "kestrel", home=home).out
    assert "feather" in run("sessions", "show", "tools", home=home).out
    assert theirs(home) == before


@pytest.mark.parametrize("version", [12, 19, 30])
def test_without_a_terminal_one_line_says_what_to_run_and_that_does_it(version: int, tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = build_foreign(home / "state.db", version, leave_wal=version == 19)
    before = theirs(home)
    done = run("-q", "hello", home=home, env=QUIET)
    assert (done.status, done.out) == (1, "") and done.err.count("\n") == 1
    assert f"Hermes Agent (schema {version}, {len(made['sessions'])} sessions)" in done.err
    words = done.err.split("`")[1].split()
    assert words[0] == "hermes"
    brought = run(*words[1:], home=home)
    assert brought.status == 0, brought.err
    assert run("-q", "hello", home=home, env=QUIET).status == 0
    assert theirs(home) == before
    with SessionDB(db_path=home / "record.db") as db:
        assert {row["id"] for row in made["sessions"]} < {one["id"] for one in db.export_all()}


@pytest.mark.parametrize("words", [("sessions", "tag", "parts", "x"), ("sessions", "delete", "parts", "--yes")])
def test_commands_that_write_say_the_same(home: Path, words: tuple[str, ...]) -> None:
    done = run(*words, home=home)
    *_, line = done.err.splitlines()  # a line before it may be about their settings
    assert done.status == 1 and done.err.count("Hermes Agent") == 1
    assert "Hermes Agent" in line and f"`hermes sessions import {home / 'state.db'}`" in line


def test_an_interrupted_arrival_is_repeated(home: Path) -> None:
    """Killed before config.yaml names the record: the next time asks again, and nothing comes twice."""
    assert run("sessions", "import", home / "state.db", home=home).status == 0
    (home / "config.yaml").write_text(THEIR_SETTINGS)
    status, seen = accept(home, "-q", "hello again")
    assert status == 0, seen
    with SessionDB(db_path=home / "record.db") as db:
        assert len(db.get_messages("parts")) == 2


def test_import_found_asks_for_each_program_and_nonsense_is_asked_again(home: Path, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}

    def answer(seen: str) -> str | None:
        return "what\ny\n" if "[Y/n]" in seen else None

    status, seen = in_terminal("sessions", "import", "--found", home=home, env=env, answer=answer, width=120)
    assert status == 0 and seen.count("[Y/n]") == 2 and "parts" in ids(home), seen


# ── doctor ──


def doctor(home: Path) -> dict[str, list[dict[str, str]]]:
    done = run("doctor", "--json", home=home, env={"http_proxy": "", "https_proxy": "", "no_proxy": "*"})
    assert done.status == 0, done.out
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(done.out)["checks"]:
        found.setdefault(one["name"], []).append(one)
    return found


def test_doctor_advises_neither_an_upgrade_nor_the_end_of_their_settings(home: Path) -> None:
    before = theirs(home)
    found = doctor(home)
    (store,) = found["store"]
    assert store["state"] == "remark" and "Hermes Agent (schema 22, 6 sessions)" in store["text"]
    assert f"hermes sessions import {home / 'state.db'}" in store["hint"]
    assert all(one["state"] == "well" for one in found["config"]), found["config"]
    assert "unset" not in str(found["config"]) and "upgrade" not in str(found)
    assert theirs(home) == before


def test_settings_that_they_leave_empty_are_not_set(home: Path) -> None:
    (home / "config.yaml").write_text("model: anthropic/claude\ntimezone: ''\nauxiliary: {title: {base_url: ''}}\n")
    assert run("config", "get", "model.default", home=home).out == "anthropic/claude\n"
    assert run("sessions", "import", home / "state.db", home=home).status == 0
    assert (home / "config.yaml").read_text().startswith("model: anthropic/claude\ntimezone: ''\n")


# ── store.path ──


def test_a_store_path_is_used_and_is_relative_to_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run("config", "set", "store.path", "elsewhere/mine.db", home=home).status == 0
    assert run("-q", "hello", home=home, env=QUIET).status == 0
    assert (home / "elsewhere" / "mine.db").exists() and not (home / "state.db").exists()
    assert len(ids(home)) == 1
    assert run("sessions", "check", home=home).status == 0


# ── two programs, one name ──


def test_both_programs_in_one_environment_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    (folder / "hermes_agent-0.19.0.dist-info").mkdir(parents=True)
    start = f"import sys; sys.path.append({str(folder)!r}); from hermes.cli.main import script; script()"
    done = subprocess.run(
        [sys.executable, "-c", start], env=environment(tmp_path / "home"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.count("\n") == 1
    assert "Hermes Agent" in done.stderr and "environment" in done.stderr
    assert not (tmp_path / "home").exists()


def test_hints_name_the_program_as_it_was_called(tmp_path: Path) -> None:
    called = tmp_path / "hermes-sessions"
    called.write_text(f"#!{sys.executable}\nfrom hermes.cli.main import script\nscript()\n")
    called.chmod(0o755)
    done = subprocess.run(
        [called, "sessions", "show", "none"],
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "`hermes-sessions sessions list`" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_install_takes_the_other_name_where_hermes_is_taken(tmp_path: Path) -> None:
    """A copy of the Makefile beside an environment that counts as installed: nothing is fetched."""
    tree = tmp_path / "tree"
    (tree / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    for name in ("hermes", "hermes-sessions"):
        (tree / ".venv" / "bin" / name).write_text("#!/bin/sh\n")
        (tree / ".venv" / "bin" / name).chmod(0o755)
    (tree / ".venv" / ".chat").touch()
    place = tmp_path / "person" / ".local" / "bin"
    env = {**os.environ, "HOME": str(tmp_path / "person"), "PATH": "/usr/bin:/bin"}

    def install() -> str:
        return subprocess.run(["make", "install"], cwd=tree, env=env, capture_output=True, text=True, check=True).stdout

    install()
    assert [one.name for one in place.iterdir()] == ["hermes"]
    install()
    (place / "hermes").unlink()
    (place / "hermes").write_text("#!/bin/sh\necho theirs\n")
    (place / "hermes").chmod(0o755)
    assert "hermes-sessions" in install()
    assert (place / "hermes").read_text() == "#!/bin/sh\necho theirs\n"
    assert (place / "hermes-sessions").resolve() == tree / ".venv" / "bin" / "hermes-sessions"


def test_the_commands_of_make_chat_exist(tmp_path: Path) -> None:
    """Each `hermes` line of the rule is one that the program understands."""
    rule = (ROOT / "Makefile").read_text().partition("\nchat:")[2].partition("\n\n")[0]
    lines = re.findall(r"\$\(BIN\)/hermes ([a-z ]+[a-z])", rule)
    assert len(lines) > 1
    for line in lines:
        assert run(*line.split(), "--help", home=tmp_path).status == 0, line


def test_our_record_is_encrypted_beside_their_files(home: Path, tmp_path: Path) -> None:
    from hermes.home import in_encrypted_home

    assert run("sessions", "import", home / "state.db", home=home).status == 0
    before = theirs(home)
    done = run(
        "sessions", "encrypt", "--key-file", tmp_path / "key", home=home, env={"HERMES_KEY_FILE": str(tmp_path / "key")}
    )
    assert done.status == 0, done.err
    assert theirs(home) == before and (home / "record.db-key").exists()
    assert "parts" in ids(home, HERMES_KEY_FILE=str(tmp_path / "key"))
    assert in_encrypted_home(home / "gateway" / "unkept" / "one.json")  # no plain text of messages is written there
