"""Rows about `hermes why`: how long it takes to name the conversation of a line, git included, in a large record.

The rival can't be asked this and takes no part. The record has 70,000 messages, every seventh of them an edit of one of 300 files
with common names; the file that is asked about has 140 lines, each with a commit of its own, and was edited most often.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, say
from benchmarks.jobs.common import percentile
from benchmarks.table import Cell, Goal, Row, Section, at_most

MESSAGES, EACH, FILES, LINES = 70_000, 350, 300, 140
ASKED = 40
_NAMES = ("index.ts", "__init__.py", "README.md", "utils.py", "main.go")
_BEGAN = 1.76e9


def why(bench: Bench) -> Section:
    from hermes.store.api.session_db import SessionDB
    from hermes.why import why as ask

    messages = MESSAGES // 10 if bench.size == "XS" else MESSAGES
    fast = at_most(100, "≤ 100 ms")
    with tempfile.TemporaryDirectory(dir=bench.cache.home) as folder:
        repository, home = Path(folder, "repository"), Path(folder, "home")
        say("why: a repository")
        _commit_lines(repository)
        say(f"why: {messages:,} messages")
        with SessionDB(home / "state.db", durability="normal", transcripts="off") as db:
            for number in range(messages // EACH):
                db.import_session(_session(number, repository))
            db.catch_up()
        file = repository / _path(0)
        say("why: questions")
        with SessionDB(home / "state.db", read_only=True) as db:
            used = _processor_time()
            lines = _timed(lambda number: ask(db, file, (1 + number % LINES, 1 + number % LINES)))
            used = (_processor_time() - used) / len(lines)
            whole = _timed(lambda number: ask(db, file, limit=20))
            found = {ask(db, file, (number, number))["matched"] for number in range(1, LINES + 1, 10)}
        if found != {"line"}:
            raise RuntimeError(f"a line was not found: {found}")
        command = [sys.executable, "-m", "hermes.cli.main", "why", f"{file}:7"]
        environment = {**os.environ, "HERMES_HOME": str(home)}
        program = _timed(lambda _: subprocess.run(command, env=environment, check=True, capture_output=True), 10)
    return Section(
        [
            _row(f"why FILE:LINE at {messages:,} messages, p50", percentile(lines, 0.5), fast),
            _row("· slowest", max(lines), fast),
            _row("· processor time of one, with git", used, fast),
            _row("why FILE, the newest 20 changes, p50", percentile(whole, 0.5), fast),
            _row("· the whole program, `hermes why FILE:LINE`, p50", percentile(program, 0.5), None),
        ]
    )


def _row(label: str, seconds: float, goal: Goal | None) -> Row:
    return Row(label, "ms", {"ours": Cell(seconds * 1e3)}, goal)


def _timed(call: Callable[[int], Any], count: int = ASKED) -> list[float]:
    taken = []
    for number in range(count):
        before = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - before)
    return taken


def _processor_time() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _path(number: int) -> str:
    return f"packages/part{number}/{_NAMES[number % len(_NAMES)]}"


def _line(number: int) -> str:
    return f"value_{number} = compute(number={number})"


def _commit_lines(repository: Path) -> None:
    """A repository whose file has a commit for each line."""
    file = repository / _path(0)
    file.parent.mkdir(parents=True)
    who = {f"GIT_{one}_{what}": "bench" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*words: str) -> None:
        environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *words], cwd=repository, env=environment, check=True, capture_output=True)

    git("init", "-q")
    for number in range(LINES):
        file.write_text("".join(_line(one) + "\n" for one in range(number + 1)))
        git("add", "-A")
        git("commit", "-qm", f"line {number}")


def _session(number: int, repository: Path) -> dict[str, Any]:
    """A conversation of questions, replies and edits, as an export."""
    messages: list[dict[str, Any]] = []
    for place in range(EACH):
        at = number * EACH + place
        message: dict[str, Any] = {
            "id": at + 1,
            "timestamp": _BEGAN + at,
            "content": f"words number {at} about the work " * 4,
        }
        if place % 7 == 1:
            which = 0 if at % 70 == 1 else at % FILES
            text = "\n".join(_line((at // 14 + one) % LINES) for one in range(5))
            given = {"file_path": str(repository / _path(which)), "old_string": "x", "new_string": text}
            call = {"id": f"c{at}", "type": "function", "function": {"name": "Edit", "arguments": json.dumps(given)}}
            message |= {"role": "assistant", "tool_calls": [call]}
        elif place % 7 == 2:
            message |= {"role": "tool", "tool_call_id": f"c{at - 1}", "content": "The file has been updated."}
        else:
            message["role"] = "user" if place % 7 in (0, 3) else "assistant"
        messages.append(message)
    return {"id": f"s{number}", "source": "claude-code", "cwd": str(repository), "started_at": _BEGAN + number * EACH,
            "messages": messages}  # fmt: skip
