"""Gemini CLI: ~/.gemini/tmp/<project>/chats/session-….jsonl (a header, messages, patches), older ones one JSON object."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.formats import Found, Problem
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    Skipped,
    compact,
    count,
    dicts,
    first_objects,
    image_part,
    joined,
    json_file,
    json_lines,
    mapping,
    message,
    seconds,
    text,
    tool_call,
    without_cached,
)  # fmt: skip

SOURCE = "gemini"
_BOOKKEEPING = ("info", "error", "warning")
_WITHOUT_WORDS = ("text", "thought", "thoughtSignature", "functionCall", "functionResponse")  # calls are in `toolCalls`


def usual_places() -> list[Path]:
    """Where Gemini CLI keeps its sessions."""
    return [Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini" / "tmp"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Gemini CLI."""
    if path.suffix in (".jsonl", ""):
        return any("sessionId" in one and "projectHash" in one for one in first_objects(path, 1))
    if path.suffix != ".json":
        return False
    whole = json_file(path)
    return "sessionId" in whole and isinstance(whole.get("messages"), list)


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder, those of sub-agents included."""
    for path in sorted(folder.rglob("*.json*")):
        if "chats" in path.parts and path.suffix in (".json", ".jsonl"):
            yield path


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The session of one file."""
    skipped = Skipped(path, problems)
    header, told, rewound = _records(path, skipped)
    name = text(header.get("sessionId")) or path.stem
    made = Conversation(SOURCE, name, title=text(header.get("summary")), started_at=seconds(header.get("startTime")))
    folders = header.get("directories")
    made.cwd = folders[0] if isinstance(folders, list) and folders and isinstance(folders[0], str) else _project(path)
    if path.parent.name != "chats" and path.parent.parent.name == "chats":
        made.parent, made.kind = path.parent.name, "subagent"
    made.messages = [one for record in told for one in _messages(record, skipped)]
    made.branches = [
        (after, [one for record in branch for one in _messages(record, skipped)]) for after, branch in rewound
    ]
    session = made.session()
    if session is not None:
        yield Found(0, session, path.stat().st_size)
    skipped.report()


Records = list[dict[str, Any]]


def _records(path: Path, skipped: Skipped) -> tuple[dict[str, Any], Records, list[tuple[str | None, Records]]]:
    """The header, the messages that are shown, and those that a rewind took away with the message before them."""
    if path.suffix == ".json":
        whole = json_file(path)
        if not whole:
            skipped.damaged(1, "not a JSON object")
        return whole, dicts(whole.get("messages")), []
    header: dict[str, Any] = {}
    shown: dict[str, dict[str, Any]] = {}  # by id: a record that comes again is a newer version of the same
    rewound: list[tuple[str | None, Records]] = []
    for number, line, _ in json_lines(path, skipped):
        if "$rewindTo" in line:
            names = list(shown)
            if line["$rewindTo"] in shown:
                cut = names.index(line["$rewindTo"])
                rewound.append((names[cut - 1] if cut else None, [shown.pop(name) for name in names[cut:]]))
        elif isinstance(line.get("$set"), dict):
            patch = dict(line["$set"])
            for one in dicts(patch.pop("messages", None)):
                shown[str(one.get("id"))] = one
            header.update(patch)
        elif "sessionId" in line and "type" not in line:
            header.update(line)
        else:
            shown[str(line.get("id") or f"line-{number}")] = dict(line)
    return header, list(shown.values()), rewound


def _messages(record: dict[str, Any], skipped: Skipped) -> list[Message]:
    kind, at, name = record.get("type"), seconds(record.get("timestamp")), text(record.get("id"))
    if kind == "user":
        content = _content(record.get("content"), skipped)
        role = "system" if isinstance(content, str) and content.lstrip().startswith("<session_context>") else "user"
        return [message(role, content, at, name)] if content else []
    if kind == "gemini":
        return _reply(record, at, name, skipped)
    if kind not in _BOOKKEEPING:
        skipped.unknown[str(kind)] += 1
    return []


def _reply(record: dict[str, Any], at: float | None, name: str | None, skipped: Skipped) -> list[Message]:
    used = mapping(record.get("tokens"))
    thoughts = [
        ": ".join(filter(None, (text(one.get("subject")), text(one.get("description")))))
        for one in dicts(record.get("thoughts"))
    ]
    calls, results = [], []
    for number, call in enumerate(dicts(record.get("toolCalls"))):
        call_id = text(call.get("id")) or f"{name}-{number}"
        calls.append(tool_call(call_id, str(call.get("name") or "tool"), call.get("args")))
        if call.get("result") is not None or text(call.get("resultDisplay")):
            results.append(message("tool", _result(call), seconds(call.get("timestamp")) or at, f"{call_id}-result",
                                   tool_call_id=call_id, tool_name=text(call.get("name"))))  # fmt: skip
    reply = message(
        "assistant", _content(record.get("content"), skipped), at, name, model=text(record.get("model")),
        reasoning="\n".join(filter(None, thoughts)) or None, tool_calls=calls or None,
        input_tokens=without_cached(used.get("input"), used.get("cached")), output_tokens=count(used.get("output")),
        cache_read_tokens=count(used.get("cached")),
    )  # fmt: skip
    return [reply, *results]


def _result(call: dict[str, Any]) -> Any:
    """What a tool gave back: the output inside its function response, else as it is."""
    told = call.get("result")
    outputs = [
        mapping(mapping(part.get("functionResponse")).get("response")).get("output")
        for part in (dicts(told) or [mapping(told)])
    ]
    texts = [one for one in outputs if isinstance(one, str)]
    if texts:
        return "\n".join(texts)
    return told if isinstance(told, str) else text(call.get("resultDisplay")) or compact(told)


def _content(content: Any, skipped: Skipped) -> Any:
    """Parts as Gemini writes them: a text, a part, or a list of both."""
    parts: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            parts += [part] if part else []
        elif isinstance(part, dict):
            held = mapping(part.get("inlineData"))
            if text(part.get("text")):
                parts.append(part["text"])
            elif isinstance(held.get("data"), str):
                parts.append(image_part(held["data"], str(held.get("mimeType") or "image/png")))
            elif text(mapping(part.get("fileData")).get("fileUri")):
                parts.append(f"[file {part['fileData']['fileUri']}]")
            else:
                skipped.unknown.update(f"part {key}" for key in part if key not in _WITHOUT_WORDS)
    return joined(parts)


def _project(path: Path) -> str | None:
    """The folder of a project, which ~/.gemini/projects.json names by its slug."""
    for parent in path.parents:
        if parent.name == ".gemini" and (parent / "projects.json").is_file():
            told = json_file(parent / "projects.json")
            projects = mapping(told.get("projects")) or told
            slug = path.relative_to(parent / "tmp").parts[0] if path.is_relative_to(parent / "tmp") else ""
            return next((folder for folder, name in projects.items() if name == slug), None)
    return None
