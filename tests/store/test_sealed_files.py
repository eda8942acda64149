"""Encrypted files: what was written is read again, and damage costs the piece it hits and no other."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import InvalidInput, StoreLocked
from hermes.gateway.spool import Spool
from hermes.home import key_file
from hermes.store import encryption, encryption_keys, sealed_files
from hermes.store.attachments import read_attachment
from hermes.store.rebuild import rebuild
from hermes_state import SessionDB

PIECES = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12)


@pytest.fixture
def key(tmp_path: Path) -> encryption_keys.DataKey:
    vault = encryption_keys.new_vault(encryption_keys.by_file(tmp_path / "key"))
    encryption_keys.save(tmp_path / "state.db", vault)
    return vault.current


def appended(path: Path, pieces: list[bytes], key: encryption_keys.DataKey | None) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        for piece in pieces:
            form = sealed_files.Appending(path, key)  # as if each came from another process
            start = form.at_start(handle, os.fstat(handle).st_size)
            os.write(handle, start + form.made(piece))
    finally:
        os.close(handle)


@given(content=st.binary(max_size=5000))
def test_a_whole_file_is_read_as_it_was_written(content: bytes, tmp_path: Path, key: encryption_keys.DataKey) -> None:
    path = tmp_path / "file"
    sealed_files.put(path, content, key)
    assert sealed_files.read_bytes(path) == content
    assert sealed_files.content_size(path) == len(content)
    assert len(content) < 8 or content not in path.read_bytes()[sealed_files.HEADER :]


@given(pieces=PIECES, cut=st.integers(min_value=1, max_value=400), more=PIECES)
def test_a_torn_end_costs_the_last_pieces_and_what_follows_is_read(
    pieces: list[bytes], cut: int, more: list[bytes], tmp_path: Path, key: encryption_keys.DataKey
) -> None:
    path = tmp_path / "lines"
    path.unlink(missing_ok=True)
    appended(path, pieces, key)
    os.truncate(path, max(path.stat().st_size - cut, 0))
    left, size = 0, sealed_files.HEADER
    for piece in pieces:  # pieces that end before the cut
        size += len(piece) + sealed_files.WHOLE - sealed_files.HEADER
        left += size <= path.stat().st_size
    appended(path, more, key)
    raw = path.read_bytes()
    seal = sealed_files.seal_of(raw, path)
    assert seal is not None
    read = [data for data, whole in seal.pieces(raw, sealed_files.HEADER) if whole]
    mended = [*pieces[: left + 1], *more]  # a byte that was cut off is by chance the first one of what follows
    assert read in ([*pieces[:left], *more], mended)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_torn_end_that_what_follows_completes_costs_nothing(
    lost: int, tmp_path: Path, key: encryption_keys.DataKey
) -> None:
    """One torn write in 256 lacks the byte that every piece begins with: the piece behind it was not found then."""
    seal = sealed_files.Seal(key)
    following = seal.piece(b"following")
    for _ in range(1 << 22):
        torn = seal.piece(b"torn")
        if torn.endswith(following[:lost]):
            break
    raw = seal.header + seal.piece(b"first") + torn[:-lost] + following + seal.piece(b"last")
    read = [(data, whole) for data, whole in seal.pieces(raw, sealed_files.HEADER)]
    assert read == [(data, True) for data in (b"first", b"torn", b"following", b"last")]
    path = tmp_path / "lines"
    path.write_bytes(raw)
    assert sealed_files.content(path) == b"firsttornfollowinglast"


@given(pieces=PIECES, place=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
def test_a_flipped_bit_costs_one_piece_and_never_gives_other_text(
    pieces: list[bytes], place: int, bit: int, tmp_path: Path, key: encryption_keys.DataKey
) -> None:
    path = tmp_path / "lines"
    path.unlink(missing_ok=True)
    appended(path, pieces, key)
    raw = bytearray(path.read_bytes())
    at = sealed_files.HEADER + place % (len(raw) - sealed_files.HEADER)
    raw[at] ^= 1 << bit
    seal = sealed_files.seal_of(bytes(raw), path)
    assert seal is not None
    read = [data for data, whole in seal.pieces(bytes(raw), sealed_files.HEADER) if whole]
    assert len(read) == len(pieces) - 1
    rest = iter(pieces)
    assert all(one in rest for one in read), "in order, and nothing that was not written"
    path.write_bytes(raw)
    with pytest.raises(sealed_files.DamagedFile):
        sealed_files.read_bytes(path)


def test_a_plain_file_stays_plain_when_it_is_appended_to(tmp_path: Path, key: encryption_keys.DataKey) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    appended(path, [b"two\n"], key)
    assert path.read_bytes() == b"one\ntwo\n" == sealed_files.content(path)


def test_a_piece_of_another_file_is_not_taken(tmp_path: Path, key: encryption_keys.DataKey) -> None:
    appended(tmp_path / "a", [b"one\n"], key)
    appended(tmp_path / "b", [b"two\n"], key)
    foreign = (tmp_path / "b").read_bytes()[sealed_files.HEADER :]
    with (tmp_path / "a").open("ab") as file:
        file.write(foreign)
    assert b"two" not in sealed_files.content(tmp_path / "a")


def test_an_attachment_that_is_itself_an_encrypted_file_is_given_as_it_came(
    tmp_path: Path, key: encryption_keys.DataKey
) -> None:
    strange = sealed_files.sealed(b"somebody else's", encryption_keys.DataKey.new()) + b"x" * 100
    url = "data:application/octet-stream;base64," + base64.b64encode(strange).decode()
    with SessionDB(tmp_path / "plain" / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", [{"type": "file", "file": {"file_data": url}}])
        assert db.check() == []
        digest = hashlib.sha256(strange).hexdigest()
        assert read_attachment(db.attachments_dir, digest) == strange


# ------------------------------------------------------------------------------------------------ keys


def test_wrong_and_missing_keys_are_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    database = tmp_path / "state.db"
    (tmp_path / "right").write_text("correct horse\n")
    (tmp_path / "wrong").write_text("battery staple\n")
    encryption_keys.save(database, encryption_keys.new_vault(encryption_keys.by_passphrase("correct horse")))
    other = tmp_path / "copy" / "state.db"
    other.parent.mkdir()
    made = key_file(database).read_bytes().replace(b'"salt": "', b'"salt": "00')  # another salt: nothing is remembered
    key_file(other).write_bytes(made)
    with pytest.raises(StoreLocked, match="no terminal to ask on; set HERMES_PASSPHRASE_FILE"):
        encryption_keys.vault_of(other)
    monkeypatch.setenv("HERMES_PASSPHRASE_FILE", str(tmp_path / "wrong"))
    with pytest.raises(StoreLocked, match="this is not its passphrase"):
        encryption_keys.vault_of(other)
    monkeypatch.setenv("HERMES_PASSPHRASE_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreLocked, match="can't be read"):
        encryption_keys.vault_of(other)
    key_file(other).write_bytes(b"{}")
    with pytest.raises(StoreLocked, match="is damaged; put back a copy of it"):
        encryption_keys.vault_of(other)


def test_an_old_copy_of_the_key_file_is_told_from_damage(tmp_path: Path) -> None:
    """Or a repair would begin to rebuild a database that is whole."""
    database = tmp_path / "state.db"
    with SessionDB(database) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "dormouse")
    encryption.encrypt(database, lambda: encryption_keys.by_file(tmp_path / "key"))
    old = key_file(database).read_bytes()
    encryption.rekey(database)
    new = key_file(database).read_bytes()
    key_file(database).write_bytes(old)
    with pytest.raises(StoreLocked, match="is the key file of an earlier time"):
        SessionDB(database)
    key_file(database).write_bytes(new)
    with SessionDB(database) as db:
        assert db.check() == []


def test_a_process_goes_on_when_another_changes_the_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_KEY_FILE", str(tmp_path / "key"))
    database = tmp_path / "state.db"
    encryption.encrypt(database, lambda: encryption_keys.by_file(tmp_path / "key"))
    with SessionDB(database) as db:
        db.create_session("s", "cli")
        code = (
            "import sys; from pathlib import Path; from hermes.store import encryption, encryption_keys;"
            "encryption.rewrap(Path(sys.argv[1]), lambda: encryption_keys.by_passphrase('another'))"
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
        encryption_keys.by_file(tmp_path / "short")
    with pytest.raises(InvalidInput, match="an empty passphrase"):
        encryption_keys.by_passphrase("")


def test_a_damaged_encrypted_transcript_is_repaired_from_the_database(
    tmp_path: Path, key: encryption_keys.DataKey
) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("s", "cli")
        for n in range(10):
            db.append_message("s", "user", f"dormouse {n}")
    path = tmp_path / "sessions" / "s.jsonl"
    whole = sealed_files.content(path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw[:-20])
    with SessionDB(tmp_path / "state.db") as db:
        assert db.check()
        assert db.repair()
        assert db.check() == []
        assert b"dormouse" not in path.read_bytes()
    said = [line for line in whole.split(b"\n") if b'"type":"message"' in line]
    assert sorted(said) == sorted(line for line in sealed_files.content(path).split(b"\n") if b'"message"' in line)


def test_a_damaged_encrypted_database_is_rebuilt_encrypted(tmp_path: Path, key: encryption_keys.DataKey) -> None:
    from hermes.store.repair import salvage

    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("s", "cli")
        for n in range(300):
            db.append_message("s", "user", f"dormouse {n} " + "and so on " * 20)
        db.catch_up()
    file = tmp_path / "state.db"
    raw = bytearray(file.read_bytes())
    for page in (0, len(raw) // 4096 // 2):
        raw[page * 4096 + 200 : page * 4096 + 260] = bytes(60)
    file.write_bytes(raw)
    salvage(file, tmp_path / "sessions")
    with SessionDB(file) as db:
        assert len(db.get_messages("s")) == 300
        assert db.check() == []
    for one in tmp_path.iterdir():
        assert one.is_dir() or b"dormouse" not in one.read_bytes()
    assert not file.read_bytes().startswith(b"SQLite format 3")


def test_a_database_rebuilt_from_encrypted_transcripts_is_encrypted(
    tmp_path: Path, key: encryption_keys.DataKey
) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("s", "cli", system_prompt="a dormouse")
        for n in range(10):
            db.append_message("s", "user", f"dormouse {n}")
    assert rebuild(tmp_path / "sessions", tmp_path / "new.db")["messages"] == 10
    assert b"dormouse" not in (tmp_path / "new.db").read_bytes()
    with SessionDB(tmp_path / "new.db", read_only=True) as db:
        assert [row["content"] for row in db.get_messages("s")] == [f"dormouse {n}" for n in range(10)]
        session = db.get_session("s")
        assert session is not None and session["system_prompt"] == "a dormouse"


def test_messages_that_wait_for_the_store_are_encrypted(tmp_path: Path, key: encryption_keys.DataKey) -> None:
    spool = Spool(tmp_path / "slack" / "unkept")
    asyncio.run(spool.put({"text": "dormouse"}))
    spool.close()
    (file,) = (tmp_path / "slack" / "unkept").iterdir()
    assert b"dormouse" not in file.read_bytes()
    assert [content for _, content in spool.waiting()] == [{"text": "dormouse"}]
