"""Files that the agent sends: only those that may leave, each once, also after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.runner import Gateway
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import outbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import ForgetfulLab, LettersLab, PlainLab
from tests.support.sizes import some


@pytest.fixture(params=some([PlainLab, ForgetfulLab], 1))
def lab(request: pytest.FixtureRequest) -> Iterator[PlainLab]:
    made: PlainLab = request.param()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The owner's working folder; temporary files are elsewhere."""
    made, elsewhere = tmp_path / "work", tmp_path / "temporary"
    made.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    return made


def sending(path: Path | str, caption: str | None = None) -> str:
    more = {} if caption is None else {"caption": caption}
    return f"call=send_file {json.dumps({'path': str(path), **more})}"


def told(lab: PlainLab, words: str) -> None:
    until(lambda: any(words in text for text in lab.shown()), str(lab.shown()))


def test_a_file_comes_after_the_reply_with_the_context_of_the_event(plain: PlainLab, model: Echo, folder: Path) -> None:
    (folder / "a.pdf").write_bytes(b"%PDF-1.7 x")
    with running(plain, model) as gateway:
        plain.say(sending("a.pdf", "**the** report"), context={"token": "t"})
        until(lambda: plain.sent_files() == [("a.pdf", b"%PDF-1.7 x", "**the** report")], str(plain.shown()))
        texts = [(one["file"] or {}).get("mime") for one in plain.messages.values()]
        assert texts == [None, "application/pdf"]
        assert [one["context"] for one in plain.messages.values()] == [{"token": "t"}] * 2
        (row,) = gateway.db.list_sessions_rich(source="plain")
        assert "attachment:sha256:" in str(gateway.db.get_messages(row["id"]))  # the record has what was sent
        until(lambda: not gateway.store.read(outbox.unsent))


def test_a_caption_that_is_too_long_is_a_message_of_its_own(plain: PlainLab, model: Echo, folder: Path) -> None:
    (folder / "a.txt").write_text("x")
    with running(plain, model):
        plain.say(sending("a.txt", "long " * 60))
        until(lambda: plain.sent_files() == [("a.txt", b"x", "")])
        until(lambda: any(text.startswith("long long") for text in plain.shown()))


def test_a_restart_sends_it_once_and_so_does_a_turn_that_is_resumed(lab: PlainLab, model: Echo, folder: Path) -> None:
    (folder / "a.txt").write_text("x")
    with running(lab, model) as gateway:
        lab.fail(times=10_000)
        lab.say(sending("a.txt", "here"))
        until(lambda: len(gateway.store.read(outbox.unsent)) == 2)
    (folder / "a.txt").unlink()  # the store has it
    with lab._lock:
        lab._failures = 0
    with running(lab, model) as gateway:
        until(lambda: lab.sent_files() == [("a.txt", b"x", "here")], str(lab.messages))
        until(lambda: not gateway.store.read(outbox.unsent))
    with running(lab, model):
        lab.say("and now")
        told(lab, "echo: and now")
        assert len(lab.sent_files()) == 1


def test_the_same_file_in_answer_to_one_message_is_sent_once(plain: PlainLab, model: Echo, folder: Path) -> None:
    from hermes.gateway.events import Chat, Event, FileReference, Sender

    chat = Chat(platform="plain", chat_id="dm-alice")
    event = Event(id="e1", chat=chat, sender=Sender(user_id="u-alice", proven=True))
    with running(plain, model) as gateway:
        kept = gateway.db.keep_attachment(b"data")
        file = FileReference(kind="file", name="a.bin", mime="application/octet-stream", attachment=kept)
        post = gateway.services.outbox.post_file
        assert [post(chat, file, "", answers=event, session="s") for _ in range(3)] == [True, False, False]
        assert post(chat, file, "", answers=None, session="s")  # on the gateway's own account: each time it is asked to
        until(lambda: len(plain.sent_files()) == 2)


def test_only_files_that_may_leave_are_sent(plain: PlainLab, model: Echo, folder: Path, tmp_path: Path) -> None:
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "id_rsa").write_text("secret")
    (folder / ".env").write_text("secret")
    (folder / "empty.txt").touch()
    (folder / "large.bin").write_bytes(b"x" * 100_001)
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "key.txt").symlink_to(folder / ".ssh" / "id_rsa")
    os.mkfifo(folder / "pipe")
    refused = {
        ".env": "is hidden", "~/.ssh/id_rsa": "in a hidden folder", "key.txt": "in a hidden folder", "../outside.txt": "is not inside",
        "link.txt": "is not inside", "/etc/passwd": "is not inside", "empty.txt": "is empty", "large.bin": "larger than the 0.1 MB",
        "pipe": "no regular file", ".": "a folder", "missing.txt": "No such file",
    }  # fmt: skip
    with running(plain, model, display={"busy": "queue"}):
        for name, why in refused.items():
            before = len(plain.shown())
            plain.say(sending(name))
            until(lambda before=before: len(plain.shown()) > before and "the tool said" in plain.shown()[-1])
            assert why in plain.shown()[-1], name
            assert plain.sent_files() == []


@pytest.mark.parametrize("where", ["work", "temporary"])
def test_nothing_of_our_own_home_is_sent_wherever_it_lies(
    plain: PlainLab, model: Echo, folder: Path, tmp_path: Path, where: str
) -> None:
    home = tmp_path / where / "hermes"
    home.mkdir()
    (home / "config.yaml").write_text("token: secret")
    (folder / "link").symlink_to(home)
    with running(plain, model, home, display={"busy": "queue"}):
        for name in (
            home / "config.yaml",
            home / "state.db",
            "link/config.yaml",
            f"{folder}/../{where}/hermes/state.db-wal",
        ):
            before = len(plain.shown())
            plain.say(sending(name))
            until(lambda before=before: len(plain.shown()) > before and "the tool said" in plain.shown()[-1])
            assert "belongs to Hermes itself" in plain.shown()[-1], name
            assert plain.sent_files() == []


def test_a_home_folder_at_the_root_is_no_working_folder(tmp_path: Path) -> None:
    from hermes.errors import ToolError
    from hermes.gateway.chats.media import allowed

    (tmp_path / "a.txt").touch()
    assert allowed("a.txt", [Path("/"), tmp_path], tmp_path, tmp_path / "home") == Path(
        os.path.realpath(tmp_path / "a.txt")
    )
    for name in ("/proc/self/environ", "/etc/passwd"):
        with pytest.raises(ToolError, match="is not inside"):
            allowed(name, [Path("/"), tmp_path], Path("/"), tmp_path / "home")


def test_others_than_the_owner_get_no_file_of_the_machine(plain: PlainLab, model: Echo, folder: Path) -> None:
    (folder / "a.txt").write_text("x")
    with running(plain, model):
        plain.say(sending(folder / "a.txt"), who="bob")
        until(lambda: any("no tool" in text for text in plain.shown(who="bob")), str(plain.shown(who="bob")))
        assert plain.sent_files(who="bob") == []


def test_a_platform_without_files_has_no_such_tool(model: Echo, folder: Path) -> None:
    lab = LettersLab()
    try:
        with running(lab, model):
            lab.say("hello")
            told(lab, "echo: hello")
        offered: list[Any] = [tool["function"]["name"] for one in model.requests for tool in one.get("tools") or ()]
        assert offered and "send_file" not in offered
    finally:
        lab.close()


def until_free(gateway: Gateway, session_id: str) -> None:
    until(lambda: gateway.db.lease_holder(f"session:{session_id}") is None)


@pytest.mark.parametrize("restart", [False, True])
def test_nothing_that_waits_is_sent_after_its_conversation_was_shredded(
    lab: PlainLab, model: Echo, hermes_home: Path, folder: Path, tmp_path: Path, restart: bool
) -> None:
    (folder / "a.txt").write_text("the same bytes")
    with running(lab, model, display={"busy": "queue"}) as gateway:
        gateway.db.create_session("another", "cli")
        reference = gateway.db.keep_attachment(b"the same bytes")
        gateway.db.append_message("another", "tool", f"sent {reference}")  # the bytes stay in the store for this one
        lab.fail(times=10_000)
        lab.say(sending("a.txt", "the treasure is here"))
        until(lambda: len(gateway.store.read(outbox.unsent)) == 2)
        (row,) = gateway.db.list_sessions_rich(source=lab.platform)
        until_free(gateway, row["id"])
        if not restart:
            assert gateway.db.shred_session(row["id"])
            until(lambda: not gateway.store.read(outbox.unsent))
            with lab._lock:
                lab._failures = 0
            lab.say("and now", who="bob")
            until(lambda: any("and now" in text for text in lab.shown(who="bob")))
            lab.say("hello again")
            told(lab, "echo: hello again")
            assert len(lab.shown()) == 1 and lab.sent_files() == []
    if restart:
        with SessionDB(hermes_home / "state.db") as db:
            assert db.shred_session(row["id"])
        with lab._lock:
            lab._failures = 0
        with running(lab, model) as gateway:
            lab.say("hello again")
            told(lab, "echo: hello again")
            assert len(lab.shown()) == 1 and lab.sent_files() == []
    with SessionDB(hermes_home / "state.db") as db:
        kept = [path.read_bytes() for path in db.attachments_dir.rglob("*") if path.is_file()]
        assert kept == [b"the same bytes"]
    assert not any(b"treasure" in path.read_bytes() for path in hermes_home.glob("state.db*"))


def test_a_file_whose_conversation_was_deleted_is_not_sent_and_that_is_shown(
    plain: PlainLab, model: Echo, folder: Path
) -> None:
    (folder / "a.txt").write_text("x")
    with running(plain, model) as gateway:
        plain.fail(times=10_000)
        plain.say(sending("a.txt"))
        until(lambda: len(gateway.store.read(outbox.unsent)) == 2)
        for path in gateway.db.attachments_dir.rglob("*"):
            if path.is_file():
                path.unlink()
        with plain._lock:
            plain._failures = 0
        until(lambda: gateway.store.mail_counts().get("plain", {}).get("failed") == 1)
        until(lambda: "no longer in the store" in str(gateway.store.statuses()))
        assert plain.sent_files() == []
