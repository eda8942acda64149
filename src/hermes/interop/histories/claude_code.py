"""Claude Code: one JSON-lines file a session under ~/.claude/projects/<folder>/, sub-agents in a folder beside it.

Lines form a tree by `uuid` and `parentUuid`: what is shown is the path to the last message, other paths were left by a
rewind. One reply of the model is written as several lines with the same `message.id`; its usage counts once. After a
compaction the conversation goes on under a summary: here that is a session of its own, continued from the one before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.interop.formats import Export, Found, Problem
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    Skipped,
    as_uuid,
    compact,
    count,
    dicts,
    first_objects,
    image_part,
    iso,
    joined,
    json_lines,
    mapping,
    message,
    only_session,
    seconds,
    text,
    tool_call,
)  # fmt: skip
from hermes.interop.jsonl import decoded, encoded
from hermes.interop.training import data_url

if TYPE_CHECKING:
    from hermes.store.rows import ExportedSession, MessageRow

SOURCE = "claude-code"
_SPOKEN = ("user", "assistant")
_BOOKKEEPING = frozenset((
    "file-history-snapshot", "queue-operation", "progress", "mode", "permission-mode", "pr-link", "worktree-state",
    "bridge-session", "last-prompt", "agent-name", "relocated",
))  # fmt: skip


def usual_places() -> list[Path]:
    """Where Claude Code keeps its sessions."""
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    return [home / "projects"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Claude Code."""
    if path.suffix not in (".jsonl", ""):
        return False
    return any(("sessionId" in one and ("parentUuid" in one or one.get("type") in ("summary", *_BOOKKEEPING)))
               or (one.get("type") == "summary" and "leafUuid" in one) for one in first_objects(path))  # fmt: skip


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder; sub-agents come with the session that started them."""
    for path in sorted(folder.rglob("*.jsonl")):
        if path.parent.name != "subagents" and path.name != "history.jsonl":
            yield path


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """A session in as many parts as it was compacted into, and the sub-agents it started."""
    skipped = Skipped(path, problems)
    yield from _sessions(path, path.stem, None, skipped)
    for agent in sorted((path.parent / path.stem / "subagents").glob("agent-*.jsonl")):
        beside = Skipped(agent, problems)
        yield from _sessions(agent, f"{path.stem}-{agent.stem}", path.stem, beside)
        beside.report()
    skipped.report()


def _sessions(path: Path, name: str, parent: str | None, skipped: Skipped) -> Iterator[Found]:
    reader = _SessionFileReader(path, skipped, name if parent else None)
    for conversation in reader.conversations(name, parent):
        session = conversation.session()
        if session is not None:
            yield Found(0, session, reader.position)


class _SessionFileReader:
    """One file: its lines by uuid, and what it says about the session as a whole."""

    def __init__(self, path: Path, skipped: Skipped, agent: str | None) -> None:
        self.position = 0
        self._lines: dict[str, dict[str, Any]] = {}
        self._order: list[str] = []
        self._titles: dict[str, str] = {}
        self._leaf: str | None = None
        self._agent = agent
        self._cwd: str | None = None
        self._branch: str | None = None
        self._skipped = skipped
        for _, line, self.position in json_lines(path, skipped):
            self._take(dict(line))

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("type")
        if isinstance(line.get("cwd"), str) and self._cwd is None:
            self._cwd = line["cwd"]
        self._branch = text(line.get("gitBranch")) or self._branch
        if kind in _SPOKEN or kind in ("system", "attachment"):
            uuid = line.get("uuid")
            if isinstance(uuid, str) and uuid not in self._lines:
                self._lines[uuid] = line
                self._order.append(uuid)
        elif kind in ("custom-title", "ai-title", "summary"):
            title = text(line.get({"custom-title": "customTitle", "ai-title": "aiTitle"}.get(kind, "summary")))
            if title is not None:
                self._titles[kind] = title
        elif kind not in _BOOKKEEPING:
            self._skipped.unknown[str(kind)] += 1
        if kind == "relocated" and text(line.get("relocatedCwd")):
            self._cwd = line["relocatedCwd"]
        if kind == "last-prompt" and isinstance(line.get("leafUuid"), str):
            self._leaf = line["leafUuid"]

    def conversations(self, name: str, parent: str | None) -> Iterator[Conversation]:
        """The session and its continuations, oldest first."""
        shown = self._path()
        segments = self._segments(shown)
        title = self._titles.get("custom-title") or self._titles.get("ai-title") or self._titles.get("summary")
        left = self._left(shown)
        for number, part in enumerate(segments, 1):
            made = Conversation(
                SOURCE, name if number == 1 else f"{name}.{number}", cwd=self._cwd, title=title,
                parent=parent if number == 1 else name if number == 2 else f"{name}.{number - 1}",
                kind=("subagent" if number == 1 else "compression"),
            )  # fmt: skip
            if number < len(segments):
                made.end_reason = "compression"
            if self._branch:
                made.meta["git_branch"] = self._branch
            made.messages = self._messages(part)
            inside = set(part)
            for after, branch in left:
                if after in inside or (after is None and number == 1):
                    made.branches.append((self._name_of(after), self._messages(branch)))
            yield made
        if self._agent is None:
            yield from self._inline_agents(name)

    def _inline_agents(self, name: str) -> Iterator[Conversation]:
        """Sub-agents that older versions wrote into the session's own file: each tree of such lines is one."""
        roots: dict[str, str] = {}
        agents: dict[str, list[str]] = {}
        for uuid in self._order:
            if self._aside(uuid):
                parent = self._parent(uuid)
                root = roots[uuid] = roots.get(parent or "", uuid)
                agents.setdefault(root, []).append(uuid)
        for root, uuids in agents.items():
            made = Conversation(SOURCE, f"{name}-{root}", cwd=self._cwd, parent=name, kind="subagent")
            made.messages = self._messages(uuids)
            yield made

    def _parent(self, uuid: str) -> str | None:
        line = self._lines[uuid]
        parent = line.get("parentUuid") or line.get("logicalParentUuid")
        return parent if parent in self._lines and parent != uuid else None

    def _path(self) -> list[str]:
        """The messages from the first to the one the program would go on from."""
        if self._agent is None:
            spoken = [u for u in self._order if self._lines[u].get("type") in _SPOKEN and not self._aside(u)]
        else:
            spoken = [u for u in self._order if self._lines[u].get("type") in _SPOKEN]
        if not spoken:
            return []
        leaf = spoken[-1]
        path: list[str] = []
        seen: set[str] = set()
        at: str | None = leaf
        while at is not None and at not in seen:
            seen.add(at)
            path.append(at)
            at = self._parent(at)
        path.reverse()
        return self._with_siblings(path)

    def _aside(self, uuid: str) -> bool:
        return bool(self._lines[uuid].get("isSidechain"))

    def _with_siblings(self, path: list[str]) -> list[str]:
        """Results of calls made at the same time hang on different lines of one reply: all of them are shown."""
        replies = {self._reply(uuid) for uuid in path} - {None}
        extra = {
            uuid for uuid in self._order
            if self._reply(uuid) in replies or self._lines[uuid].get("sourceToolAssistantUUID") in path
        }  # fmt: skip
        extra |= {
            u
            for u in self._order
            if _is_result(self._lines[u]) and (p := self._parent(u)) and (p in extra or p in path)
        }
        wanted = extra.union(path)
        # files that lost their links (a first line was cut off): the rest of the file is shown in its order
        return [uuid for uuid in self._order if uuid in wanted]

    def _reply(self, uuid: str) -> str | None:
        line = self._lines[uuid]
        return mapping(line.get("message")).get("id") if line.get("type") == "assistant" else None

    def _segments(self, shown: list[str]) -> list[list[str]]:
        """The path cut at each compaction."""
        parts: list[list[str]] = [[]]
        for uuid in shown:
            line = self._lines[uuid]
            boundary = line.get("type") == "system" and line.get("subtype") == "compact_boundary"
            if (boundary or line.get("isCompactSummary")) and any(map(self._says, parts[-1])):
                parts.append([])
            parts[-1].append(uuid)
        return [part for part in parts if any(map(self._says, part))] or [[]]

    def _says(self, uuid: str) -> bool:
        return self._lines[uuid].get("type") in _SPOKEN

    def _left(self, shown: list[str]) -> list[tuple[str | None, list[str]]]:
        """Paths that were left by a rewind, each with the shown message after which it begins."""
        on_path = set(shown)
        groups: dict[str, tuple[str | None, list[str]]] = {}
        root_of: dict[str, str] = {}
        for uuid in self._order:
            if uuid in on_path or (self._agent is None and self._aside(uuid)):
                continue
            parent = self._parent(uuid)
            root = root_of.get(parent or "", uuid)
            root_of[uuid] = root
            if root == uuid:
                groups[root] = (parent if parent in on_path else None, [])
            groups[root][1].append(uuid)
        return [group for group in groups.values() if any(map(self._says, group[1]))]

    def _name_of(self, uuid: str | None) -> str | None:
        """The foreign id under which the message with this line is stored."""
        at = uuid
        while at is not None:
            line = self._lines[at]
            if line.get("type") in _SPOKEN:
                results = [b for b in _blocks(line) if b.get("type") == "tool_result"]
                return str(results[-1].get("tool_use_id")) if results else self._reply(at) or at
            at = self._parent(at)
        return None

    def _messages(self, uuids: list[str]) -> list[Message]:
        made: list[Message] = []
        replies: dict[str, Message] = {}
        names: dict[str, str] = {}
        for uuid in uuids:
            line = self._lines[uuid]
            kind = line.get("type")
            at = seconds(line.get("timestamp"))
            if kind == "assistant":
                self._reply_line(line, uuid, at, made, replies, names)
            elif kind == "user":
                made += self._user_line(line, uuid, at, names)
            elif kind == "attachment":
                told = mapping(line.get("attachment"))
                if told.get("type") == "queued_command" and text(told.get("prompt")):
                    made.append(message("user", told["prompt"], at, uuid))
            elif line.get("subtype") == "api_error" and text(line.get("content")):
                continue  # the line with isApiErrorMessage has the reply that failed
        return made

    def _reply_line(
        self, line: dict[str, Any], uuid: str, at: float | None, made: list[Message], replies: dict[str, Message],
        names: dict[str, str],
    ) -> None:  # fmt: skip
        told = mapping(line.get("message"))
        name = text(told.get("id")) or uuid
        texts = [b["text"] for b in _blocks(line) if b.get("type") == "text" and text(b.get("text"))]
        thought = "\n\n".join(
            b["thinking"] for b in _blocks(line) if b.get("type") == "thinking" and text(b.get("thinking"))
        )
        calls = []
        for block in _blocks(line):
            if block.get("type") in ("tool_use", "server_tool_use") and isinstance(block.get("id"), str):
                names[block["id"]] = str(block.get("name") or "tool")
                calls.append(tool_call(block["id"], names[block["id"]], block.get("input")))
        reply = replies.get(name)
        if reply is None:
            usage = mapping(told.get("usage"))
            cached, written = (
                count(usage.get("cache_read_input_tokens")),
                count(usage.get("cache_creation_input_tokens")),
            )
            fresh = count(usage.get("input_tokens"))
            reply = replies[name] = message(
                "assistant", None, at, name,
                model=text(told.get("model")) if told.get("model") != "<synthetic>" else None,
                input_tokens=fresh,
                cache_read_tokens=cached, cache_write_tokens=written,
            )  # fmt: skip
            if line.get("isApiErrorMessage"):
                reply["finish_reason"] = "error"
            made.append(reply)
        if isinstance(cost := line.get("costUSD"), (int, float)):  # older versions; each line of a reply repeats it
            reply["cost_usd"] = max(float(cost), reply.get("cost_usd") or 0.0)
        # the last line of a reply has the final count of what was written, and how it ended
        if (wrote := count(mapping(told.get("usage")).get("output_tokens"))) is not None:
            reply["output_tokens"] = max(wrote, reply.get("output_tokens") or 0)
        if text(told.get("stop_reason")) and "finish_reason" not in reply:
            reply["finish_reason"] = {"tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length"}.get(
                told["stop_reason"], told["stop_reason"]
            )
        if texts:
            reply["content"] = "\n\n".join(filter(None, (reply["content"], *texts)))
        if thought:
            reply["reasoning"] = "\n\n".join(filter(None, (reply.get("reasoning"), thought)))
        if calls:
            known = {call["id"] for call in reply.get("tool_calls", ())}
            reply["tool_calls"] = [*reply.get("tool_calls", ()), *(call for call in calls if call["id"] not in known)]

    def _user_line(self, line: dict[str, Any], uuid: str, at: float | None, names: dict[str, str]) -> list[Message]:
        content = mapping(line.get("message")).get("content")
        if isinstance(content, str):
            return [message(_role(line), content, at, uuid)] if content.strip() else []
        made: list[Message] = []
        parts: list[Any] = []
        for block in _blocks(line):
            if block.get("type") == "tool_result":
                call = str(block.get("tool_use_id"))
                made.append(
                    message(
                        "tool",
                        joined(_parts(block.get("content"))),
                        at,
                        call,
                        tool_call_id=call,
                        tool_name=names.get(call),
                    )
                )
            else:
                parts += _parts([block])
        if parts:
            made.append(message(_role(line), joined(parts), at, uuid))
        return made


def _role(line: dict[str, Any]) -> str:
    """Context that the program put in is not the person's words."""
    return "system" if line.get("isMeta") else "user"


def _blocks(line: dict[str, Any]) -> list[dict[str, Any]]:
    content = mapping(line.get("message")).get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else dicts(content)


def _is_result(line: dict[str, Any]) -> bool:
    return line.get("type") == "user" and any(block.get("type") == "tool_result" for block in _blocks(line))


def _parts(content: Any) -> list[Any]:
    """The parts of a message: texts as text, pictures as pictures, anything else as its JSON."""
    if isinstance(content, str):
        return [content] if content.strip() else []
    parts: list[Any] = []
    for block in dicts(content):
        source = mapping(block.get("source"))
        if block.get("type") == "text":
            if text(block.get("text")):
                parts.append(block["text"])
        elif block.get("type") in ("image", "document") and isinstance(source.get("data"), str):
            parts.append(image_part(source["data"], str(source.get("media_type") or "image/png")))
        elif block.get("type") not in ("thinking", "redacted_thinking", "fallback"):
            parts.append(compact(block))
    return parts


# ------------------------------------------------------------------------------------------------------- writing


def write(export: Export) -> Iterator[bytes]:
    """One session as a file that Claude Code resumes: `<folder of the project>/<session's uuid>.jsonl`."""
    for session in only_session(export, "claude-code"):
        yield from _written(session, export)


def _written(session: ExportedSession, export: Export) -> Iterator[bytes]:
    name = as_uuid(str(session["id"]).removeprefix(f"{SOURCE}-"))
    base = {
        "sessionId": name,
        "cwd": session.get("cwd") or "/",
        "version": "2.0.0",
        "isSidechain": False,
        "userType": "external",
    }
    if session.get("title"):
        yield encoded({"type": "custom-title", "customTitle": session["title"], "sessionId": name}) + b"\n"
    if session.get("rewound_messages"):
        export.left_out["hidden messages"] = len(session["rewound_messages"])
    if session.get("system_prompt"):
        export.left_out["system prompts"] += 1
    model = session.get("model") or "unknown"
    parent = None
    for one in session.get("messages") or ():
        uuid = as_uuid(str(one.get("platform_message_id") or f"{name}/{one['id']}"))
        line = {"uuid": uuid, "parentUuid": parent, "timestamp": iso(one["timestamp"]), **base}
        if one["role"] == "assistant":
            yield encoded({"type": "assistant", **line, "message": _reply(one, model, export)}) + b"\n"
        elif one["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": one.get("tool_call_id") or uuid,
                "content": _blocks_of(one, export),
            }
            yield encoded({"type": "user", **line, "message": {"role": "user", "content": [block]}}) + b"\n"
        else:
            meta = {"isMeta": True} if one["role"] == "system" else {}
            yield (
                encoded(
                    {"type": "user", **line, **meta, "message": {"role": "user", "content": _blocks_of(one, export)}}
                )
                + b"\n"
            )
        parent = uuid


def _reply(one: MessageRow, model: str, export: Export) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    if one.get("reasoning"):
        blocks.append({"type": "thinking", "thinking": one["reasoning"], "signature": ""})
    content = _blocks_of(one, export)
    blocks += [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    for call in one.get("tool_calls") or ():
        asked = mapping(call.get("function"))
        try:
            given = decoded(str(asked.get("arguments") or "{}").encode())
        except ValueError:
            given = {"arguments": asked.get("arguments")}
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": asked.get("name"), "input": given})
    cached, wrote = one.get("cache_read_tokens") or 0, one.get("cache_write_tokens") or 0
    usage = {"input_tokens": one.get("input_tokens") or 0,
             "output_tokens": one.get("output_tokens") or 0, "cache_read_input_tokens": cached,
             "cache_creation_input_tokens": wrote}  # fmt: skip
    stop = {"tool_calls": "tool_use", "length": "max_tokens"}.get(str(one.get("finish_reason")), "end_turn")
    return {"id": one.get("platform_message_id") or f"msg_{one['id']}", "type": "message", "role": "assistant",
            "model": one.get("model") or model, "content": blocks, "stop_reason": stop, "usage": usage}  # fmt: skip


def _blocks_of(one: MessageRow, export: Export) -> Any:
    content = one.get("content")
    if not isinstance(content, list):
        return content or ""
    blocks: list[dict[str, Any]] = []
    for part in content:
        url = data_url(part, export.attachments) if isinstance(part, dict) else None
        if isinstance(part, dict) and part.get("type") == "text":
            blocks.append({"type": "text", "text": part.get("text") or ""})
        elif url is not None and url.startswith("data:"):
            head, _, data = url.partition(";base64,")
            blocks.append({"type": "image", "source": {"type": "base64", "media_type": head[5:], "data": data}})
        else:
            export.left_out["attachments"] += 1
    return blocks
