"""Deleted or masked text is in none of the store's files: not in free pages, not in the WAL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.waiting import until

TEXT = "the garden gate is opened with a blue key under the third stone"
KEY = "sk-proj-abcdefghij0123456789ABCDEFGHIJ"
TOKEN = "quixelbramble77"


def holding(folder: Path, what: str) -> dict[str, int]:
    """How often each file below a folder has these bytes."""
    counts = {file.name: file.read_bytes().count(what.encode()) for file in folder.rglob("*") if file.is_file()}
    return {name: count for name, count in counts.items() if count}


def told(db: SessionDB, text: str) -> None:
    db.create_session("talk", "cli")
    for number in range(20):
        db.append_message("talk", "user", f"{number}: {text}")
        db.append_message("talk", "assistant", "I see.", reasoning=f"So {text}, says the user ({number}).")
    db.append_message("talk", "tool", f"{text} {'and more ' * 600}", tool_name="read", tool_call_id="c1")
    db.ensure_session("other", "cli")
    for number in range(100):
        db.append_message("other", "user", f"something else {number}")


def replace(db: SessionDB) -> None:
    db.replace_messages("talk", [{"role": "user", "content": "nothing"}])


def clear(db: SessionDB) -> None:
    db.clear_messages("talk")


def delete(db: SessionDB) -> None:
    db.update_system_prompt("talk", f"You know that {TEXT}.")
    db.delete_session("talk")


def empty_trash(db: SessionDB) -> None:
    db.trash_session("talk")
    db.empty_trash(0)


@pytest.mark.parametrize("remove", [replace, clear, delete, empty_trash])
def test_deleted_text_is_gone_from_every_file_while_the_store_is_open(
    tmp_path: Path, remove: Callable[[SessionDB], None]
) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        told(db, TEXT)
        assert holding(tmp_path, TEXT)
        remove(db)
        until(lambda: holding(tmp_path, TEXT) == {}, lambda: holding(tmp_path, TEXT))  # it is done in a quiet moment
        assert db.check() == []
    assert holding(tmp_path, TEXT) == {}


def test_deleted_text_is_gone_when_the_store_is_closed_at_once(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db, SessionDB(tmp_path / "state.db"):
        told(db, TEXT)
        delete(db)
        db.close()
        assert holding(tmp_path, TEXT) == {}


def test_words_of_deleted_text_are_gone_when_the_index_is_made_anew(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        told(db, f"the word is {TOKEN}")
        delete(db)
        db.repair(rebuild_index=True)
    for copy in tmp_path.glob("state.db.before-repair-*"):
        copy.unlink()
    assert holding(tmp_path, TOKEN) == {}


def test_a_masked_secret_never_reaches_a_file(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        told(db, f"the key is {KEY}")
        db.set_session_title("talk", f"about {KEY}")
        assert holding(tmp_path, KEY) == {}
        assert db.search_messages("masked")
    assert holding(tmp_path, KEY) == {}
    assert holding(tmp_path, KEY.lower()) == {}
