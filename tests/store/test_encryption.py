"""An encrypted store keeps everything in its database; its keys, and what is said when one is wrong or missing."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.errors import InvalidInput, StoreLocked
from hermes.gateway.events import Chat, Event, Sender
from hermes.gateway.platforms._shared.receipt import Spool
from hermes.home import key_file
from hermes.store import encryption, keys
from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB

PICTURE = b"\x89PNG dormouse " * 20


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A store that is encrypted from its beginning."""
    keys.save(
        tmp_path / "state.db",
        keys.new_vault(keys.by_file(tmp_path.parent / f"{tmp_path.name} key")),
    )
    return tmp_path / "state.db"


def talk(db: SessionDB, messages: int = 10) -> None:
    db.create_session("s", "cli", system_prompt="a dormouse")
    for n in range(messages):
        db.append_message("s", "user", f"dormouse {n} " + "and so on " * 20)
    url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    db.append_message("s", "user", [{"type": "image_url", "image_url": {"url": url}}])


# ------------------------------------------------------------------------------------------------ everything inside


def test_attachments_and_drafts_are_rows_and_go_with_their_session(database: Path) -> None:
    digest = hashlib.sha256(PICTURE).hexdigest()
    with SessionDB(database) as db, SessionDB(database) as other:
        talk(db)
        draft = db.drafts.begin("s", after=1, model="m", mask=db.masked)
        for piece in ("half a ", "reply"):
            draft.write(piece)
        assert other.drafts.exists("s")
        draft.close(keep=True)
        with pytest.raises(InterruptedError), other.drafts.left_behind("s") as left:
            assert left is not None and left.text == "half a reply"
            raise InterruptedError
        assert other.read_attachment(digest) == PICTURE
        assert other.attachment_file(digest) is None
        assert db.check() == []
        db.backup(database.with_name("copy.db"))
        with SessionDB(database.with_name("copy.db"), read_only=True) as copy:
            assert copy.read_attachment(digest) == PICTURE
        db.delete_session("s")
        assert not other.drafts.exists("s")
        with pytest.raises(FileNotFoundError):
            other.read_attachment(digest)
    left_files = {one.name for one in database.parent.rglob("*") if one.is_file() and one.stat().st_size}
    assert left_files == {"state.db", "state.db-key", "copy.db", "copy.db-key"}


def test_a_damaged_encrypted_database_is_rebuilt_encrypted(database: Path) -> None:
    with SessionDB(database) as db:
        talk(db, 300)
        db.catch_up()
    raw = bytearray(database.read_bytes())
    middle = len(raw) // 4096 // 2
    raw[middle * 4096 + 200 : middle * 4096 + 260] = bytes(60)
    database.write_bytes(raw)
    rebuild_store(database, database.parent / "sessions")
    with SessionDB(database) as db:
        assert len(db.get_messages("s")) > 200
        assert db.check() == []
    for one in database.parent.iterdir():
        assert one.is_dir() or b"dormouse" not in one.read_bytes()
    assert not database.read_bytes().startswith(b"SQLite format 3")


def test_a_database_of_which_nothing_can_be_read_is_not_replaced_by_an_empty_one(database: Path) -> None:
    with SessionDB(database) as db:
        talk(db)
    whole = database.read_bytes()
    mine = key_file(database).read_bytes()
    keys.save(database, keys.new_vault(keys.by_file(database.with_name("other"))))
    with pytest.raises(StoreLocked, match="another store.s or an earlier one"):
        SessionDB(database)
    with pytest.raises(InvalidInput, match="restore a backup"):
        rebuild_store(database, database.parent / "sessions")
    assert database.read_bytes() == whole
    key_file(database).write_bytes(mine)
    with SessionDB(database) as db:
        assert db.check() == []


def test_no_message_is_spooled_beside_an_encrypted_store(database: Path) -> None:
    spool = Spool(database.parent / "slack" / "unkept")
    with pytest.raises(OSError, match="the record is encrypted"):
        chat, sender = Chat(platform="teams", chat_id="1"), Sender(user_id="1", proven=True)
        spool.put(Event(id="1", chat=chat, sender=sender, text="dormouse"))
    assert spool.waiting() == []


# ------------------------------------------------------------------------------------------------ to and fro


def test_what_the_database_lacks_is_not_removed(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    with SessionDB(database) as db:
        talk(db)
    stranger = tmp_path / "sessions" / "request_dump_s_2026.json"
    stranger.write_text("another program's")
    waiting = tmp_path / "slack" / "unkept" / "1.json"
    waiting.parent.mkdir(parents=True)
    waiting.write_text("{}")
    key = tmp_path.parent / f"{tmp_path.name} key"
    with pytest.raises(InvalidInput, match="run the gateway until it has them"):
        encryption.encrypt(database, lambda: keys.by_file(key))
    waiting.unlink()
    left = encryption.encrypt(database, lambda: keys.by_file(key))
    assert left == [stranger]
    assert stranger.read_text() == "another program's"
    assert not (tmp_path / "attachments").exists()


@pytest.mark.parametrize(
    ("transcripts", "names"), [("all", {"s.jsonl", "t.jsonl"}), ("gateway", {"t.jsonl"}), ("off", set())]
)
def test_the_transcripts_that_are_wanted_come_back(tmp_path: Path, transcripts: str, names: set[str]) -> None:
    database = tmp_path / "state.db"
    with SessionDB(database, transcripts=transcripts) as db:
        talk(db)
    encryption.encrypt(database, lambda: keys.by_file(tmp_path.parent / f"{tmp_path.name} key"))
    with SessionDB(database) as db:
        db.create_session("t", "telegram")
        db.append_message("t", "user", "said while it was encrypted")
        assert db.check() == []
    assert not list(tmp_path.rglob("*.jsonl"))
    encryption.decrypt(database, transcripts)
    assert {one.name for one in tmp_path.rglob("*.jsonl")} == names
    with SessionDB(database, transcripts=transcripts) as db:
        assert db.check() == []
        assert db.read_attachment(hashlib.sha256(PICTURE).hexdigest()) == PICTURE
        assert (db.attachment_file(hashlib.sha256(PICTURE).hexdigest()) or Path()).read_bytes() == PICTURE


# ------------------------------------------------------------------------------------------------ keys


def test_wrong_and_missing_keys_are_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    database = tmp_path / "state.db"
    (tmp_path / "wrong").write_text("battery staple\n")
    keys.save(database, keys.new_vault(keys.by_passphrase("correct horse")))
    other = tmp_path / "copy" / "state.db"
    other.parent.mkdir()
    made = key_file(database).read_bytes().replace(b'"salt": "', b'"salt": "00')  # another salt: nothing is remembered
    key_file(other).write_bytes(made)
    with pytest.raises(StoreLocked, match="no terminal to ask on; set HERMES_PASSPHRASE_FILE"):
        keys.vault_of(other)
    monkeypatch.setenv("HERMES_PASSPHRASE_FILE", str(tmp_path / "wrong"))
    with pytest.raises(StoreLocked, match="this is not its passphrase"):
        keys.vault_of(other)
    monkeypatch.setenv("HERMES_PASSPHRASE_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreLocked, match="can't be read"):
        keys.vault_of(other)
    key_file(other).write_bytes(b"{}")
    with pytest.raises(StoreLocked, match="is damaged; put back a copy of it"):
        keys.vault_of(other)


def test_a_process_goes_on_when_another_changes_the_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_KEY_FILE", str(tmp_path / "key"))
    database = tmp_path / "state.db"
    encryption.encrypt(database, lambda: keys.by_file(tmp_path / "key"))
    with SessionDB(database) as db:
        db.create_session("s", "cli")
        code = (
            "import sys; from pathlib import Path; from hermes.store import encryption, keys;"
            "encryption.rekey(Path(sys.argv[1]), lambda: keys.by_passphrase('another'))"
        )
        subprocess.run([sys.executable, "-c", code, str(database)], check=True)
        (tmp_path / "key").unlink()
        db.append_message("s", "user", "dormouse")
        db.backup(tmp_path / "copy.db")
        assert db.check() == []
    for one in (database, tmp_path / "copy.db"):
        assert json.loads(key_file(one).read_bytes())["way"] == "passphrase"


def test_a_key_file_has_to_have_enough_bytes(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("12345")
    with pytest.raises(StoreLocked, match="fewer than 32 bytes"):
        keys.by_file(tmp_path / "short")
    with pytest.raises(InvalidInput, match="an empty passphrase"):
        keys.by_passphrase("")
