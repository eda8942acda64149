"""VS Code Copilot Chat: chatSessions/<session>.json in the editor's storage, or .jsonl, a log of changes to such an object.

A request is what a person asked; `result.metadata.toolCallRounds` has what the model said and called for it, round by round,
and `response` what the editor shows of that. The rounds are written when a request is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, first_objects, json_lines, json_object, text

SOURCE = "vscode-copilot"
_TOKENS = ("promptTokens", "outputTokens")
_MARK = "responderUsername"
_TEXTS = (None, "markdownContent", "markdownVuln")
_BOOKKEEPING = frozenset(
    "prepareToolInvocation textEditGroup undoStop codeblockUri mcpServersStarting progressMessage progressTaskSerialized"
    " progressTask confirmation elicitation elicitationSerialized command commandButton treeData extensions multiDiffData"
    " pullRequest notebookEditGroup questionCarousel references hook warning".split()
)


@dataclass(slots=True)
class _Round:
    """One reply of the model."""

    at: float | None = None
    text: str = ""
    thoughts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, Any, Any]] = field(default_factory=list)  # id, tool, arguments, result


HOSTS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")


def user_folders(*hosts: str) -> list[Path]:
    """The User folders of these editors (of all, if none is named), on Linux and on macOS."""
    config = make.program_home("XDG_CONFIG_HOME", ".config")
    bases = (config, Path.home() / "Library" / "Application Support")
    return [base / host / "User" for host in hosts or HOSTS for base in bases]


def local_path(address: Any) -> str | None:
    """The path of a file's address, which may be a text or the editor's own object; None for one on another machine."""
    if isinstance(address, dict):
        if address.get("scheme") not in (None, "file"):
            return None
        return text(address.get("fsPath")) or text(address.get("path"))
    is_here = isinstance(address, str) and address.startswith("file:///")
    return unquote(address.removeprefix("file://")) if is_here else None


def opened_folder(storage: Path) -> str | None:
    """The folder that a window was opened on, from the `workspace.json` in its part of workspaceStorage."""
    return local_path(json_object(storage / "workspace.json").get("folder"))


def usual_places() -> list[Path]:
    """The places where the editors keep their chats: those of a folder, and those of windows without one."""
    places = ("workspaceStorage", "globalStorage/emptyWindowChatSessions")
    return [user / place for user in user_folders() for place in places]


def sniff(path: Path) -> bool:
    """Whether a file is a chat of VS Code."""
    if path.suffix == ".jsonl":
        first = first_objects(path, 1)
        whole = first[0].object("v") if first and first[0].get("kind") == 0 else {}
        return isinstance(whole.get("requests"), list)
    whole = _object(path)
    return isinstance(whole.get("requests"), list) and any(
        _MARK in whole or {"message", "response"} <= one.keys() for one in Record.all(whole["requests"]) or [Record()]
    )


def files(folder: Path) -> Iterator[Path]:
    """The chats below a folder; of one that has become a log, the log alone."""
    found = sorted(path for path in folder.rglob("*.json*") if path.parent.name.lower().endswith("chatsessions"))
    yield from (path for path in found if path.suffix == ".jsonl" or path.with_suffix(".jsonl") not in found)


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The chat of one file."""
    whole, requests = _replayed(path, reading)
    name = whole.text("sessionId") or next(iter(requests), path.stem)
    made = Conversation(SOURCE, name, whole.text("customTitle"), opened_folder(path.parent.parent))
    made.started_at = whole.time("creationDate")
    shown = _requests(whole)
    for key, request in requests.items():
        messages = _messages(key, request, reading)
        if key not in shown:  # undone, or asked again
            after = made.messages[-1]["platform_message_id"] if made.messages else None
            made.branches += [(after, messages)] if messages else []
        else:
            made.messages += messages
    yield made


def _object(path: Path) -> Record:
    return json_object(path, _MARK) or json_object(path, "requests")


def _requests(whole: Record) -> dict[str, Record]:
    """The requests of a chat by their ids; one without an id has its place for one."""
    return {one.text("requestId") or f"request-{n}": one for n, one in enumerate(whole.objects("requests"))}


def _replayed(path: Path, reading: Reading) -> tuple[Record, dict[str, Record]]:
    """The chat as it is now, and every request that it has had, in order."""
    whole = Record()
    requests: dict[str, Record] = {}
    if path.suffix != ".jsonl":
        whole = _object(path)
        return whole, _requests(whole)
    for number, line in json_lines(path, reading):
        keys = line.get("k")
        if line.get("kind") == 0:
            whole = line.object("v")
        elif line.get("kind") in (1, 2, 3) and isinstance(keys, list) and keys:
            try:
                _change(whole, keys, line)
            except (LookupError, TypeError, AttributeError):
                reading.damaged(number, "changes something that is not there")
        else:
            reading.unknown[f"kind {line.get('kind')}"] += 1
        requests |= _requests(whole)
    return whole, requests


def _change(whole: Record, keys: list[Any], line: Record) -> None:
    """One line of the log: set a value (1), cut a list and append to it (2), or delete a value (3)."""
    at: Any = whole
    for key in keys[:-1]:
        at = at[key]
    if line["kind"] == 1:
        if isinstance(at, list) and keys[-1] == len(at):
            at.append(None)
        at[keys[-1]] = line.get("v")
    elif line["kind"] == 3:
        at.pop(keys[-1], None)
    else:
        target = at.setdefault(keys[-1], []) if isinstance(at, dict) else at[keys[-1]]
        if isinstance(line.get("i"), int):
            del target[line["i"] :]
        target += line.get("v") or []


def _messages(name: str, request: Record, reading: Reading) -> list[Message]:
    at, message = request.time("timestamp"), request.get("message")
    words = text(message) or Record.of(message).text("text")
    parts = [*([words] if words else []), *_attached(request.object("variableData"))]
    made = make.spoken("user", make.joined(parts), at, name)
    metadata = request.object("result").object("metadata")
    model = metadata.text("resolvedModel") or (request.text("modelId") or "").rpartition("/")[2]
    failed = request.object("result").object("errorDetails").text("message")
    found = _rounds(metadata, request.objects("response"), reading)
    rounds = [turn for turn in found if turn.text.strip() or turn.thoughts or turn.calls]
    if failed and not rounds:
        rounds = [_Round(text=failed)]
    for number, turn in enumerate(rounds):
        is_last = number == len(rounds) - 1  # what is counted is counted for the whole request
        calls = [(call or f"{name}-{number}-{nth}", *rest) for nth, (call, *rest) in enumerate(turn.calls)]
        about: dict[str, Any] = {"model": model} if model != "auto" else {}
        if is_last:
            about |= metadata.counts(_TOKENS) | ({"finish_reason": "error"} if failed else {})
        made_calls = [make.tool_call(call, tool, arguments) for call, tool, arguments, _ in calls] or None
        thought, words = "\n\n".join(turn.thoughts) or None, turn.text.strip() or None
        reply = make.message(
            "assistant", words, turn.at or at, f"{name}-{number}", reasoning=thought, tool_calls=made_calls
        )
        made.append(reply | about)
        for call, tool, _, result in calls:
            if result:
                made.append(make.result(result, turn.at or at, f"{call}-result", call, tool))
    return made


def _attached(data: Record) -> Iterator[Any]:
    """The names of files and pictures that were given to a request."""
    for variable in data.objects("variables"):
        if variable.get("kind") in ("file", "directory", "image"):
            yield f"[file {variable.text('name') or local_path(variable.get('value'))}]"


def _rounds(metadata: Record, response: list[Record], reading: Reading) -> list[_Round]:
    """The replies to a request: as the model gave them, with what only the editor shows of them."""
    shown = _shown(response, reading)
    results = metadata.object("toolCallResults")
    found = []
    for record in metadata.objects("toolCallRounds"):
        thoughts = _texts(record.object("thinking").get("text"))
        made = _Round(record.time("timestamp"), record.text("response") or "", thoughts)
        for tool_call in record.objects("toolCalls"):
            call, tool = tool_call.text("id") or "", str(tool_call.get("name") or "tool")
            made.calls.append((call, tool, tool_call.get("arguments"), _result(results.get(call))))
        found.append(made)
    if found and shown and not shown[-1].calls and (found[-1].calls or not any(record.text for record in found)):
        found.append(shown[-1])  # the last words of a request that was stopped
    return found or shown


def _shown(response: list[Record], reading: Reading) -> list[_Round]:
    """The replies as the editor shows them; words after a tool's call begin another one."""
    rounds = [_Round()]
    for part in response:
        kind, value = part.get("kind"), part.get("value")
        words = text(value) or Record.of(value).text("value") or ""
        if kind == "inlineReference":
            named = part.object("inlineReference")
            file = local_path(named.get("uri") or named) or ""
            kind, words = None, part.text("name") or file.rpartition("/")[2]
        if kind in (*_TEXTS, "thinking") and rounds[-1].calls:
            rounds.append(_Round())
        if kind in _TEXTS:
            rounds[-1].text += words
        elif kind == "thinking":
            rounds[-1].thoughts += _texts(value)
        elif kind == "toolInvocationSerialized":
            rounds[-1].calls.append(_invocation(part))
        elif str(kind) not in _BOOKKEEPING:
            reading.unknown[f"part {kind}"] += 1
    return rounds


def _texts(value: Any) -> list[str]:
    """A text, or those of a list."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str) and item.strip()]


def _invocation(part: Record) -> tuple[str, str, Any, Any]:
    message = part.get("pastTenseMessage")
    arguments, result = part.object("toolSpecificData"), text(message) or Record.of(message).text("value")
    return part.text("toolCallId") or "", str(part.get("toolId") or "tool"), arguments, result


def _result(result: Any) -> Any:
    """The result of a tool: texts, or trees of texts."""
    parts: list[Any] = []
    for part in Record.of(result).objects("content"):
        value = part.get("value")
        if words := value if isinstance(value, str) else _leaves(Record.of(value).get("node")):
            parts.append(words)
    return make.joined(parts)


def _leaves(node: Any) -> str:
    """The texts of a tree, a line break where the tree has one."""
    words, waiting = "", [node]
    while waiting:
        branch = Record.of(waiting.pop())
        words += ("\n" if branch.get("lineBreakBefore") else "") + (branch.text("text") or "")
        waiting += reversed(branch.objects("children"))
    return words
