"""ChatGPT's data export: a zip with conversations.json (or shards conversations-000.json …), or such a file alone.

A conversation is a tree of nodes; what is shown is the path from its root to `current_node`, other paths are versions that
were edited or generated again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import make
from hermes.interop.histories.conversation import Conversation, Message, path_to, reads
from hermes.interop.histories.exports import ExportFiles, conversation_files, export_source, read_conversations
from hermes.interop.json_reading import Reading, Record, compact, from_json, text

SOURCE = "chatgpt"
files = conversation_files
_HIDDEN = frozenset(("user_editable_context", "model_editable_context"))


def sniff(path: Path) -> bool:
    """Whether a file is an export of ChatGPT."""
    return export_source(path) == SOURCE


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversations of an export, one by one."""
    return read_conversations(path, reading, _conversation)


def _conversation(data: Record, export: ExportFiles, reading: Reading) -> Conversation | None:
    if "mapping" not in data:
        return None
    nodes = {name: Record(node) for name, node in data.object("mapping").items() if isinstance(node, dict)}
    name = data.text("conversation_id") or data.text("id") or ""
    made = Conversation(
        SOURCE,
        name or compact(data.get("create_time")),
        title=data.text("title"),
        started_at=data.time("create_time"),
        model=data.text("default_model_slug"),
    )
    if data.get("is_archived"):
        made.archived_at = data.time("update_time")
    path = _path(nodes, data.get("current_node"))
    made.messages = [message for node in path if (message := _message(nodes[node], export, reading)) is not None]
    shown = {message["platform_message_id"] for message in made.messages}
    for fork, branch in _branches(nodes, path):
        entries = [message for node in branch if (message := _message(nodes[node], export, reading)) is not None]
        if entries:
            after = next(
                (_name(nodes[node]) for node in reversed(path[: fork + 1]) if _name(nodes[node]) in shown), None
            )
            made.branches.append((after, entries))
    for messages in (made.messages, *(branch for _, branch in made.branches)):
        _join_results(messages)
    return made


def _join_results(messages: list[Message]) -> None:
    """Write beside each result the call it answers: the last one to that tool."""
    calls: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            calls[_tool(call["function"]["name"])] = call["id"]
        if message["role"] == "tool" and (call_id := calls.get(_tool(message.get("tool_name")))) is not None:
            message["tool_call_id"] = call_id


def _tool(name: str | None) -> str:
    return (name or "").partition(".")[0]  # a call to `web.run` is answered by `web`, and the other way round


def _path(nodes: dict[str, Record], leaf: Any) -> list[str]:
    """The nodes from the root to the leaf that is shown."""
    if leaf not in nodes:
        leaf = next((name for name in reversed(nodes) if not nodes[name].get("children")), None)
    return path_to(leaf, lambda name: parent if (parent := nodes[name].text("parent")) in nodes else None)


def _branches(nodes: dict[str, Record], path: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Every path that is not shown: where on the shown path it forks off, and its nodes."""
    on_path = set(path)
    for place, name in enumerate(path):
        for child in nodes[name].get("children") or ():
            if child not in on_path and child in nodes:
                yield from _below(nodes, place, child)
    for name, node in nodes.items():  # whose parent the export lacks
        if name not in on_path and node.get("parent") not in nodes:
            yield from _below(nodes, 0, name)


def _below(nodes: dict[str, Record], fork: int, child: str) -> Iterator[tuple[int, list[str]]]:
    waiting, seen = [child], set[str]()
    while waiting:
        branch: list[str] = []
        at: str | None = waiting.pop()
        while at is not None and at in nodes and at not in seen:
            seen.add(at)
            branch.append(at)
            children = [name for name in nodes[at].get("children") or () if name in nodes and name not in seen]
            waiting += children[:-1]
            at = children[-1] if children else None
        if branch:
            yield fork, branch


def _name(node: Record) -> str | None:
    return node.object("message").text("id") or node.text("id")


def _message(node: Record, export: ExportFiles, reading: Reading) -> Message | None:
    message = node.object("message")
    meta, author = message.object("metadata"), message.object("author")
    content = message.object("content")
    kind, role = content.get("content_type"), author.get("role")
    if not message or kind in _HIDDEN or (meta.get("is_visually_hidden_from_conversation") and role != "tool"):
        return None
    at = message.time("create_time")
    model = meta.text("model_slug")
    if kind in ("thoughts", "reasoning_recap"):
        thoughts = [
            ": ".join(filter(None, (one.text("summary"), one.text("content")))) for one in content.objects("thoughts")
        ]
        reasoning = "\n\n".join(filter(None, thoughts)) or content.text("content")
        return make.message("assistant", None, at, _name(node), reasoning=reasoning, model=model) if reasoning else None
    body = _with_files(_content(content, export, reading), meta, content, export)
    if body is None or role not in ("user", "assistant", "tool", "system"):
        return None
    if role == "tool":
        return make.message("tool", body, at, _name(node), tool_name=author.text("name"))
    recipient = message.text("recipient")
    if role == "assistant" and recipient not in (None, "all", "assistant"):
        return make.message(
            "assistant",
            None,
            at,
            _name(node),
            model=model,
            tool_calls=[make.tool_call(str(_name(node)), str(recipient), _arguments(content, body))],
        )
    finish = make.finish_of(meta.object("finish_details").text("type"))
    return make.message(
        role,
        body,
        at,
        _name(node),
        model=model if role == "assistant" else None,
        finish_reason=finish if role == "assistant" else None,
    )


def _arguments(content: Record, body: Any) -> Any:
    """A call's arguments: an object as it is, a program or a text as the tool's input."""
    source = content.get("text") if isinstance(content.get("text"), str) else body
    parsed = from_json(source) if isinstance(source, str) else source
    return parsed if isinstance(parsed, dict) else {"input": source}


def _with_files(body: Any, meta: Record, content: Record, export: ExportFiles) -> Any:
    """A message with the files that were uploaded with it: their bytes if the export has them, else their names."""
    parts: list[Any] = body if isinstance(body, list) else [] if body is None else [body]
    shown = compact(content.get("parts"))  # pictures are listed as files, too
    files: list[Any] = []
    for file in meta.objects("attachments"):
        name = file.text("id") or ""
        if name and name in shown:
            continue
        found = export.asset(name)
        if found is not None:
            files.append(make.image_part(base64.b64encode(found[1]).decode(), found[0]))
        files.append(f"[file {file.text('name') or name}" + ("]" if found is not None else ": not in the export]"))
    return make.joined([*parts, *files]) if files else body


def _content(content: Record, export: ExportFiles, reading: Reading) -> Any:
    kind = content.get("content_type")
    if kind in ("text", "multimodal_text"):
        parts: list[Any] = []
        for part in content.get("parts") or ():
            if isinstance(part, str):
                parts += [part] if part.strip() else []
            elif isinstance(part, dict):
                parts.append(_pointer(Record(part), export))
        return make.joined(parts)
    if kind == "code":
        return _fenced(content.get("text"), content.text("language"))
    if kind == "execution_output":
        return content.text("text")
    if kind in ("tether_quote", "tether_browsing_display"):
        return content.text("text") or content.text("result")
    if kind not in ("system_error",) and not content.text("text"):
        reading.unknown[f"content {kind}"] += 1
        return None
    return content.text("text")


def _fenced(code: Any, language: str | None) -> str | None:
    if text(code) is None:
        return None
    return f"```{'' if language in (None, 'unknown') else language}\n{code}\n```"


def _pointer(part: Record, export: ExportFiles) -> Any:
    """A picture or recording: its bytes if the export has them, else a note about it."""
    pointer = part.text("asset_pointer") or part.object("audio_asset_pointer").text("asset_pointer")
    if pointer is None:
        return part.text("text") or compact(part)
    found = export.asset(pointer.rpartition("/")[2])
    if found is None:
        return f"[{part.get('content_type') or 'attachment'} {pointer}: not in the export]"
    return make.image_part(base64.b64encode(found[1]).decode(), found[0])
