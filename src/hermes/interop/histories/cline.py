"""Cline, and its forks Roo Code and Kilo Code: one folder per task, with messages in the form of the Anthropic API.

The editor's extensions write tasks/<id>/api_conversation_history.json, Cline's terminal program
~/.cline/data/sessions/<id>/<id>.messages.json. Both files are rewritten each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.histories.vscode_copilot import user_folders
from hermes.interop.json_reading import (
    Reading,
    Record,
    compact,
    first_objects,
    json_lines,
    json_object,
    seconds,
    top_keys,
)

_HISTORY, _SESSION = "api_conversation_history.json", ".messages.json"
_EXTENSIONS = {"saoudrizwan.claude-dev": "cline", "rooveterinaryinc.roo-cline": "roo", "kilocode.kilo-code": "kilo"}
_WORDS = re.compile(r"<(task|feedback|user_message|answer|user_input)(?: [^>]*)?>\s*(.*?)\s*</\1>", re.DOTALL)
_ENVIRONMENT = re.compile(r"<environment_details>.*?(?:</environment_details>|\Z)", re.DOTALL)
_ANSWERS = {"attempt_completion": "result", "plan_mode_respond": "response", "ask_followup_question": "question"}
_TOKENS = ("tokensIn", "tokensOut", "cacheReads", "cacheWrites")
_METRICS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
_METRIC_TOKENS = ("prompt", "completion", "cached")


def usual_places() -> list[Path]:
    """The places where the extensions and Cline's terminal program keep their tasks."""
    stored = [user / "globalStorage" / extension / "tasks" for user in user_folders() for extension in _EXTENSIONS]
    return [Path.home() / ".cline" / "data" / "sessions", Path.home() / ".cline" / "data" / "tasks", *stored]


def sniff(path: Path) -> bool:
    """Whether a file has the messages of a task."""
    if path.suffix != ".json" or not path.is_file():
        return False
    if _is_session(path):
        return True
    first = first_objects(path, 2)
    if not first or not all(record.get("role") in ("user", "assistant") and "content" in record for record in first):
        return False
    return path.name == _HISTORY or "<task>" in compact(first[0]["content"])


def _is_session(path: Path) -> bool:
    with path.open("rb") as stream:
        return top_keys(stream.read(4096)) >= {"messages", "sessionId", "agent"}


def files(folder: Path) -> Iterator[Path]:
    """The tasks below a folder."""
    yield from sorted(path for path in folder.rglob("*.json") if path.name.endswith((_HISTORY, _SESSION)))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The task of one file, in as many parts as it was condensed into."""
    whole = json_object(path) if _is_session(path) else Record()
    made = _session(path, whole) if whole else _task(path)
    messages = whole.objects("messages") if whole else [line for _, line in json_lines(path, reading)]
    made.keeps_lost = True
    names = set[str]()
    for number, message in enumerate(messages):  # its place is no name: a condensed task lacks messages that it had
        name = message.text("id") or (f"{message['ts']}-{message.get('role')}" if message.get("ts") else str(number))
        name = f"{name}-{number}" if name in names else name
        names.add(name)
        if message.get("isSummary"):
            made.compact(make.joined(make.block_parts(message.get("content"))), message.time("ts"), name)
        else:
            made.messages += _messages(message, name, reading)
    yield made


def _session(path: Path, whole: Record) -> Conversation:
    """A session of the terminal program; the file `<id>.json` beside it has the rest."""
    above = whole.object("origin").text("parentThreadId")
    about = json_object(path.with_name(path.name.removesuffix(_SESSION) + ".json"))
    lead = about or (json_object(path.with_name(f"{above}.json")) if above else Record())
    title, model, started_at = about.object("metadata").text("title"), about.text("model"), about.time("started_at")
    made = Conversation("cline", str(whole.get("sessionId")), title, lead.text("cwd"), model, started_at)
    made.parent, made.kind = above, "subagent" if whole.get("agent") == "subagent" else "branch"
    made.system_prompt = whole.text("system_prompt")
    return made


def _task(path: Path) -> Conversation:
    """A task of an extension: Roo Code describes it beside the messages, Cline in the list of all tasks."""
    source = next((_EXTENSIONS[part] for part in path.parts if part in _EXTENSIONS), "cline")
    name = path.parent.name if path.name == _HISTORY else path.stem
    tasks = path.parent.parent.parent / "state" / "taskHistory.json"
    listed = (one for _, one in json_lines(tasks, Reading(tasks)) if one.get("id") == name) if tasks.is_file() else ()
    about = json_object(path.with_name("history_item.json")) or next(iter(listed), Record())
    cwd = about.text("workspace") or about.text("cwdOnTaskInitialization")
    made = Conversation(source, name, about.text("task"), cwd, parent=about.text("parentTaskId"), kind="subagent")
    made.started_at = seconds(int(name)) if name.isdecimal() else None
    made.cost, made.tokens = about.number("totalCost") or None, about.counts(_TOKENS)
    return made


def _messages(message: Record, name: str, reading: Reading) -> list[Message]:
    content, at = message.get("content"), message.time("ts")
    blocks = [Record({"type": "text", "text": content})] if isinstance(content, str) else Record.all(content)
    if message.get("role") == "assistant":
        return _reply(message, blocks, at, name, reading)
    if message.get("role") != "user":
        reading.unknown[f"message {message.get('role')}"] += 1
        return []
    made = make.Parts()
    for block in blocks:
        if block.get("type") == "tool_result":
            output, failed = make.joined(make.block_parts(block.get("content"))), block.get("is_error") is True
            made.result(output, at, f"{name}-{len(made.results)}", str(block.get("tool_use_id")), failed=failed)
        else:
            parts = [_words(part) if isinstance(part, str) else part for part in make.block_parts([block])]
            made.content += filter(None, parts)
    return made.messages("user", at, name)


def _words(text: str) -> str:
    """A person's words, without the tags around them and what the program adds to each message."""
    return _WORDS.sub(r"\2", _ENVIRONMENT.sub("", text)).strip()


def _reply(message: Record, blocks: list[Record], at: float | None, name: str, reading: Reading) -> list[Message]:
    made = make.Parts()
    for block in blocks:
        kind, arguments = block.get("type"), block.object("input")
        if kind == "text":
            made.content.append(block.text("text"))
        elif kind == "thinking":
            made.thoughts.append(block.text("thinking"))
        elif kind == "tool_use":
            tool = str(block.get("name") or "tool")
            made.call(block.text("id") or f"{name}-{len(made.calls)}", tool, block.get("input"))
            made.content.append(arguments.text(_ANSWERS[tool]) if tool in _ANSWERS else None)
        else:
            reading.unknown[f"block {kind}"] += 1
    model, used = message.object("modelInfo"), message.object("metrics")
    counted: dict[str, Any] = used.object("tokens").counts(_METRIC_TOKENS, with_cached=True) | used.counts(
        _METRICS, with_cached=True
    )
    counted["cost_usd"] = used.number("cost")
    return made.messages("assistant", at, name, model=model.text("id") or model.text("modelId"), **counted)
