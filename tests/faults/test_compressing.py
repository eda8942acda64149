"""Several processes compress the same session at the same moment: one continuation, nothing lost."""

from __future__ import annotations

from pathlib import Path

from . import Refused, Remote, contents, store


def test_of_several_processes_that_compress_one_session_exactly_one_does(tmp_path: Path) -> None:
    path, texts = tmp_path / "state.db", [f"message {n}" for n in range(40)]
    with store(path) as db:
        db.create_session("long", "cli")
        db.set_session_title("long", "the parser")
        ids = [db.append_message("long", ("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]
    remotes = {f"child-{n}": Remote(path) for n in range(4)}
    for name, remote in remotes.items():
        remote.begin("compress_session", "long", name, summary=f"by {name}", head_until=ids[1], tail_from=ids[30])
    winners, refused = [], []
    for remote in remotes.values():
        with remote:
            try:
                winners.append(remote.answer())
            except Refused as error:
                refused.append(error.kind)
    assert refused == ["InvalidInput"] * 3
    with store(path) as db:
        (winner,) = winners
        assert db.get_compression_tip("long") == winner and db.get_session_title(winner) == "the parser #2"
        assert [name for name in remotes if db.get_session(name) is not None] == [winner]
        assert contents(db.get_messages(winner)) == [*texts[:2], f"by {winner}", *texts[30:]]
        assert contents(db.get_messages("long")) == texts
        assert db.check() == []
