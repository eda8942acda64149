"""GitHub Copilot CLI: ~/.copilot/session-state/<id>/events.jsonl, a line an event: `{type, data, timestamp}`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hermes.interop.histories import make
from hermes.interop.histories.conversation import Conversation, Message, continued, reads
from hermes.interop.json_reading import Reading, Record, compact, first_objects, json_lines

SOURCE = "copilot"
_SAID = ("user.message", "assistant.message")
_TOKENS = {"input_tokens": "inputTokens", "output_tokens": "outputTokens", "cache_read_tokens": "cacheReadTokens",
           "cache_write_tokens": "cacheWriteTokens"}  # fmt: skip
_BOOKKEEPING = ("session.", "assistant.", "tool.", "hook.", "subagent.", "skill.", "permission.", "abort")


def usual_places() -> list[Path]:
    """The folder in which Copilot CLI keeps its sessions."""
    return [Path(os.environ.get("COPILOT_HOME") or Path.home() / ".copilot") / "session-state"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Copilot CLI."""
    kinds = ("session.start", *_SAID)
    return any(one.get("type") in kinds and isinstance(one.get("data"), dict) for one in first_objects(path))


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder, without the notes on chats that VS Code's extension makes in the same form."""
    yield from sorted(path for path in folder.rglob("*.jsonl") if "GitHub.copilot-chat" not in path.parts)


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file and those of its sub-agents, each in as many parts as it was compacted into."""
    main = _Talk(reading)
    agents: dict[str, _Talk] = {}
    for number, line in json_lines(path, reading):
        agent = line.text("agentId")
        talk = agents.setdefault(agent, _Talk(reading)) if agent else main
        talk.take(
            str(line.get("type")),
            line.object("data"),
            line.time("timestamp"),
            line.text("id") or f"line-{number}",
        )
    first = main.conversation(path.parent.name if path.stem == "events" else path.stem)
    first.title = _workspace(path).text("name")
    for talk, made in [(main, first), *((talk, talk.conversation(agent, first)) for agent, talk in agents.items())]:
        yield from continued(made, talk.parts, talk.models)


def _workspace(path: Path) -> Record:
    """The notes that the program keeps beside the events: the name of the session."""
    import yaml

    try:
        return Record.of(yaml.safe_load(path.with_name("workspace.yaml").read_bytes()))
    except (OSError, yaml.YAMLError, ValueError):
        return Record()


class _Talk:
    """The events of one agent as messages."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.parts: list[list[Message]] = [[]]
        self.models: list[str | None] = []  # with which the parts before the last one ended
        self._about = Record()
        self._model: str | None = None
        self._prompt: str | None = None
        self._used: dict[str, Record] = {}  # of each call of the model, its tokens
        self._asked: set[str] = set()  # calls that a reply has
        self._open: list[str] = []  # calls that were begun and have no result yet

    def take(self, kind: str, data: Record, at: float | None, name: str) -> None:
        """Add what one event says."""
        if kind in ("session.start", "subagent.started"):
            self._about = self._about or data
            self._model = data.text("selectedModel") or data.text("model") or self._model
        elif kind == "session.usage_record":
            used = data.object("usage")
            self._used[str(used.get("apiCallId"))] = used
        elif kind == "session.model_change":
            self._model = data.text("newModel") or self._model
        elif kind == "session.compaction_complete" and data.text("summaryContent"):
            self.models.append(self._model)
            self.parts.append(make.summary(data["summaryContent"], at, name))
        elif kind in _SAID:
            self._say(kind.partition(".")[0], data, at, name)
        elif kind == "system.message":
            self._prompt = self._prompt or data.text("content")
        elif kind == "tool.execution_start":
            self._begin(data, at, name)
        elif kind == "tool.execution_complete":
            self._end(data, at, name)
        elif not kind.startswith(_BOOKKEEPING):
            self._reading.unknown[kind] += 1

    def _say(self, role: str, data: Record, at: float | None, name: str) -> None:
        content = data.text("content")
        if role != "assistant":
            named = [one.text("displayName") or one.text("path") for one in data.objects("attachments")]
            content = make.joined([content, *(f"[file {one}]" for one in named if one)])
            self.parts[-1] += make.spoken(role, content, at, name)
            return
        calls = []
        for number, asked in enumerate(data.objects("toolRequests")):
            call = asked.text("toolCallId") or f"{name}-{number}"
            self._asked.add(call)
            calls.append(make.tool_call(call, str(asked.get("name") or "tool"), asked.get("arguments")))
        used = self._used.get(str(data.get("apiCallId")), Record()) | data
        self.parts[-1] += make.spoken(
            "assistant", content, at, name, model=data.text("model") or self._model, calls=calls,
            thoughts=[data.text("reasoningText")], **Record(used).counts(_TOKENS, with_cached=True),
        )  # fmt: skip

    def _begin(self, data: Record, at: float | None, name: str) -> None:
        call = data.text("toolCallId") or f"{name}-call"
        self._open.append(call)
        if call in self._asked:
            return
        self._asked.add(call)
        made = make.tool_call(call, str(data.get("toolName") or "tool"), data.get("arguments"))
        make.add_call(self.parts[-1], made, at, call, model=self._model)

    def _end(self, data: Record, at: float | None, name: str) -> None:
        call = data.text("toolCallId") or (self._open[0] if self._open else None)
        if call in self._open:
            self._open.remove(call)
        result = data.get("result")
        told = Record.of(result).text("content") or data.object("error").text("message")
        output = told or (compact(result) if result else None)
        tool = None if call in self._asked else data.text("toolName")
        self.parts[-1].append(make.answer(output, at, name, call, tool, failed=data.get("success") is False))

    def conversation(self, name: str, parent: Conversation | None = None) -> Conversation:
        """The session, or the one of a sub-agent, without its messages."""
        about, context = self._about, self._about.object("context")
        made = Conversation(
            SOURCE, about.text("sessionId") or name, cwd=context.text("cwd"), model=self._model,
            started_at=about.time("startTime"), system_prompt=self._prompt,
        )  # fmt: skip
        if parent is not None:
            made.parent, made.kind, made.cwd = parent.foreign_id, "subagent", parent.cwd
            made.title = about.text("agentDescription") or about.text("agentDisplayName")
        if branch := context.text("branch"):
            made.meta["git_branch"] = branch
        return made
