"""Rows about other programs' histories: how fast `hermes sessions import` takes them in, and what watching costs at rest.

The rival has no import of them and takes no part. Each import is a fresh process on an empty home; the index is made in it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, say
from benchmarks.table import Cell, Goal, Row, Section, at_least, at_most

SESSIONS, EACH = 250, 400  # 100,000 messages
REST_SECONDS = 20.0
_WORDS = random.Random(7).choices([f"{first}{second}" for first in "bdfgklmnprst" for second in (
    "ar", "elen", "im", "ondo", "use", "yra", "ation", "ing", "ober", "ulent")], k=20_000)  # fmt: skip


def histories(bench: Bench) -> Section:
    quick = bench.size == "XS"
    sessions = SESSIONS // 10 if quick else SESSIONS
    count = sessions * EACH
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=bench.cache.home) as folder:
        for name, make in (("Claude Code", _claude_code), ("a ChatGPT export (zip)", _chatgpt)):
            source = make(Path(folder), sessions)
            say(f"import, {name}")
            seconds, used, peak, home = _imported(Path(folder), source, count)
            rows += [
                _row(f"import {count:,} messages of {name}, with the index: messages/s", "/s", count / seconds,
                     at_least(2000, "≥ 2,000/s")),
                _row("· messages a second of processor time", "/s", count / used),
                _row("· peak memory", "MB", peak, at_most(200, "≤ 200 MB")),
            ]  # fmt: skip
            if make is _claude_code:
                say("watching at rest")
                resting = _resting(home, source)
        rows.append(
            _row(f"watching {sessions:,} files at rest: share of a core", "%", 100 * resting, at_most(1.0, "≤ 1 %"))
        )
    return Section(rows)


def long_session(bench: Bench) -> Section:
    """One session of 200 MB in one file: the memory that its import takes, and what watching reads when it grows by 1 KB."""
    megabytes = 20 if bench.size == "XS" else 200
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=bench.cache.home) as folder:
        for name, line in (("Claude Code", _claude_code_line), ("Codex CLI", _codex_line)):
            source, count = _long(Path(folder) / name.split()[0], megabytes << 20, line)
            say(f"one long session, {name}")
            seconds, _, peak, home = _imported(Path(folder), source, count)
            rows += [
                _row(f"import one session of {megabytes} MB of {name} ({count:,} messages): peak memory", "MB", peak,
                     at_most(150, "≤ 150 MB")),
                _row("· messages/s", "/s", count / seconds),
            ]  # fmt: skip
            say(f"watching it grow, {name}")
            rows.append(
                _row("· grows by 1 KB while it is watched: bytes read", "KB", _growing(home, source, line, count))
            )
    return Section(rows)


_REPEAT = 8  # a prompt, then replies with a call and their results


def _long(folder: Path, size: int, line: Callable[[int], dict[str, Any]]) -> tuple[Path, int]:
    """A file of one session of so many bytes, and how many messages it has."""
    folder.mkdir(parents=True)
    made = folder / ("rollout-2026-03-01T09-00-00-0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee.jsonl" if line is _codex_line
                     else "11111111-2222-4333-8444-555555555555.jsonl")  # fmt: skip
    number = 0
    with made.open("w") as stream:
        if line is _codex_line:
            meta = {
                "id": "0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee",
                "timestamp": "2026-03-01T09:00:00.000Z",
                "cwd": "/work",
            }
            stream.write(json.dumps({"timestamp": meta["timestamp"], "type": "session_meta", "payload": meta}) + "\n")
        while stream.tell() < size:
            stream.write(json.dumps(line(number)) + "\n")
            number += 1
    return made, number


def _moment(number: int) -> str:
    return datetime.fromtimestamp(1772355600 + number, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _output(number: int) -> str:
    return "\n".join(_text(number * 9 + at) for at in range(1 + number % 17))


def _claude_code_line(number: int) -> dict[str, Any]:
    turn = number % _REPEAT
    record: dict[str, Any] = {
        "parentUuid": f"{number - 1:08x}-0000-4000-8000-000000000000" if number else None, "isSidechain": False,
        "userType": "external", "cwd": "/work", "sessionId": "11111111-2222-4333-8444-555555555555", "version": "2.1.0",
        "gitBranch": "main", "uuid": f"{number:08x}-0000-4000-8000-000000000000", "timestamp": _moment(number),
    }  # fmt: skip
    if turn == 0:
        return record | {"type": "user", "message": {"role": "user", "content": _text(number)}}
    if turn % 2:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": _text(number)}]
        if turn < _REPEAT - 1:
            blocks.append({"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": "make"}})
        told = {"id": f"msg_{number}", "role": "assistant", "model": "claude-opus-4", "content": blocks,
                "usage": {"input_tokens": 10, "output_tokens": 70}}  # fmt: skip
        return record | {"type": "assistant", "message": told}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number - 1}", "content": _output(number)}
    return record | {"type": "user", "message": {"role": "user", "content": [result]}}


def _codex_line(number: int) -> dict[str, Any]:
    turn = number % 3
    payload: dict[str, Any] = {"type": "function_call", "call_id": f"call_{number}", "name": "shell", "arguments": "{}"}
    if turn == 0:
        payload = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _text(number)}]}
    elif turn == 2:
        payload = {"type": "function_call_output", "call_id": f"call_{number - 1}", "output": _output(number)}
    return {"timestamp": _moment(number), "type": "response_item", "payload": payload}


def _growing(home: Path, source: Path, line: Callable[[int], dict[str, Any]], count: int) -> float:
    """Kilobytes that a watching process reads, from files and from the store, while a file grows by two lines."""
    watching = subprocess.Popen(
        _command("watch", source.parent), env=_environment(home), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        with source.open("a") as stream:
            stream.write(json.dumps(line(count)) + "\n")
        watching.stdout.readline()
        before = _bytes_read(watching.pid)
        with source.open("a") as stream:
            stream.write(json.dumps(line(count + 1)) + "\n")
        watching.stdout.readline()
        return (_bytes_read(watching.pid) - before) / 1024
    finally:
        watching.send_signal(signal.SIGTERM)
        watching.communicate()


def _bytes_read(process: int) -> int:
    told = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return int(told["rchar"])


def _row(label: str, unit: str, value: float, goal: Goal | None = None) -> Row:
    return Row(label, unit, {"ours": Cell(value)}, goal)


def _text(number: int) -> str:
    at = number * 37 % (len(_WORDS) - 80)
    return f"{' '.join(_WORDS[at : at + 70])} {number}"


def _claude_code(folder: Path, sessions: int) -> Path:
    """Session files as Claude Code writes them: questions and replies in turns."""
    made = folder / "claude-code"
    for number in range(sessions):
        name = f"{number:08x}-2222-4333-8444-555555555555"
        file = made / f"project-{number % 20}" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w") as stream:
            for at in range(EACH):
                asked = at % 2 == 0
                message: dict[str, Any] = {"role": "user", "content": _text(number * EACH + at)}
                if not asked:
                    message = {"id": f"msg_{at}", "role": "assistant", "model": "claude-opus-4",
                               "content": [{"type": "text", "text": _text(number * EACH + at)}],
                               "usage": {"input_tokens": 10, "output_tokens": 70}}  # fmt: skip
                record = {"type": "user" if asked else "assistant", "uuid": f"u{at}", "sessionId": name, "cwd": "/work",
                          "parentUuid": f"u{at - 1}" if at else None, "message": message,
                          "timestamp": f"2026-03-01T{at // 60:02}:{at % 60:02}:00.000Z"}  # fmt: skip
                stream.write(json.dumps(record) + "\n")
    return made


def _chatgpt(folder: Path, sessions: int) -> Path:
    """An export as ChatGPT sends it: one JSON file with every conversation, zipped."""
    made = folder / "chatgpt.zip"
    with (
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("conversations.json", "w", force_zip64=True) as stream,
    ):
        for number in range(sessions):
            mapping: dict[str, Any] = {}
            for at in range(EACH):
                role = "assistant" if at % 2 else "user"
                message = {"id": f"m{at}", "author": {"role": role}, "create_time": 1.7e9 + number * 1000 + at,
                           "content": {"content_type": "text", "parts": [_text(number * EACH + at)]}, "metadata": {}}  # fmt: skip
                mapping[f"m{at}"] = {"id": f"m{at}", "message": message, "parent": f"m{at - 1}" if at else None,
                                     "children": [f"m{at + 1}"] if at + 1 < EACH else []}  # fmt: skip
            one = {"id": f"c{number}", "conversation_id": f"c{number}", "title": f"Talk {number}", "create_time": 1.7e9 + number,
                   "current_node": f"m{EACH - 1}", "mapping": mapping}  # fmt: skip
            stream.write((b"[" if number == 0 else b",") + json.dumps(one).encode())
        stream.write(b"]")
    return made


def _imported(folder: Path, source: Path, count: int) -> tuple[float, float, float, Path]:
    """Seconds, processor time and peak memory (MB) of an import into an empty home."""
    home = folder / f"home-{source.stem}"
    began = time.perf_counter()
    process = subprocess.Popen(
        _command("import", source), env=_environment(home), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    told = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or f"{count:,} messages".replace(",", "") not in told.replace(",", ""):
        raise RuntimeError(f"the import failed: {told.strip()}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, home


def _resting(home: Path, source: Path) -> float:
    """Processor time of `hermes sessions watch`, once it has caught up, over the time that passed."""
    subprocess.run(_command("watch", source, "--once"), env=_environment(home), check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(_command("watch", source), env=_environment(home), stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(5)
        before, began = _processor_time(process.pid), time.monotonic()
        time.sleep(REST_SECONDS)
        return (_processor_time(process.pid) - before) / (time.monotonic() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _processor_time(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "hermes.cli.main", "sessions", *map(str, words)]


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HERMES_HOME": str(home)}
