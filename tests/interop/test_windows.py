"""A long file is imported in pieces, and of a file that grows only what was added is read: the record is the same as of one reading."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.interop import formats
from hermes.interop.programs import HistoryWatcher
from hermes_state import SessionDB
from tests.interop import test_claude_code as claude_code
from tests.interop import test_codex as codex
from tests.interop.importing import brought_in, lines, sessions
from tests.interop.test_claude_code import NAME, replied, said
from tests.interop.test_watching import watching
from tests.support import program
from tests.support.sizes import size, some
from tests.support.waiting import until

WORDS = "a line of output of which a tool prints many before it has come to its end. " * 40


def claude_code_lines(length: int) -> Iterator[dict[str, Any]]:
    for number in range(0, length // 3500 // 2 * 2, 2):
        yield said(f"u{number}", f"u{number - 1}" if number else None, f"prompt {number}: {WORDS}", number)
        block = {"type": "text", "text": f"reply {number}: {WORDS}"}
        yield replied(f"u{number + 1}", f"u{number}", f"msg-{number}", [block], number)


def codex_lines(length: int) -> Iterator[dict[str, Any]]:
    yield {"timestamp": "2026-03-02T09:00:00Z", "type": "session_meta", "payload": {"id": codex.NAME, "cwd": "/work"}}
    yield {"timestamp": "2026-03-02T09:00:00Z", "type": "turn_context", "payload": {"model": "gpt-5"}}
    for number in range(0, length // 3500 // 2 * 2, 2):
        yield codex.message(number % 60, "user", f"prompt {number}: {WORDS}")
        yield codex.message(number % 60, "assistant", f"reply {number}: {WORDS}")


def compacted_rollout() -> list[Any]:
    """A rollout that is compacted, and goes on with another model."""
    summary = {"timestamp": "2026-03-02T09:08:00Z", "type": "compacted", "payload": {"message": "The tests are green."}}
    other = {"timestamp": "2026-03-02T09:08:00Z", "type": "turn_context", "payload": {"model": "gpt-6"}}
    later = [codex.message(number, who, f"{who} {number}") for number in range(9, 19) for who in ("user", "assistant")]
    return [*codex.rollout(), summary, *later[:10], other, *later[10:]]


LONG = {
    f"{NAME}.jsonl": (claude_code_lines, f"claude-code-{NAME}"),
    f"rollout-2026-03-02T09-00-00-{codex.NAME}.jsonl": (codex_lines, f"codex-{codex.NAME}"),
}


MEASURED = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def peak(file: Path, home: Path) -> float:
    """The peak memory (MB) of a process that imports a file. A small one starts it: a child's peak begins with its parent's."""
    command = [sys.executable, "-c", MEASURED, *program.PROGRAM, "sessions", "import", file]
    done = subprocess.run(command, env=program.environment(home), check=True, capture_output=True)
    return int(done.stdout) / 1024


@pytest.mark.parametrize("name", some(list(LONG), 1))
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    make, session = LONG[name]
    short = peak(lines(tmp_path / "short" / name, make(9 << 20)), tmp_path / "home-short")
    long = peak(lines(tmp_path / "long" / name, make(size(20, 36) << 20)), tmp_path / "home-long")
    assert long < short + size(20, 40), f"{short:.0f} MB of memory for 9 MB, {long:.0f} MB for a long one"
    with SessionDB(tmp_path / "home-long" / "state.db", read_only=True) as db:
        found = [str(one["content"]).partition(":")[0] for one in db.get_messages(session)]
        assert (row := db.get_session(session)) is not None and row["message_count"] == len(found)
    wanted = [f"{who} {number}" for number in range(0, len(found), 2) for who in ("prompt", "reply")]
    assert found == wanted and len(found) > 5000


def test_an_import_that_is_killed_is_completed_by_the_next(tmp_path: Path) -> None:
    home, records = tmp_path / "home", list(claude_code_lines(size(14, 30) << 20))
    file = lines(tmp_path / f"{NAME}.jsonl", records)
    process = program.start("sessions", "import", file, home=home)
    stored = until(lambda: count(home), unless=lambda: process.poll() is not None)
    process.kill()
    process.communicate()
    assert 0 < stored <= len(records)
    brought_in(file, home)
    (session,) = sessions(home).values()
    assert [one["platform_message_id"] for one in session["messages"]] == [
        one["message"].get("id") or one["uuid"] for one in records
    ]
    assert session["output_tokens"] == 7 * len(records) // 2 and session["api_call_count"] == len(records) // 2
    assert "0 messages" in brought_in(file, home)


def count(home: Path) -> int:
    if not (home / "state.db").exists():
        return 0
    with SessionDB(home / "state.db", read_only=True) as db:
        found = db.get_session(f"claude-code-{NAME}")
    return int(found["message_count"] or 0) if found is not None else 0


@pytest.mark.parametrize("name", some(list(LONG), 1))
def test_watching_reads_what_was_added(tmp_path: Path, name: str) -> None:
    home, folder = tmp_path / "home", tmp_path / "files"
    make, session = LONG[name]
    *records, first, second = make(size(10, 20) << 20)
    file = lines(folder / name, records)
    brought_in(file, home)
    with watching(folder, home) as process:
        for one in (first, second):
            before = bytes_read(process.pid)
            with file.open("a") as stream:
                stream.write(json.dumps(one) + "\n")
            assert process.stdout is not None and "1 message" in process.stdout.readline()
        assert bytes_read(process.pid) - before < 1_500_000
    with SessionDB(home / "state.db", read_only=True) as db:
        *_, asked, answered = db.get_messages(session)
    assert str(asked["content"]).startswith("prompt") and str(answered["content"]).startswith("reply")


def bytes_read(process: int) -> int:
    """All that a process has read, from files and from the store."""
    told = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return int(told["rchar"])


SAMPLES: dict[str, Callable[[], list[Any]]] = {
    f"projects/-work/{NAME}.jsonl": claude_code.conversation,
    f"compacted/-work/{NAME}.jsonl": lambda: claude_code.compacted("a list", "a2"),
    f"rollout-2026-03-02T09-00-00-{codex.NAME}.jsonl": codex.rollout,
    f"compacted/rollout-2026-03-02T09-00-00-{codex.NAME}.jsonl": compacted_rollout,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_that_is_read_as_it_grows_is_as_one_that_is_read_once(tmp_path: Path, name: str) -> None:
    records = SAMPLES[name]()
    whole = lines(tmp_path / "whole" / name, records)
    chosen = formats.reader_for(whole)
    assert chosen is not None
    with SessionDB(tmp_path / "home" / "state.db") as db:
        file = tmp_path / "grown" / name
        for number in range(1, len(records) + 1):
            lines(file, records[:number])
            HistoryWatcher(db, [file.parent]).catch_up([(chosen, file)])  # a new one each time, as after a restart
        assert db.check() == []
    program.run("sessions", "import", whole, home=tmp_path / "other")
    grown, once = (picture(tmp_path / home) for home in ("home", "other"))
    assert grown == once


def picture(home: Path) -> dict[str, Any]:
    """Each session of a record: its shown messages and its counters."""
    kept = ("title", "model", "input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens", "api_call_count",
            "message_count", "tool_call_count", "parent_session_id", "kind", "end_reason", "ended_at")  # fmt: skip
    said = (
        "role",
        "content",
        "tool_calls",
        "tool_name",
        "reasoning",
        "platform_message_id",
        "output_tokens",
        "session_id",
    )
    return {
        name: ({key: one.get(key) for key in kept}, [[message.get(key) for key in said] for message in one["messages"]])
        for name, one in sessions(home).items()
    }


def test_a_rewind_a_shortened_and_a_replaced_file_are_seen(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "projects" / f"{NAME}.jsonl"
    talk = [said(f"u{at}", f"u{at - 1}" if at else None, f"line {at}", at) for at in range(9)]

    def shows(records: list[Any]) -> list[Any]:
        lines(file, records)
        assert program.run("sessions", "watch", file.parent, "--once", home=home).status == 0
        return [one["content"] for one in sessions(home)[f"claude-code-{NAME}"]["messages"]]

    assert shows(talk[:4]) == [f"line {at}" for at in range(4)]
    assert shows(talk) == [f"line {at}" for at in range(9)]
    assert shows([*talk, said("v", "u1", "once more", 10)]) == ["line 0", "line 1", "once more"]
    assert shows(talk[:6]) == [f"line {at}" for at in range(6)]
    other = [{**one, "message": {"role": "user", "content": f"other {at}"}} for at, one in enumerate(talk)]
    assert shows(other) == [f"other {at}" for at in range(9)]
