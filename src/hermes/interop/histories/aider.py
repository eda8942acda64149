"""aider: `.aider.chat.history.md` in each project, one file for all its sessions, in Markdown.

`# aider chat started at …` begins a session, `#### ` marks what a person wrote, `> ` what aider says itself; the rest is the
model's. aider ends such lines with two spaces, which tells them from a heading or a quotation of the model's own.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from hermes.interop.histories import Conversation, make, reads
from hermes.interop.json_reading import Reading

SOURCE = "aider"
FILES = ".aider.chat.history.md"
_START = re.compile(r"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_MODEL = re.compile(r"(?:Main )?models?: (\S+)", re.IGNORECASE)
_TOKENS = re.compile(
    r"Tokens: (\d[\d,]*\.?\d*[kM]?) sent,.*?(\d[\d,]*\.?\d*[kM]?) received\.(?: Cost: \$(\d+\.?\d*) message)?"
)
_ROLES = {"#### ": "user", "> ": "tool"}


def usual_places() -> list[Path]:
    """The file that aider writes when it is not started in a project; `sessions import FOLDER` finds those of projects."""
    return [Path(os.environ.get("AIDER_CHAT_HISTORY_FILE") or Path.home() / FILES)]


def sniff(path: Path) -> bool:
    """Whether a file is a history of aider."""
    if not path.is_file():  # a pipe would block until something is written to it
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        return any(_START.fullmatch(line) for line in stream.read(4096).splitlines())


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The sessions of one file. They have no ids: the file's path and the time of their start make one."""
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    begun: dict[str, int] = {}
    made: Conversation | None = None
    for mark, line in _marked(path.read_text(encoding="utf-8", errors="replace").split("\n")):
        if mark == "start":
            yield from _found(made)
            begun[line] = begun.get(line, 0) + 1
            name = f"{place}-{re.sub('[^0-9]', '', line)}" + (f"-{begun[line]}" if begun[line] > 1 else "")
            made = Conversation(
                SOURCE, name, cwd=str(path.resolve().parent), started_at=_time(line) or path.stat().st_mtime
            )
        elif made is not None:
            _add(made, mark, line)
    yield from _found(made)


def _time(text: str) -> float | None:
    """A time of aider's, which is the machine's own."""
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _found(made: Conversation | None) -> Iterator[Conversation]:
    """A session, if the person or the model said something in it."""
    for message in made.messages if made is not None else ():
        message["content"] = "\n".join(message["content"]).strip()
    if made is not None and any(message["role"] != "tool" for message in made.messages):
        made.messages = [message for message in made.messages if message["content"]]
        yield made


def _marked(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each line with its kind: the start of a session, or a line of the user, the model (assistant) or aider (tool)."""
    # Not so where an editor has trimmed the file.
    are_ended = any(line.startswith("#### ") and line.endswith("  ") for line in lines)
    fence, before, goes_on = "", "start", False  # an open code block, the line before, a status of several lines
    for number, line in enumerate(lines):
        begins, is_ended = _START.fullmatch(line), line.endswith("  ")
        mark = next((mark for mark in _ROLES if f"{line} ".startswith(mark)), "")
        stands_alone = "".join(lines[max(number - 1, 0) : number + 2]) == line
        if begins and (stands_alone or not fence):
            fence, before, goes_on = "", "start", False
            yield "start", begins[1]
        elif goes_on:
            goes_on = not is_ended
            yield "tool", line.rstrip()
        elif mark and (is_ended or not (are_ended or fence) or (mark == "> " and before in ("start", "tool"))):
            fence, before, goes_on = "", _ROLES[mark], are_ended and not is_ended
            yield before, line[len(mark) :].rstrip()
        else:
            if (found := _FENCE.match(line)) and (
                not fence or (found[1].startswith(fence) and line.strip() == found[1])
            ):
                fence = "" if fence else found[1]
            before = before if before == "start" and not line.strip() else "assistant"
            yield "assistant", line


def _add(made: Conversation, role: str, line: str) -> None:
    """Add a line to the message it belongs to; blank lines do not begin another one."""
    last = made.messages[-1] if made.messages else None
    if last is not None and (last["role"] == role or not line.strip()):
        last["content"].append(line)
    elif line.strip() or role != "assistant":
        tool = "aider" if role == "tool" else None
        made.messages.append(make.message(role, [line], None, f"message-{len(made.messages) + 1}", tool_name=tool))
    if role == "tool" and (found := _MODEL.match(line)):
        made.model = found[1]
    elif role == "tool" and (used := _TOKENS.match(line)):
        for reply in [reply for reply in made.messages if reply["role"] == "assistant"][-1:]:
            reply |= {"input_tokens": _number(used[1]), "output_tokens": _number(used[2])}
            reply |= {"cost_usd": float(used[3])} if used[3] else {}


def _number(text: str) -> int:
    """A number of tokens as aider rounds it: 845, 1.2k, 12k."""
    return round(float(text.rstrip("kM").replace(",", "")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1))
