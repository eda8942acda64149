"""Encrypted stores: what they synchronise by a folder, migrate and export is encrypted, or it is said that it is not."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.interop.sync import FolderPlace, sync
from hermes.store import encryption, keys
from hermes_state import SessionDB
from tests.support import program
from tests.support.encrypted_homes import files_with
from tests.support.sizes import size

WORDS = (b"dormouse", b"treacle", b"teapot")
NOTE = base64.b64encode(b"a treacle well, " * 200).decode()


def said(home: Path) -> dict[str, list[Any]]:
    with SessionDB(home / "state.db") as db:
        rows = db.list_sessions_rich(limit=100, include_children=True)
        return {row["id"]: [one["content"] for one in db.get_messages(row["id"])] for row in rows}


def filled(home: Path, name: str) -> None:
    home.mkdir(exist_ok=True)
    with SessionDB(home / "state.db") as db:
        db.create_session(name, "cli")
        db.set_session_title(name, f"The teapot of {name}")
        db.append_message(name, "user", f"the dormouse of {name}")
        url = f"data:application/octet-stream;base64,{NOTE}"
        db.append_message(name, "user", [{"type": "text", "text": "see"}, {"type": "file", "file": {"file_data": url}}])


def content(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.fixture
def passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "passphrase"
    file.write_text("correct horse\n")
    monkeypatch.setenv("HERMES_PASSPHRASE_FILE", str(file))
    return file


@pytest.fixture
def homes(tmp_path: Path, passphrase: Path) -> tuple[Path, Path]:
    """Two machines whose stores are encrypted with the same passphrase."""
    one, other = tmp_path / "one", tmp_path / "other"
    for home in (one, other):
        filled(home, home.name)
        encryption.encrypt(home / "state.db", lambda: keys.by_passphrase("correct horse"))
    return one, other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "meeting").mkdir()
    return tmp_path / "meeting"


def run(home: Path, *words: object, passphrase: Path | None = None) -> program.Result:
    env = {"HERMES_PASSPHRASE_FILE": str(passphrase or "")}
    return program.run("sessions", *words, home=home, env=env)


def test_machines_with_the_same_passphrase_meet_in_a_folder_that_tells_nothing(
    homes: tuple[Path, Path], folder: Path, passphrase: Path, tmp_path: Path
) -> None:
    one, other = homes
    for home in (one, other, one):
        done = run(home, "sync", folder, passphrase=passphrase)
        assert done.status == 0, done.err
    assert said(one) == said(other) and set(said(one)) == {"one", "other"}
    assert files_with(WORDS, folder) == {}
    for name, raw in content(folder).items():
        assert name.endswith(("hermes-sync.json", "sync-key")) or raw.startswith(b"\x8bHERMES"), name
    with SessionDB(other / "state.db") as db:
        assert db.check() == [] and db.resolve_attachments(db.get_messages("one")[1]["content"])

    plain = tmp_path / "plain"  # a machine whose store is not encrypted has to know the passphrase, too
    filled(plain, "plain")
    before = content(folder)
    done = run(plain, "sync", folder)
    assert done.status == 1 and done.err.count("\n") == 1 and "HERMES_PASSPHRASE_FILE" in done.err
    assert content(folder) == before
    done = run(plain, "sync", folder, passphrase=passphrase)
    assert done.status == 0, done.err
    assert set(said(plain)) == {"one", "other", "plain"} and files_with(WORDS, folder) == {}


def test_a_wrong_passphrase_is_one_line_and_writes_nothing(
    homes: tuple[Path, Path], folder: Path, passphrase: Path, tmp_path: Path
) -> None:
    assert run(homes[0], "sync", folder, passphrase=passphrase).status == 0
    before = content(folder)
    third, wrong = tmp_path / "third", tmp_path / "wrong"
    filled(third, "third")
    wrong.write_text("battery staple\n")
    for encrypted in (False, True):
        if encrypted:
            encryption.encrypt(third / "state.db", lambda: keys.by_passphrase("battery staple"))
        done = run(third, "sync", folder, passphrase=wrong)
        assert done.status == 1 and done.err.count("\n") == 1 and "this is not its passphrase" in done.err
        assert content(folder) == before


def test_an_encrypted_store_writes_into_a_plain_folder_only_on_request(
    homes: tuple[Path, Path], folder: Path, passphrase: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    filled(plain, "plain")
    assert run(plain, "sync", folder).status == 0
    before = content(folder)
    done = run(homes[0], "sync", folder, passphrase=passphrase)
    assert done.status == 1 and done.err.count("\n") == 1 and "--plain" in done.err
    (folder / "hermes-sync.json").rename(folder / ".late")  # not arrived yet
    assert run(homes[0], "sync", folder, passphrase=passphrase).status == 1
    (folder / ".late").rename(folder / "hermes-sync.json")
    assert content(folder) == before
    assert run(homes[0], "sync", folder, "--plain", passphrase=passphrase).status == 0
    assert set(said(homes[0])) == {"one", "plain"}


def test_files_that_no_store_of_the_folder_wrote_are_named_and_not_taken(
    homes: tuple[Path, Path], folder: Path, passphrase: Path
) -> None:
    one, other = homes
    assert run(one, "sync", folder, passphrase=passphrase).status == 0
    (document,) = folder.glob("stores/*/*/*.full")
    renamed = document.with_name("0" * 32 + document.name[32:])
    shutil.copy(document, renamed)  # encrypted by a store, under another name
    plain = document.with_name("1" * 32 + document.name[32:])
    plain.write_bytes(b"not encrypted")
    done = run(other, "sync", folder, passphrase=passphrase)
    assert done.status == 1 and "under another name" in done.err and "is not encrypted" in done.err
    assert set(said(other)) == {"one", "other"}
    renamed.unlink()
    plain.unlink()
    assert run(other, "sync", folder, passphrase=passphrase).status == 0


def test_a_folder_of_which_a_part_has_arrived_stays_encrypted(
    homes: tuple[Path, Path], folder: Path, passphrase: Path, tmp_path: Path
) -> None:
    one, other = homes
    assert run(one, "sync", folder, passphrase=passphrase).status == 0
    late = tmp_path / "late"
    late.mkdir()
    (key,) = folder.glob("stores/*/sync-key")
    shutil.move(folder / "hermes-sync.json", late)
    shutil.move(key, late)
    done = run(other, "sync", folder, passphrase=passphrase)
    assert done.status == 1 and "key" in done.err
    shutil.move(late / "sync-key", key)
    assert run(other, "sync", folder, passphrase=passphrase).status == 0
    assert set(said(other)) == {"one", "other"} and files_with(WORDS, folder) == {}


@settings(max_examples=size(4, 40))
@given(
    texts=st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=5), data=st.binary(min_size=60, max_size=300)
)
def test_what_goes_through_an_encrypted_folder_comes_out_as_it_went_in(
    texts: list[str], data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("round")
    (place / "folder").mkdir()
    way = keys.by_file(place / "key")
    for name in ("a", "b"):
        (place / name).mkdir()
        keys.save(place / name / "state.db", keys.new_vault(way))
    url = "data:application/octet-stream;base64," + base64.b64encode(data).decode()
    with SessionDB(place / "a" / "state.db") as a, SessionDB(place / "b" / "state.db") as b:
        a.create_session("s", "cli")
        for text in texts:
            a.append_message("s", "user", text)
        a.append_message("s", "user", [{"type": "file", "file": {"file_data": url}}])
        for db in (a, b):
            assert sync(db, FolderPlace(place / "folder", db)).problems == []
        told = [a.get_messages("s"), b.get_messages("s")]
        assert [one["content"] for one in told[0]] == [one["content"] for one in told[1]]
        assert b.resolve_attachments(told[1][-1]["content"])[0]["file"]["file_data"] == url
    assert all(data not in raw for raw in content(place / "folder").values())


# ------------------------------------------------------------------------------------------------ other ways out


def test_the_copy_of_an_encrypted_store_is_encrypted_unless_it_is_asked_for_plain(
    homes: tuple[Path, Path], passphrase: Path, tmp_path: Path
) -> None:
    copy, plain = tmp_path / "copy" / "state.db", tmp_path / "plain" / "state.db"
    for _ in range(2):  # the second call continues
        done = run(homes[0], "migrate", "--to", f"sqlite:///{copy}", passphrase=passphrase)
        assert done.status == 0, done.err
    assert said(copy.parent) == said(homes[0])
    assert files_with(WORDS, copy.parent) == {}
    done = run(homes[0], "migrate", "--to", "postgresql://nobody@127.0.0.1:1/none", passphrase=passphrase)
    assert done.status == 1 and done.err.count("\n") == 1 and "--plain" in done.err
    done = run(homes[0], "migrate", "--to", f"sqlite:///{plain}", "--plain", passphrase=passphrase)
    assert done.status == 0, done.err
    assert plain.read_bytes().startswith(b"SQLite format 3")
    done = run(homes[0], "migrate", "--to", f"sqlite:///{plain}", passphrase=passphrase)
    assert done.status == 1 and done.err.count("\n") == 1 and "--plain" in done.err


def test_an_export_of_an_encrypted_store_says_that_it_is_plain(
    homes: tuple[Path, Path], passphrase: Path, tmp_path: Path
) -> None:
    done = run(homes[0], "export", tmp_path / "all.jsonl", passphrase=passphrase)
    assert done.status == 0 and f"{tmp_path / 'all.jsonl'} is not" in done.err
    filled(tmp_path / "plain", "plain")
    assert "this store is encrypted" not in run(tmp_path / "plain", "export", tmp_path / "plain.jsonl").err
