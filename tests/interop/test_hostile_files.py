"""Imports of files that someone else made on purpose: nothing outside them is read, nothing waits, nothing stops what follows."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hermes_state import SessionDB
from tests.interop.importing import brought_in, database, sessions, told
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
    assert f"0 sessions with 0 messages imported; {len(TIMES)} sessions already here" in brought_in(file, home)
    with SessionDB(home / "state.db") as db:  # a program that uses the library may give nearly any time
        db.create_session("given", "cli")
        for at in (9e18, -9e18, 1e15, 0.0):
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
    for form in ("claude-code", "codex"):
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


def damage(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("hermes: ")]


def test_damage_without_end_is_told_in_a_few_lines(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "projects"
    folder.mkdir()
    said = {"type": "user", "uuid": "u", "parentUuid": None, "timestamp": "2026-01-01T00:00:00Z",
            "message": {"role": "user", "content": "hi"}}  # fmt: skip
    for number in range(100):
        lines = [json.dumps({**said, "sessionId": f"s{number}"}), *['{"type": torn' + "x" * n for n in range(30)]]
        (folder / f"s{number}.jsonl").write_text("\n".join(lines) + "\n")
    printed = brought_in(folder, home, status=1)
    assert "100 sessions with 100 messages imported" in printed
    assert "s0.jsonl: line 2: not JSON" in printed
    assert "… and 2,980 more problems" in printed
    assert len(damage(printed)) == 21
    (tmp_path / "own.jsonl").write_text("".join(f'{{"id": {number}, "messages": []}}\n' for number in range(5000)))
    assert damage(brought_in(tmp_path / "own.jsonl", home, status=1)) == [
        *(f"hermes: line {number}: a session without an id" for number in range(1, 21)),
        "hermes: … and 4,980 more problems",
    ]


@pytest.mark.parametrize("name", ["conversations.json", "conversations.jsonl"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["one", "lines", "indented"])
def test_an_export_of_claude_in_every_shape(tmp_path: Path, name: str, packed: bool, form: str) -> None:
    def talk(number: int) -> dict[str, Any]:
        said = {
            "uuid": f"m{number}",
            "text": f"hello {number}",
            "sender": "human",
            "created_at": "2026-01-01T00:00:00Z",
        }
        return {"uuid": f"c{number}", "name": "n", "chat_messages": [said]}

    count = 3 if form == "lines" else 1
    text = "".join(json.dumps(talk(number), indent=2 if form == "indented" else None) + "\n" for number in range(count))
    if name.endswith(".jsonl") and form == "indented":
        return  # a line is an object there
    file = tmp_path / name
    file.write_text(text)
    if packed:
        with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
            archive.write(file, name)
        file = tmp_path / "export.zip"
    assert f"{count} session{'s' * (count > 1)} with {count} message" in brought_in(file, tmp_path / "home")


def test_a_conversation_that_does_not_fit_into_memory_costs_that_conversation() -> None:
    import io

    from hermes.interop import json_reading

    fillings = (b"x" * 1000, b'\\"' * 500, b'", "' + b"k" * 1000 + b'": "', b"\\\\" * 500)
    for filling in fillings:
        for extra in range(2):  # chunks end before and after a backslash
            data = b'[{"a": 1}, {"b": "' + b"y" * extra + filling * 5000 + b'"}, {"c": 3}]'
            values = [value for value, _ in json_reading.elements(io.BytesIO(data), 2 << 20)]
            assert values[0] == {"a": 1} and values[2] == {"c": 3}
            assert values[1] == json_reading.Damaged("a conversation longer than 2 MB")


def test_a_damaged_database_or_compressed_file_costs_itself(tmp_path: Path) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    about = {"id": "", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"}
    for number, name in enumerate(("cut", "flipped", "whole")):
        records = [{"type": "session_meta", "payload": {**about, "id": f"{number:08}-1111-4111-8111-111111111111"}}]
        records += [{"type": "response_item", "timestamp": "2026-01-01T00:00:00Z", "payload": {"type": "message",
                     "role": "user", "content": [{"type": "input_text", "text": f"hello {at} {os.urandom(300).hex()}"}]}}
                    for at in range(1000)]  # fmt: skip
        packed = zstandard.compress("".join(json.dumps(one) + "\n" for one in records).encode())
        half = len(packed) // 2
        if name == "flipped":
            packed = packed[:half] + bytes(byte ^ 0x5A for byte in packed[half : half + 40]) + packed[half + 40 :]
        (folder / f"rollout-{name}.jsonl.zst").write_bytes(packed[:half] if name == "cut" else packed)
    log = folder / "logs.db"
    database(
        log,
        ("CREATE TABLE conversations(id TEXT, name TEXT, model TEXT)", []),
        ("CREATE TABLE responses(id TEXT, model TEXT, prompt TEXT, response TEXT, conversation_id TEXT, datetime_utc TEXT)", []),
        ("INSERT INTO conversations VALUES(?, 'n', 'm')", [(f"c{n}",) for n in range(100)]),
        ("INSERT INTO responses VALUES(?, 'm', ?, 'yes', ?, '2026-01-01T00:00:00')",
         [(f"r{n}", os.urandom(500).hex(), f"c{n % 100}") for n in range(500)]),
    )  # fmt: skip
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2 : len(raw) * 3 // 4] = os.urandom(len(raw) * 3 // 4 - len(raw) // 2)
    log.write_bytes(raw)
    printed = brought_in(folder, home, status=1)
    assert "the compressed data end too early" in printed and "logs.db: database disk image is malformed" in printed
    found = sessions(home)
    assert len(found["codex-00000002-1111-4111-8111-111111111111"]["messages"]) == 1000
    assert 100 < len(found["codex-00000000-1111-4111-8111-111111111111"]["messages"]) < 1000
    watched = program.run("sessions", "watch", folder, "--once", home=tmp_path / "other")
    assert watched.status == 0 and "too early" in watched.err and "malformed" in watched.err, watched
    assert len(sessions(tmp_path / "other")["codex-00000002-1111-4111-8111-111111111111"]["messages"]) == 1000


def test_a_damaged_conversation_or_member_costs_itself_and_one_line_a_cause(tmp_path: Path) -> None:
    file, home = tmp_path / "all.zip", tmp_path / "home"
    bad = '{"mapping": {"a": nul}, "id": "bad"}'
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("conversations-000.json", json.dumps([conversation("crc", "MARKED")]))
        archive.writestr("conversations-001.json", f"[{bad}, {json.dumps(conversation('between', 'hello'))}, {bad}]")
        for number in range(2, 200):
            archive.writestr(f"conversations-{number:03}.json", '[{"mapping": {}, "id": "x"}, {"mapping"')
        archive.writestr("conversations-200.json", json.dumps([conversation("last", "hello")]))
    file.write_bytes(file.read_bytes().replace(b"MARKED", b"marked"))  # the checksum is another's now
    printed = brought_in(file, home, status=1)
    assert {"chatgpt-between", "chatgpt-last"} <= set(sessions(home))
    lines = damage(printed)
    assert len(lines) <= 21, printed
    assert any("conversations-000.json: Bad CRC-32" in line for line in lines)
    assert any("the file ends in the middle of a conversation" in line for line in lines)
    assert any("more problems" in line for line in lines)
