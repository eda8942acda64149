"""A sync that fails after the commit: the message is there, and the error says that it may be."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from . import Remote, contents, store, transcript_ids


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, "StoreError"), (errno.ENOSPC, "StoreFull"), (errno.EDQUOT, "StoreFull")]
)
def test_what_is_stored_although_a_sync_failed_is_said_to_be(folder: Path, number: int, kind: str) -> None:
    """Who repeats only what can't be stored has every message once, in the database and in the transcript."""
    path = folder / "state.db"
    with Remote(path) as remote:
        remote.create_session("talk", "cli")
        remote.fail_syncs(number, [2, 3, 9, 14])
        texts = [f"m{turn}" for turn in range(20)]
        errors = []
        for text in texts:
            reply = remote.tried("append_message", "talk", "user", text)
            if reply is not None:
                errors.append(reply)
                assert reply["type"] == kind, reply
                assert reply["maybe_stored"], "a caller would repeat it, and it would be there twice"
                assert "may not survive a power failure" in reply["text"]
        assert len(errors) == 4
        assert contents(remote.get_messages("talk")) == texts
        ids = [row["id"] for row in remote.get_messages("talk")]
        assert transcript_ids(path.parent / "sessions", "talk") == Counter(ids)
        remote.kill()
    with store(path) as db:
        assert contents(db.get_messages("talk")) == texts
        assert db.check() == []
