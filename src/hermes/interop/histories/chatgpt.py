"""ChatGPT's data export: a zip with conversations.json (or shards conversations-000.json …), or such a file alone.

A conversation is a tree of nodes; what is shown is the path from its root to `current_node`, other paths are versions that
were edited or generated again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
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
    made = Conversation(SOURCE, name or compact(data.get("create_time")), title=data.text("title"))
    made.started_at, made.model = data.time("create_time"), data.text("default_model_slug")
    if data.get("is_archived"):
        made.archived_at = data.time("update_time")
    order = _in_order(nodes)
    messages = {node: _messages(nodes[node], export, reading) for node in order}
    without_answer = (node for node in reversed(nodes) if not nodes[node].get("children"))
    leaf = data.text("current_node")
    made.show_tree(order, messages, leaf=leaf if leaf in nodes else next(without_answer, None))
    for shown in (made.messages, *(branch for _, branch in made.branches)):
        _join_results(shown)
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


def _in_order(nodes: dict[str, Record]) -> dict[str, str | None]:
    """The nodes, each after its parent and with its name: a mapping need not have them in order, and may lack some."""
    below: dict[str | None, list[str]] = {}
    for name, node in nodes.items():
        parent = node.text("parent")
        below.setdefault(parent if parent in nodes else None, []).append(name)
    found: dict[str, str | None] = {}
    waiting: list[tuple[str, str | None]] = [(name, None) for name in reversed(below.get(None, []))]
    while waiting:
        name, parent = waiting.pop()
        found[name] = parent
        waiting += [(child, name) for child in reversed(below.get(name, []))]
    return found | {name: nodes[name].text("parent") for name in nodes if name not in found}  # in a circle


def _name(node: Record) -> str | None:
    return node.object("message").text("id") or node.text("id")


def _messages(node: Record, export: ExportFiles, reading: Reading) -> list[Message]:
    """The message of a node, in a list; an empty list where it has none that is shown."""
    message, name = node.object("message"), _name(node)
    meta, author = message.object("metadata"), message.object("author")
    content = message.object("content")
    kind, role = content.get("content_type"), author.get("role")
    if not message or kind in _HIDDEN or (meta.get("is_visually_hidden_from_conversation") and role != "tool"):
        return []
    at, model = message.time("create_time"), meta.text("model_slug")
    if kind in ("thoughts", "reasoning_recap"):
        steps = [(one.text("summary"), one.text("content")) for one in content.objects("thoughts")]
        thoughts = [": ".join(filter(None, step)) for step in steps]
        return make.spoken("assistant", None, at, name, thoughts=thoughts or [content.text("content")], model=model)
    body = _with_files(_content(content, export, reading), meta, content, export)
    if body is None or role not in ("user", "assistant", "tool", "system"):
        return []
    if role == "tool":
        return [make.message("tool", body, at, name, tool_name=author.text("name"))]
    if role != "assistant":
        return [make.message(role, body, at, name)]
    recipient = message.text("recipient")
    if recipient not in (None, "all", "assistant"):
        calls = [make.tool_call(str(name), recipient, _arguments(content, body))]
        return make.spoken("assistant", None, at, name, calls=calls, model=model)
    finish = make.finish_of(meta.object("finish_details").text("type"))
    return [make.message(role, body, at, name, model=model, finish_reason=finish)]


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
