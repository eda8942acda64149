"""Files near a store that hold a session of it: copies that backups and repairs made, exports.

Looked at are the files beside the database, folders beside it that are named after backups, what a repair put aside
among the transcripts, and the backups that were made elsewhere (their paths are noted). A database holds the session when the
id is among its bytes, any other file when it names the id as JSON does. An encrypted copy can't be searched: it counts as one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hermes.home import has_key_file
from hermes.store import codec
from hermes.store.engines.base import Tx
from hermes.store.engines.sqlite.foreign_database import is_database

_PIECE = 1 << 20  # bytes read at once
_OWN = ("", "-wal", "-shm", "-journal", "-queue", "-key")
BACKUP = "backup:"  # keys of state_meta, followed by the path of a backup: when it was made


def note_backup(tx: Tx, path: Path) -> None:
    """Remember where a backup lies, and forget those that were deleted since."""
    for known in noted_backups(tx):
        if not known.exists() and known.parent.is_dir():
            tx.run("DELETE FROM state_meta WHERE key = ?", (codec.storable(BACKUP + str(known)),))
    tx.run("INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
           (codec.storable(BACKUP + str(path.absolute())), repr(time.time())))  # fmt: skip


def noted_backups(tx: Tx) -> list[Path]:
    """The backups that were made of this store."""
    keys = tx.rows("SELECT key FROM state_meta WHERE key LIKE ? ORDER BY key", (BACKUP + "%",))
    return [Path(str(codec.restored(key)).removeprefix(BACKUP)) for (key,) in keys]


def copies_of(
    database: Path,
    transcripts: Path,
    session_ids: Sequence[str],
    attachments: Iterable[str],
    backups: Iterable[Path] = (),
) -> Iterator[Path]:
    """The files that hold one of these sessions, or a copy of one of these attachments (by hash)."""
    own = {database.with_name(database.name + end) for end in _OWN}
    elsewhere = {path for path in backups if path.is_file()}
    candidates = sorted(({*_candidates(database.parent, transcripts)} | elsewhere) - own)
    for path in candidates:
        try:
            if _holds(path, session_ids):
                yield path
        except OSError:
            continue  # not readable for the user who runs this
    # A backup has its attachments beside it, so each may lie in the folder of any candidate.
    folders = {database.parent, *(path.parent for path in candidates if ".attachments" not in str(path.parent))}
    for digest in attachments:
        yield from sorted(found for one in folders for found in one.glob(f"*.attachments/{digest[:2]}/{digest}"))


def _candidates(folder: Path, transcripts: Path) -> Iterator[Path]:
    beside = [path for path in folder.iterdir() if not path.is_symlink()] if folder.is_dir() else []
    for path in beside:
        if path.is_file():
            yield path
        elif path.is_dir() and "backup" in path.name.lower():
            yield from (one for one in path.rglob("*") if one.is_file() and not one.is_symlink())
    yield from transcripts.glob("*.before-repair-*")


def _holds(path: Path, session_ids: Sequence[str]) -> bool:
    if has_key_file(path):
        return True
    words = {json.dumps(one, ensure_ascii=plain) for one in session_ids for plain in (True, False)}
    if is_database(path) or path.name.endswith("-wal"):
        words = set(session_ids)
    sought = [word.encode(errors="surrogatepass") for word in words]
    longest, before = max(map(len, sought)), b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            seen = before + piece
            if any(word in seen for word in sought):
                return True
            before = seen[-longest:]
    return False
