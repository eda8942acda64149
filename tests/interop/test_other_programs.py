"""Back and forth in one step: `hermes -r @program` and `hermes sessions open ID --in program`."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.interop.importing import hidden, lines, sessions, told
from tests.support import program
from tests.support.screen import Screen

AT = "2026-03-01T10:00:{:02}.000Z"


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


class Person:
    """Someone with a home folder, a project in it, and a record."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.project = folder, folder / "record", folder / "work" / "parser"
        self.project.mkdir(parents=True)
        self.left_out = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME")

    def run(self, *words: str, cwd: Path | None = None, **env: str) -> program.Result:
        quiet = dict.fromkeys(self.left_out, "") | {"HOME": str(self.folder)}
        return program.run(*words, home=self.home, env=quiet | env, cwd=cwd or self.project)

    def opened(self, session: str, name: str) -> str:
        """The id under which the program resumes a session."""
        done = self.run("sessions", "open", session, "--in", name)
        assert done.status == 0 and done.out.startswith(f"cd {self.project} && "), done
        return done.out.split()[-1]

    def come_back(self) -> str:
        done = self.run("sessions", "import", "--found", "--yes")
        assert done.status == 0, done
        return done.out.splitlines()[-1]

    def shown(self, session: str = "s1") -> list[Any]:
        return [content for role, content in told(sessions(self.home)[session]) if role != "system"]


def claude(person: Person, *texts: str, cwd: Path | None = None) -> Path:
    name = str(uuid.uuid5(uuid.NAMESPACE_URL, texts[0]))
    told = [
        {"type": "user", "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, text)), "parentUuid": None, "sessionId": name,
         "cwd": str(cwd or person.project), "timestamp": AT.format(n), "message": {"role": "user", "content": text}}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    return lines(person.folder / ".claude" / "projects" / "x" / f"{name}.jsonl", told)


def codex(person: Person, *texts: str, cwd: Path | None = None) -> Path:
    name = str(uuid.uuid5(uuid.NAMESPACE_URL, texts[0]))
    told: list[Any] = [
        {"timestamp": AT.format(0), "type": "session_meta", "payload": {"id": name, "cwd": str(cwd or person.project)}}
    ]
    path = lines(person.folder / ".codex" / "sessions" / "2026" / f"rollout-2026-03-01T10-00-00-{name}.jsonl", told)
    say(path, *texts)
    return path


def say(path: Path, *texts: str) -> None:
    """The program goes on with a session: it appends to its file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("a") as stream:
        for number, text in enumerate(texts, len(records)):
            at = f"2036-03-01T10:{number:02}:00Z"
            if records[0]["type"] == "session_meta":
                item = {
                    "type": "message",
                    "id": f"m-{text}",
                    "role": "user",
                    "content": [{"type": "input_text", "text": text}],
                }
                line: dict[str, Any] = {"timestamp": at, "type": "response_item", "payload": item}
            else:
                parent = [one for one in records if one.get("uuid")][-1]["uuid"]
                line = {"type": "user", "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, text)), "parentUuid": parent, "timestamp": at,
                        "sessionId": path.stem, "message": {"role": "user", "content": text}}  # fmt: skip
            records.append(line)
            stream.write(json.dumps(line) + "\n")


def test_the_newest_session_of_the_folder_is_imported_and_continued(person: Person) -> None:
    for number, path in enumerate((
        claude(person, "older"), claude(person, "newer", "and more"), claude(person, "elsewhere", cwd=person.folder),
        codex(person, "in codex", cwd=person.project / "src"),
    )):  # fmt: skip
        os.utime(path, (time.time() + number, time.time() + number))
    done = person.run("-r", "@claude", "-q", "go on")
    assert done.status == 0, done
    (session,) = sessions(person.home)
    assert person.shown(session)[:3] == ["newer", "and more", "go on"]
    missing = person.run("-r", "@codex", "-q", "go on")
    assert missing.status == 1 and ".codex" in missing.err and str(person.project) in missing.err
    (person.project / ".git").mkdir()
    (person.project / "src").mkdir()
    assert person.run("-r", "@codex", "-q", "go on", cwd=person.project / "src").status == 0
    for name in ("@", "@nope"):
        done = person.run("-r", name, "-q", "x")
        assert done.status == 1 and "@claude, @codex, @gemini" in done.err
    assert person.run("sessions", "delete", session, "--yes").status == 0
    done = person.run("-r", "@claude", "-q", "go on")
    assert done.status == 1 and f"restore {session}" in done.err


@pytest.fixture
def s1(person: Person) -> str:
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command":"ls"}'}}
    with SessionDB(person.home / "state.db") as db:
        db.create_session("s1", "cli", model="gpt-5", system_prompt="Be brief.", cwd=str(person.project))
        db.append_message("s1", "user", "hello")
        db.append_message("s1", "assistant", "I look.", reasoning="hm", tool_calls=[call], finish_reason="tool_calls")
        db.append_message("s1", "tool", "a.py", tool_call_id="c1", tool_name="terminal")
        db.append_message("s1", "assistant", "")
        db.append_message("s1", "assistant", "A file.")
    return "s1"


def written(person: Person, name: str) -> Path:
    (path,) = [path for path in person.folder.rglob(f"*{name}.jsonl") if person.home not in path.parents]
    return path


@pytest.mark.parametrize("where", ["claude", "codex"])
def test_a_session_goes_there_and_back(person: Person, s1: str, where: str) -> None:
    name = person.opened(s1, where)
    assert person.opened(s1, where) == name
    path = written(person, name)
    assert "already here" in person.come_back() and list(sessions(person.home)) == [s1]
    say(path, "one", "two")
    assert "2 messages imported" in person.come_back()
    assert person.shown()[-3:] == ["A file.", "one", "two"]
    assert person.opened(s1, where) == name  # it has all of it
    with SessionDB(person.home / "state.db") as db:
        db.append_message(s1, "user", "said here")
    assert " 0 messages imported; 1 session already here" in person.come_back()
    before = path.read_bytes()
    second = person.opened(s1, where)
    assert second != name and path.read_bytes() == before
    say(written(person, second), "three")
    person.come_back()
    person.come_back()
    assert list(sessions(person.home)) == [s1] and not hidden(sessions(person.home)[s1])
    assert person.shown()[-5:] == ["A file.", "one", "two", "said here", "three"]
    say(path, "on the old one")
    person.come_back()
    person.come_back()
    branch = sessions(person.home)[f"{'claude-code' if where == 'claude' else where}-{name}"]
    assert (branch["parent_session_id"], branch["kind"]) == (s1, "branch") and len(sessions(person.home)) == 2
    assert person.shown(branch["id"])[-4:] == ["A file.", "one", "two", "on the old one"]
    assert person.shown()[-1] == "three"
    with SessionDB(person.home / "state.db") as db:
        assert db.check() == []


@pytest.mark.parametrize("where", ["claude", "codex"])
def test_a_session_that_came_from_there_goes_back_and_comes_again(person: Person, where: str) -> None:
    path = {"claude": claude, "codex": codex}[where](person, "first", "second")
    assert person.run("-r", f"@{where}", "-q", "said here").status == 0
    (session,) = sessions(person.home)
    begun = person.shown(session)
    name = person.opened(session, where)
    assert name not in path.name
    say(written(person, name), "third")
    for _ in range(2):
        person.come_back()
        assert list(sessions(person.home)) == [session] and person.shown(session) == [*begun, "third"]
    say(path, "in the first file")
    person.come_back()
    assert person.shown(session) == [*begun, "third", "in the first file"] and not hidden(
        sessions(person.home)[session]
    )
    assert person.run("-r", f"@{where}", "-q", "again").status == 0 and list(sessions(person.home)) == [session]


def test_a_session_of_one_program_goes_on_in_another(person: Person) -> None:
    claude(person, "first", "second")
    person.come_back()
    (session,) = sessions(person.home)
    say(written(person, person.opened(session, "codex")), "third")
    assert "1 message imported" in person.come_back()
    assert person.shown(session) == ["first", "second", "third"]
    assert "updated" not in person.come_back()  # neither file takes back what the other one says
    assert list(sessions(person.home)) == [session] and sessions(person.home)[session]["ended_at"] > 2_000_000_000


def test_a_copy_from_another_record_is_a_session_of_its_own(person: Person, s1: str, tmp_path: Path) -> None:
    path = written(person, person.opened(s1, "codex"))
    say(path, "one")
    with SessionDB(tmp_path / "other" / "state.db") as db:  # another conversation of the same name
        db.create_session(s1, "cli")
        for text in ("a", "b", "c", "d", "e"):
            db.append_message(s1, "user", text)
    done = program.run("sessions", "import", path, home=tmp_path / "other")
    assert done.status == 0, done
    brought = next(one for name, one in sessions(tmp_path / "other").items() if name != s1)
    assert [content for _, content in told(brought)] == ["hello", "I look.", "a.py", "A file.", "one"]


def test_the_command_is_run(person: Person, s1: str) -> None:
    place = person.folder / "bin"
    place.mkdir()
    done = person.run("sessions", "open", s1, "--in", "codex", "--run", PATH=str(place))
    assert done.status == 1 and "codex" in done.err
    (place / "codex").write_text('#!/bin/sh\necho "$PWD: $*"\n')
    (place / "codex").chmod(0o755)
    done = person.run("sessions", "open", s1, "--in", "codex", "--run", PATH=str(place))
    assert done.status == 0 and done.out.startswith(f"{person.project}: resume "), done


def test_in_a_chat(person: Person) -> None:
    claude(person, "first", "the second")
    quiet = dict.fromkeys(person.left_out, "") | {"HOME": str(person.folder)}
    with Screen(program.PROGRAM, env=program.environment(person.home, quiet), cwd=person.project) as screen:
        screen.wait_for("❯")
        screen.line("/resume @codex")
        screen.wait_for(".codex")
        screen.line("/resume @claude")
        screen.wait_for("● the second")


def test_what_is_compacted_there_continues_the_session_here(person: Person, s1: str) -> None:
    path = written(person, person.opened(s1, "claude"))
    say(path, "one")
    with path.open("a") as stream:
        last = {"parentUuid": None, "sessionId": path.stem, "timestamp": "2036-03-01T11:00:00Z"}
        boundary = {**last, "type": "system", "subtype": "compact_boundary", "uuid": str(uuid.uuid4())}
        summary = {**last, "type": "user", "uuid": str(uuid.uuid4()), "parentUuid": boundary["uuid"], "isCompactSummary": True,
                   "message": {"role": "user", "content": "a summary"}}  # fmt: skip
        stream.write(json.dumps(boundary) + "\n" + json.dumps(summary) + "\n")
    say(path, "after it")
    for _ in range(2):
        person.come_back()
        assert list(sessions(person.home)) == [s1, f"claude-code-{path.stem}.2"]
        assert person.shown()[-2:] == ["A file.", "one"] and person.shown(f"claude-code-{path.stem}.2") == [
            "a summary",
            "after it",
        ]
    assert person.run("-r", s1, "-q", "on the end").status == 0
    assert person.shown(f"claude-code-{path.stem}.2")[:3] == ["a summary", "after it", "on the end"]


def test_names_are_completed(person: Person) -> None:
    asked = {"_HERMES_COMPLETE": "bash_complete", "COMP_WORDS": "hermes -r @c", "COMP_CWORD": "2"}
    done = person.run(**asked)
    assert "@claude" in done.out and "@codex" in done.out and "@pi" not in done.out
