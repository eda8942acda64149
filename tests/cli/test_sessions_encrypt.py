"""`hermes sessions encrypt`, `decrypt` and `rekey` as a person uses them: keys, wrong keys, and what is said about them."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from tests.support.encrypted_homes import files_with
from tests.support.program import PROGRAM, Result, environment, run
from tests.support.screen import Screen

WORD = "pangolinword"


@pytest.fixture
def home(hermes_home: Path) -> Path:
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", f"a {WORD}")
    return hermes_home


def hermes(home: Path, *words: object, **env: object) -> Result:
    return run(*words, home=home, env={key: str(value) for key, value in env.items()})


def one_line(done: Result, *parts: str) -> None:
    assert done.status == 1
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert all(part in done.err for part in parts), done.err


def test_a_passphrase_is_asked_for_on_a_terminal(home: Path) -> None:
    def typed(*answers: tuple[str, str], words: tuple[str, ...]) -> str:
        screen = Screen([*PROGRAM, *words], 120, env=environment(home))
        try:
            for question, answer in answers:
                screen.wait_for(question)
                screen.line(answer)
            screen.wait_until_over()
            return " ".join(screen.history().split())  # a long path wraps the line
        finally:
            screen.close()

    twice = (("New passphrase", "open sesame"), ("Repeat for confirmation", "open sesame"))
    seen = typed(*twice, words=("sessions", "encrypt"))
    assert "encrypted" in seen
    assert "open sesame" not in seen
    search = ("sessions", "search", WORD)
    assert "1 hit" in typed(("Passphrase for", "open sesame"), words=search)
    refused = typed(("Passphrase for", "wrong"), words=search)
    assert "this is not its passphrase" in " ".join(refused.split())  # the path decides where the line is broken


def test_wrong_and_missing_passphrases(home: Path, tmp_path: Path) -> None:
    (tmp_path / "right").write_text("one two three\n")
    (tmp_path / "wrong").write_text("four\n")
    before = (home / "state.db").stat().st_ino
    done = hermes(home, "sessions", "encrypt", "--passphrase-file", tmp_path / "right")
    assert (done.status, done.err) == (0, "")
    assert (home / "state.db").stat().st_ino != before
    one_line(hermes(home, "sessions", "list"), "no terminal to ask on", "HERMES_PASSPHRASE_FILE")
    untouched = (home / "state.db").read_bytes()
    for words in (("sessions", "list"), ("sessions", "check"), ("sessions", "repair"), ("sessions", "decrypt")):
        one_line(hermes(home, *words, HERMES_PASSPHRASE_FILE=tmp_path / "wrong"), "is not its passphrase")
    assert (home / "state.db").read_bytes() == untouched, "a wrong key must not lead to a repair"
    (home / "config.yaml").write_text(f"store: {{passphrase_file: {tmp_path / 'right'}}}\n")
    assert WORD in hermes(home, "sessions", "search", WORD).out
    (home / "state.db-key").rename(tmp_path / "put away")
    one_line(hermes(home, "sessions", "list"), "its key file state.db-key is not beside it")


def test_a_key_file_and_another_one(home: Path, tmp_path: Path) -> None:
    done = hermes(home, "sessions", "encrypt", "--key-file", tmp_path / "key")
    assert done.status == 0, done.err
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert WORD in hermes(home, "sessions", "search", WORD).out
    done = hermes(home, "sessions", "encrypt", "--key-file", tmp_path / "ignored")
    assert done.status == 0
    assert "it already had a key" in done.err
    assert not (tmp_path / "ignored").exists()
    (tmp_path / "key").rename(tmp_path / "stick")
    one_line(hermes(home, "sessions", "list"), "is not there", "HERMES_KEY_FILE")
    (tmp_path / "other").write_bytes(b"x" * 40)
    one_line(hermes(home, "sessions", "list", HERMES_KEY_FILE=tmp_path / "other"), "this is not its key file")
    done = hermes(home, "sessions", "rekey", "--key-file", tmp_path / "new", HERMES_KEY_FILE=tmp_path / "stick")
    assert done.status == 0, done.err
    one_line(hermes(home, "sessions", "list", HERMES_KEY_FILE=tmp_path / "stick"), "this is not its key file")
    assert "sound: 1 session, 1 message" in hermes(home, "sessions", "check").out
    assert "decrypted" in hermes(home, "sessions", "decrypt").out
    assert "sound: 1 session, 1 message" in hermes(home, "sessions", "check").out
    one_line(hermes(home, "sessions", "decrypt"), "is not encrypted")
    one_line(hermes(home, "sessions", "rekey", "--key-file", tmp_path / "new"), "is not encrypted")


def test_a_keyring(home: Path, tmp_path: Path) -> None:
    """A keyring that is a file, as the library lets one be put in; none at all is said."""
    backend = tmp_path / "filering.py"
    backend.write_text(
        "import json, pathlib\nfrom keyring.backend import KeyringBackend\n"
        f"PLACE = pathlib.Path({str(tmp_path / 'ring.json')!r})\n"
        "class Ring(KeyringBackend):\n    priority = 1\n"
        "    def _all(self): return json.loads(PLACE.read_text()) if PLACE.exists() else {}\n"
        "    def get_password(self, service, name): return self._all().get(service + name)\n"
        "    def set_password(self, service, name, value):"
        " PLACE.write_text(json.dumps(self._all() | {service + name: value}))\n"
        "    def delete_password(self, service, name):"
        " PLACE.write_text(json.dumps({k: v for k, v in self._all().items() if k != service + name}))\n"
    )
    ring = {"PYTHON_KEYRING_BACKEND": "filering.Ring", "PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}"}
    none = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    one_line(hermes(home, "sessions", "encrypt", "--keyring", **none), "no keyring that works", "--key-file")
    assert not (home / "state.db-key").exists()
    done = hermes(home, "sessions", "encrypt", "--keyring", **ring)
    assert done.status == 0, done.err
    assert WORD in hermes(home, "sessions", "search", WORD, **ring).out
    one_line(hermes(home, "sessions", "list", **none), "keyring")
    entry = (tmp_path / "ring.json").read_text()
    (tmp_path / "ring.json").write_text("{}")
    one_line(hermes(home, "sessions", "list", **ring), "has no entry 'hermes-sessions'")
    (tmp_path / "ring.json").write_text(entry)
    assert "decrypted" in hermes(home, "sessions", "decrypt", **ring).out
    assert (tmp_path / "ring.json").read_text() == "{}", "the entry went with the key file"


def test_doctor_and_print(home: Path, tmp_path: Path) -> None:
    hermes(home, "sessions", "encrypt", "--key-file", tmp_path / "key")
    with SessionDB(home / "state.db") as db:
        reference = db.keep_attachment(b"attachedword")
    done = hermes(home, "sessions", "decrypt", "--print", reference)
    assert (done.status, done.out) == (0, "attachedword")
    one_line(hermes(home, "sessions", "decrypt", "--print", "0" * 64), "no attachment")
    assert "1 session, 1 message" in hermes(home, "doctor", HERMES_NO_LOCAL=1).out
    (tmp_path / "key").unlink()
    assert "is encrypted with a key file" in hermes(home, "doctor", HERMES_NO_LOCAL=1).out


def test_without_the_libraries_the_install_command_is_said(home: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked" / "cryptography"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('not installed')\n")
    hermes(home, "sessions", "encrypt", "--key-file", tmp_path / "key")
    path = f"{blocked.parent}:{':'.join(filter(None, sys.path))}"
    done = run("sessions", "list", home=home, env={"PYTHONPATH": path})
    one_line(done, 'pip install -e ".[encryption]"')


def test_options_exclude_each_other(home: Path, tmp_path: Path) -> None:
    done = hermes(home, "sessions", "encrypt", "--keyring", "--key-file", tmp_path / "key")
    assert done.status == 2
    assert "give one of" in done.err
    one_line(hermes(home, "sessions", "encrypt"), "there is no terminal to ask for a passphrase")
    assert not (home / "state.db-key").exists()


def test_a_backup_of_an_encrypted_store_is_encrypted(home: Path, tmp_path: Path) -> None:
    data = base64.b64encode(b"attachedword").decode()
    with SessionDB(home / "state.db") as db:
        url = f"data:application/octet-stream;base64,{data}"
        db.append_message("s", "user", [{"type": "image_url", "image_url": {"url": url}}])
    (tmp_path / "key").write_bytes(b"0123456789" * 4)
    done = hermes(home, "sessions", "encrypt", "--key-file", tmp_path / "key")
    assert done.status == 0, done
    assert hermes(home, "sessions", "backup", home / "after.db").status == 0
    assert files_with([WORD.encode(), b"attachedword"], home) == {}
    assert hermes(home, "sessions", "decrypt").status == 0
    done = hermes(tmp_path / "other", "sessions", "import", home / "after.db")
    assert "1 session with 2 messages imported" in done.out, done
    with SessionDB(tmp_path / "other" / "state.db") as db:
        assert data in str(db.get_messages_as_conversation("s")[1]["content"])
