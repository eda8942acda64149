"""The report of `check` on missing attachments: never brought along, or lost."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

from hermes.store.exchange.copy import move
from hermes_state import SessionDB

PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + b"picture" * 40).decode()
OTHER = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + b"another" * 40).decode()


def with_picture(folder: Path, session_id: str, url: str) -> list[dict[str, Any]]:
    """A store with one picture, as it is exported."""
    with SessionDB(folder / "state.db") as db:
        db.create_session(session_id, "cli")
        db.append_message(session_id, "user", [{"type": "image_url", "image_url": {"url": url}}])
        return json.loads(json.dumps(list(db.iter_export())))


def kinds(path: Path) -> list[str]:
    with SessionDB(path) as db:
        return [f"{one['kind']}: {'gone' if 'is gone' in one['detail'] else 'other'}" for one in db.check()]


def test_a_folder_of_attachments_that_is_gone_is_reported(tmp_path: Path) -> None:
    with_picture(tmp_path / "a", "s", PICTURE)
    shutil.rmtree(tmp_path / "a" / "attachments")
    assert kinds(tmp_path / "a" / "state.db") == ["attachment: gone"]


def test_sessions_imported_alone_lack_nothing_even_beside_attachments_of_their_own(tmp_path: Path) -> None:
    exported = with_picture(tmp_path / "a", "s", PICTURE)
    with_picture(tmp_path / "b", "t", OTHER)
    for place in ("b", "empty"):
        with SessionDB(tmp_path / place / "state.db") as db:
            assert db.import_sessions(exported)["sessions"] == 1
        assert kinds(tmp_path / place / "state.db") == []
    shutil.rmtree(tmp_path / "b" / "attachments")
    assert kinds(tmp_path / "b" / "state.db") == ["attachment: gone"], "only its own"


def test_the_note_goes_with_a_backup_and_a_move_and_ends_when_the_bytes_come(tmp_path: Path) -> None:
    exported = with_picture(tmp_path / "a", "s", PICTURE)
    with_picture(tmp_path / "b", "t", OTHER)
    with SessionDB(tmp_path / "b" / "state.db") as db, SessionDB(tmp_path / "moved" / "state.db") as target:
        db.import_sessions(exported)
        db.backup(tmp_path / "copy" / "state.db")
        move(db, target)
    shutil.copytree(tmp_path / "b" / "attachments", tmp_path / "copy" / "attachments", dirs_exist_ok=True)
    for place in ("copy", "moved"):
        assert kinds(tmp_path / place / "state.db") == []
    with SessionDB(tmp_path / "b" / "state.db") as db:
        db.append_message("t", "user", [{"type": "image_url", "image_url": {"url": PICTURE}}])
    assert kinds(tmp_path / "b" / "state.db") == []
    shutil.rmtree(tmp_path / "b" / "attachments")
    assert kinds(tmp_path / "b" / "state.db") == ["attachment: gone"] * 2
