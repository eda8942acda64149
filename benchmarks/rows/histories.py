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
