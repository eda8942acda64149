"""GitHub Copilot CLI: ~/.copilot/session-state/<id>/events.jsonl, a line an event: `{type, data, timestamp}`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.formats import Found, Problem
from hermes.interop.histories.conversation import (
    FAILED,
    Conversation,
    Message,
    compact,
    continued,
    count,
    dicts,
    mapping,
    message,
    seconds,
    text,
    tool_call,
)  # fmt: skip
from hermes.interop.json_reading import Skipped, first_objects, json_lines

SOURCE = "copilot"
_SAID = ("user.message", "assistant.message", "system.message")
_BOOKKEEPING = ("session.", "assistant.", "tool.", "hook.", "subagent.", "skill.", "permission.", "abort")


def usual_places() -> list[Path]:
    """Where Copilot CLI keeps its sessions."""
    return [Path.home() / ".copilot" / "session-state"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Copilot CLI."""
    kinds = ("session.start", *_SAID)
    return any(one.get("type") in kinds and isinstance(one.get("data"), dict) for one in first_objects(path))


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder."""
    yield from sorted(path for path in folder.rglob("*.jsonl") if sniff(path))


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The session of one file, in as many parts as it was compacted into."""
    skipped = Skipped(path, problems)
    reader = _EventReader(path, skipped)
    for made in continued(reader.conversation(), reader.parts):
        if (session := made.session()) is not None:
            yield Found(0, session, reader.position)
    skipped.report()


class _EventReader:
    """The events of a file as messages."""

    def __init__(self, path: Path, skipped: Skipped) -> None:
        self._path, self._skipped = path, skipped
        self.position = 0
        self.parts: list[list[Message]] = [[]]
        self._about: dict[str, Any] = {}
        self._model: str | None = None
        self._names: dict[str, str] = {}  # of each call, its tool
        self._open: list[str] = []  # calls that were begun and have no result yet
        for number, line, self.position in json_lines(path, skipped):
            name = text(line.get("id")) or f"line-{number}"
            self._take(str(line.get("type")), mapping(line.get("data")), seconds(line.get("timestamp")), name)

    def _take(self, kind: str, data: dict[str, Any], at: float | None, name: str) -> None:
        if kind == "session.start":
            self._about = self._about or data
            self._model = text(data.get("selectedModel")) or self._model
        elif kind == "session.model_change":
            self._model = text(data.get("newModel")) or self._model
        elif kind == "session.compaction_complete" and text(data.get("summaryContent")):
            self.parts.append([message("user", data["summaryContent"], at, name, meta={"summary": True})])
        elif kind in _SAID:
            self._say(kind.partition(".")[0], data, at, name)
        elif kind == "tool.execution_start":
            self._begin(data, at, name)
        elif kind == "tool.execution_complete":
            self._end(data, at, name)
        elif not kind.startswith(_BOOKKEEPING):
            self._skipped.unknown[kind] += 1

    def _say(self, role: str, data: dict[str, Any], at: float | None, name: str) -> None:
        content = text(data.get("content"))
        if role != "assistant":
            named = [text(one.get("displayName")) or text(one.get("path")) for one in dicts(data.get("attachments"))]
            content = "\n\n".join(filter(None, (content, *(f"[file {one}]" for one in named if one)))) or None
            self.parts[-1] += [message(role, content, at, name)] if content else []
            return
        calls = []
        for number, asked in enumerate(dicts(data.get("toolRequests"))):
            call = text(asked.get("toolCallId")) or f"{name}-{number}"
            self._names[call] = str(asked.get("name") or "tool")
            calls.append(tool_call(call, self._names[call], asked.get("arguments")))
        thought = text(data.get("reasoningText"))
        if content or calls or thought:
            self.parts[-1].append(message(
                "assistant", content, at, name, model=text(data.get("model")) or self._model, reasoning=thought,
                tool_calls=calls or None, output_tokens=count(data.get("outputTokens")),
            ))  # fmt: skip

    def _begin(self, data: dict[str, Any], at: float | None, name: str) -> None:
        call = text(data.get("toolCallId")) or f"{name}-call"
        self._open.append(call)
        if call in self._names:  # the reply has it
            return
        self._names[call] = str(data.get("toolName") or "tool")
        made = tool_call(call, self._names[call], data.get("arguments"))
        last = self.parts[-1][-1] if self.parts[-1] else None
        if last is not None and last["role"] == "assistant":
            last.setdefault("tool_calls", []).append(made)
        else:
            self.parts[-1].append(message("assistant", None, at, call, model=self._model, tool_calls=[made]))

    def _end(self, data: dict[str, Any], at: float | None, name: str) -> None:
        call = text(data.get("toolCallId")) or (self._open[0] if self._open else None)
        if call in self._open:
            self._open.remove(call)
        result = data.get("result")
        told = text(mapping(result).get("content")) or text(mapping(data.get("error")).get("message"))
        output = told or (compact(result) if result else None)
        tool = self._names.get(call or "") or text(data.get("toolName"))
        self.parts[-1].append(message("tool", output, at, name, tool_call_id=call, tool_name=tool,
                                      meta=FAILED if data.get("success") is False else None))  # fmt: skip

    def conversation(self) -> Conversation:
        """The session, without its messages."""
        about, context = self._about, mapping(self._about.get("context"))
        beside = self._path.parent.name if self._path.stem == "events" else self._path.stem
        made = Conversation(
            SOURCE, text(about.get("sessionId")) or beside, cwd=text(context.get("cwd")), model=self._model,
            started_at=seconds(about.get("startTime")),
        )  # fmt: skip
        if branch := text(context.get("branch")):
            made.meta["git_branch"] = branch
        return made
