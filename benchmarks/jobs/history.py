"""Import another program's history with the program itself: its processor time and peak memory, with the index and without a
wait for the disk counted. The history is written before the clock runs: sessions of Claude Code of 250 messages each, a
third of them tool calls and results.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main

MESSAGES_A_SESSION = 250
_WORDS = (
    "the parser reads every line of a file and counts what it does not know before it reports them all at once".split()
)


def history(config: Config) -> dict[str, Any]:
    work = Path(config["work"])
    shutil.rmtree(work, ignore_errors=True)
    _write(work / "projects" / "-work", config["messages"])
    environment = {**os.environ, "HERMES_HOME": str(work / "home")}
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "hermes.cli.main", "sessions", "import", str(work / "projects")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(work)
    if f" with {config['messages']} messages imported" not in done.stdout.replace(",", ""):
        raise RuntimeError(f"not everything was imported: {done.stdout} {done.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": seconds,
        "processor": processor,
        "messages": config["messages"],
        "rss_mb": after.ru_maxrss / 1024,
    }


def _write(folder: Path, messages: int) -> None:
    folder.mkdir(parents=True)
    for number in range(-(-messages // MESSAGES_A_SESSION)):
        name = f"{number:08x}-2222-4333-8444-555555555555"
        count = min(MESSAGES_A_SESSION, messages - number * MESSAGES_A_SESSION)
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            parent = None
            for place in range(count):
                line = _line(name, number, place, parent)
                parent = line["uuid"]
                file.write(json.dumps(line) + "\n")


def _line(name: str, number: int, place: int, parent: str | None) -> dict[str, Any]:
    turn = place % 4  # a question, a reply with a call, the result, an answer
    uuid = f"{name}-{place}"
    said = " ".join(_WORDS[(number + place * step) % len(_WORDS)] for step in range(60)) + f" {number} {place}"
    line: dict[str, Any] = {"uuid": uuid, "parentUuid": parent, "sessionId": name, "cwd": f"/work/{number % 20}",
                            "timestamp": 1772359200 + number * 1000 + place, "isSidechain": False}  # fmt: skip
    if turn in (1, 3):
        blocks: list[dict[str, Any]] = [{"type": "text", "text": said}]
        if turn == 1:
            blocks.append({"type": "tool_use", "id": f"call-{uuid}", "name": "Bash", "input": {"command": "ls"}})
        usage = {"input_tokens": 10, "output_tokens": 60}
        return {**line, "type": "assistant", "message": {"id": uuid, "model": "m", "content": blocks, "usage": usage}}
    content: Any = said
    if turn == 2:
        content = [{"type": "tool_result", "tool_use_id": f"call-{parent}", "content": said}]
    return {**line, "type": "user", "message": {"role": "user", "content": content}}


if __name__ == "__main__":
    main(history)
