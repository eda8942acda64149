"""close() while other threads are in the middle of calls: they succeed or hear StoreClosed; no crash, no deadlock."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import Remote, assert_found, assert_kept, assert_transcripts_whole, seeded, size, store, word

THREADS = 10
ROUNDS = size(3, 40)


def test_closing_under_load_is_success_or_store_closed_and_nothing_else(folder: Path) -> None:
    dice, path = seeded("closing"), folder / "state.db"
    for _ in range(ROUNDS):
        with Remote() as remote:
            outcome = remote.close_under_load(str(path), THREADS, dice.randrange(1 << 30))
        assert outcome["wrong"] == []
        assert outcome["stuck"] == 0, "threads hang"
        kept = [tuple(one) for one in outcome["kept"]]
        assert kept, "closed before anything happened: this round proves nothing"
        with store(path) as db:
            assert_kept(db, kept)
            assert_found(db, kept[-20:])
            shown = {row["content"].split(" ")[0] for n in range(THREADS) for row in db.get_messages(f"t{n}")}
            twice = [one for one in outcome["refused"] if word(one[1], one[2]) in shown]
            assert not twice, f"refused as closed, but stored: {twice}"
            assert_transcripts_whole(db)
            assert db.check() == []


@pytest.mark.parametrize("read_only", [False, True])
def test_every_call_on_a_closed_store_is_store_closed(folder: Path, read_only: bool) -> None:
    from hermes.errors import StoreClosed

    path = folder / "state.db"
    with store(path) as db:
        db.create_session("talk", "cli")
        db.append_message("talk", "user", "hello")
    db = store(path, read_only=read_only)
    db.close()
    db.close()
    calls: dict[str, tuple[object, ...]] = dict.fromkeys(
        ("list_sessions_rich", "prune_sessions", "catch_up", "check", "repair", "vacuum", "export_all"), ()
    )
    calls |= dict.fromkeys(("get_session", "get_messages", "search_messages", "delete_session", "get_meta"), ("talk",))
    calls |= {"append_message": ("talk", "user", "x"), "create_session": ("new", "cli"), "set_meta": ("key", "value")}
    calls |= {"backup": (folder / "copy.db",), "import_database": (path,)}
    outcomes = {}
    for name, arguments in calls.items():
        try:
            outcomes[name] = repr(getattr(db, name)(*arguments))
        except Exception as error:  # compared below
            outcomes[name] = type(error).__name__
    assert outcomes == dict.fromkeys(calls, StoreClosed.__name__)
    assert not (folder / "copy.db").exists()
