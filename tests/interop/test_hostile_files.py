"""Imports of files that someone else made on purpose: nothing outside them is read, nothing waits, nothing stops what follows."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.interop.importing import brought_in, sessions, told
from tests.support import program


def conversation(name: str, text: str, at: Any = 1772700000.0, **metadata: Any) -> dict[str, Any]:
    """A conversation of ChatGPT with one question and one answer."""

    def said(name: str, role: str, text: str) -> dict[str, Any]:
        content = {"content_type": "text", "parts": [text]}
        return {"id": name, "author": {"role": role}, "create_time": at, "content": content, "metadata": metadata}

    mapping = {
        "u": {"id": "u", "parent": None, "children": ["a"], "message": said("u", "user", text)},
        "a": {"id": "a", "parent": "u", "children": [], "message": said("a", "assistant", "yes")},
    }
    return {"conversation_id": name, "title": None, "create_time": at, "current_node": "a", "mapping": mapping}


def test_an_export_reads_no_file_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the dormouse's secret")
    folder = tmp_path / "downloads" / "export"
    folder.mkdir(parents=True)
    (folder / "passwords.txt").write_text("the dormouse's passwords")
    (folder / "file-link.txt").symlink_to(tmp_path / "secret.txt")
    names = [
        "../../secret", str(tmp_path / "secret"), "..", ".", "passwords", "file-link", "file-/../../../secret", "*", "\0", "..\\..\\secret",
    ]  # fmt: skip
    told_ = [conversation(f"c{n}", "look", attachments=[{"id": name, "name": "x"}]) for n, name in enumerate(names)]
    (folder / "conversations.json").write_text(json.dumps(told_))
    home = tmp_path / "home"
    brought_in(folder / "conversations.json", home)
    found = sessions(home)
    assert len(found) == len(names)
    for one in found.values():
        assert "not in the export" in str(told(one)[0][1]) and "attachment:" not in str(told(one)[0][1])
    with SessionDB(home / "state.db") as db:
        assert not db.attachments_dir.exists() or not any(one.is_file() for one in db.attachments_dir.rglob("*"))


@pytest.mark.parametrize(
    "name", ["x.jsonl", "rollout-x.jsonl", "chats/x.json", "opencode.db", "conversations.json", "x.zip"]
)
def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    (folder / "chats").mkdir(parents=True)
    os.mkfifo(folder / name)
    (folder / "conversations-000.json").write_text(json.dumps([conversation("good", "hello")]))
    assert "1 session with 2 messages imported" in brought_in(folder, tmp_path / "home")


TIMES = [
    -62135596800.0,
    -1e12,
    1e12,
    1e18,
    1e308,
    -1e308,
    "nan",
    "inf",
    "1e999",
    "0000-00-00",
    "99999-01-01",
    True,
    None,
    [],
    {},
]


def test_times_that_no_calendar_has_stop_neither_import_nor_export_nor_sync(tmp_path: Path) -> None:
    file, home, folder = tmp_path / "times.zip", tmp_path / "home", tmp_path / "folder"
    folder.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "conversations.json", json.dumps([conversation(f"t{n}", f"at {at}", at) for n, at in enumerate(TIMES)])
        )
    assert f"{len(TIMES)} sessions with {2 * len(TIMES)} messages imported" in brought_in(file, home)
    assert f"0 sessions with 0 messages imported, {len(TIMES)} sessions were here" in brought_in(file, home)
    with SessionDB(home / "state.db") as db:  # a program that uses the library may give any time
        db.create_session("given", "cli")
        for at in (1e308, -1e308, 1e300, 0.0):
            db.append_message("given", "user", f"given at {at}", timestamp=at)
    for words in (
        ("list",),
        ("show", "given"),
        ("export", tmp_path / "all.jsonl"),
        ("export", tmp_path / "all.html"),
        ("sync", folder),
    ):
        done = program.run("sessions", *words, home=home)
        assert done.status == 0, (words, done.err)
    for form in ("claude-code", "codex", "openai", "sharegpt"):
        done = program.run("sessions", "export", tmp_path / form, "--format", form, "--session-id", "given", home=home)
        assert done.status == 0, (form, done.err)
    other = tmp_path / "other"
    assert program.run("sessions", "sync", folder, home=other).status == 0
    assert {name: told(one) for name, one in sessions(other).items()} == {
        name: told(one) for name, one in sessions(home).items()
    }


def test_a_damaged_or_hostile_conversation_does_not_cost_the_others(tmp_path: Path) -> None:
    good = conversation("good", "hello")
    circle = conversation("circle", "round")
    circle["mapping"]["u"]["parent"], circle["mapping"]["a"]["children"] = "a", ["u"]
    strange: list[Any] = [
        None,
        5,
        "x",
        [],
        {},
        {"id": 5, "mapping": []},
        {"id": "y", "mapping": {"a": 5, "b": {"message": "x"}}},
    ]
    file, home = tmp_path / "all.zip", tmp_path / "home"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../../evil.txt", "outside")
        archive.writestr("/absolute.txt", "outside")
        archive.writestr("conversations-000.json", json.dumps([*strange, circle, good, good]))
        archive.writestr("conversations-001.json", "[" * 100_000)
        archive.writestr("conversations-002.json", json.dumps([conversation("later", "still here")]))
    brought_in(file, home, status=1)
    found = sessions(home)
    assert set(found) == {"chatgpt-circle", "chatgpt-good", "chatgpt-later"}
    assert [text for _, text in told(found["chatgpt-good"])] == ["hello", "yes"]
    assert not list(tmp_path.rglob("evil.txt")) and not Path("/absolute.txt").exists()


def test_a_line_that_does_not_fit_into_memory_costs_that_line(tmp_path: Path) -> None:
    def line(name: str, parent: str | None) -> bytes:
        told_ = {
            "type": "user",
            "uuid": name,
            "parentUuid": parent,
            "sessionId": "s",
            "timestamp": "2026-01-01T00:00:00Z",
        }
        return json.dumps({**told_, "message": {"role": "user", "content": f"said {name}"}}).encode() + b"\n"

    file, home = tmp_path / "s.jsonl", tmp_path / "home"
    with file.open("wb") as stream:
        stream.write(line("a", None) + b'{"x": "')
        stream.seek(140 << 20, os.SEEK_CUR)  # zeros that take no space on the disk
        stream.write(b'"}\n' + line("b", "a"))
    assert "line 2: longer than 128 MB" in brought_in(file, home, status=1)
    assert [text for _, text in told(sessions(home)["claude-code-s"])] == ["said a", "said b"]
