"""GitHub Copilot CLI: ~/.copilot/session-state/<id>/events.jsonl, one event per line: `{type, data, timestamp}`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hermes.interop.histories import Conversation, make, reads
from hermes.interop.json_reading import Reading, Record, compact, first_objects, json_lines

SOURCE = "copilot"
_TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
_BOOKKEEPING = ("session.", "assistant.", "tool.", "hook.", "subagent.", "skill.", "permission.", "abort")


def usual_places() -> list[Path]:
    """The folder in which Copilot CLI keeps its sessions."""
    return [make.program_home("COPILOT_HOME", ".copilot") / "session-state"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Copilot CLI."""
    kinds = ("session.start", "user.message", "assistant.message")
    return any(event.get("type") in kinds and isinstance(event.get("data"), dict) for event in first_objects(path))


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder, without the notes on chats that VS Code's extension makes in the same form."""
    yield from sorted(path for path in folder.rglob("*.jsonl") if "GitHub.copilot-chat" not in path.parts)


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file and those of its sub-agents."""
    main = _EventReader(Conversation(SOURCE, path.parent.name if path.stem == "events" else path.stem), reading)
    main.made.title = _workspace(path).text("name")
    agents: dict[str, _EventReader] = {}
    for number, line in json_lines(path, reading):
        reader, name = main, line.text("id") or f"line-{number}"
        if agent := line.text("agentId"):
            reader = agents.get(agent) or agents.setdefault(agent, _EventReader(Conversation(SOURCE, agent), reading))
        reader.take(str(line.get("type")), line.object("data"), line.time("timestamp"), name)
    for reader in agents.values():
        made = reader.made
        made.parent, made.kind, made.cwd = main.made.foreign_id, "subagent", main.made.cwd
    for reader in (main, *agents.values()):
        yield reader.made


def _workspace(path: Path) -> Record:
    """The notes that the program keeps beside the events: the name of the session."""
    import yaml

    try:
        return Record.of(yaml.safe_load(path.with_name("workspace.yaml").read_bytes()))
    except (OSError, yaml.YAMLError, ValueError):
        return Record()


class _EventReader:
    """The events of one agent as its conversation."""

    def __init__(self, made: Conversation, reading: Reading) -> None:
        self.made, self._reading = made, reading
        self._is_begun = False
        self._used: dict[str, Record] = {}  # of each call of the model, its tokens
        self._asked: set[str] = set()  # calls that a reply has
        self._open: list[str] = []  # calls that were begun and have no result yet

    def take(self, kind: str, data: Record, at: float | None, name: str) -> None:
        """Add one event."""
        made = self.made
        if kind in ("session.start", "subagent.started"):
            self._begin_session(data)
        elif kind == "session.usage_record":
            used = data.object("usage")
            self._used[str(used.get("apiCallId"))] = used
        elif kind == "session.model_change":
            made.model = data.text("newModel") or made.model
        elif kind == "session.compaction_complete" and data.text("summaryContent"):
            made.compact(data["summaryContent"], at, name)
        elif kind == "user.message":
            named = [one.text("displayName") or one.text("path") for one in data.objects("attachments")]
            content = make.joined([data.text("content"), *(f"[file {one}]" for one in named if one)])
            made.messages += make.spoken("user", content, at, name)
        elif kind == "assistant.message":
            self._reply(data, at, name)
        elif kind == "system.message":
            made.system_prompt = made.system_prompt or data.text("content")
        elif kind == "tool.execution_start":
            self._begin_call(data, at, name)
        elif kind == "tool.execution_complete":
            self._end_call(data, at, name)
        elif not kind.startswith(_BOOKKEEPING):
            self._reading.unknown[kind] += 1

    def _begin_session(self, data: Record) -> None:
        made, context = self.made, data.object("context")
        made.model = data.text("selectedModel") or data.text("model") or made.model
        if self._is_begun:  # resumed
            return
        self._is_begun = True
        made.foreign_id = data.text("sessionId") or made.foreign_id
        made.title = made.title or data.text("agentDescription") or data.text("agentDisplayName")
        made.cwd, made.started_at = context.text("cwd"), data.time("startTime")
        made.git_branch = context.text("branch")

    def _reply(self, data: Record, at: float | None, name: str) -> None:
        made = make.Parts([data.text("content")], [data.text("reasoningText")])
        for number, requested in enumerate(data.objects("toolRequests")):
            call = requested.text("toolCallId") or f"{name}-{number}"
            self._asked.add(call)
            made.call(call, requested.get("name"), requested.get("arguments"))
        used = Record(self._used.get(str(data.get("apiCallId")), Record()) | data).counts(_TOKENS, with_cached=True)
        self.made.messages += made.messages("assistant", at, name, model=data.text("model") or self.made.model, **used)

    def _begin_call(self, data: Record, at: float | None, name: str) -> None:
        call = data.text("toolCallId") or f"{name}-call"
        self._open.append(call)
        if call not in self._asked:
            self._asked.add(call)
            requested = make.tool_call(call, data.get("toolName"), data.get("arguments"))
            make.add_call(self.made.messages, requested, at, call, model=self.made.model)

    def _end_call(self, data: Record, at: float | None, name: str) -> None:
        call = data.text("toolCallId") or (self._open[0] if self._open else None)
        if call in self._open:
            self._open.remove(call)
        result = data.get("result")
        text = Record.of(result).text("content") or data.object("error").text("message")
        tool = None if call in self._asked else data.text("toolName")
        output = text or (compact(result) if result else None)
        self.made.messages.append(make.result(output, at, name, call, tool, failed=data.get("success") is False))
