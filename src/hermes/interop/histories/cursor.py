"""Cursor: conversations of the editor in `state.vscdb`, and those of its command line in ~/.cursor/projects.

The editor keeps JSON by key: `composerData:<conversation>` has the order of the messages, `bubbleId:<conversation>:<bubble>`
each message, with the tool call in it and what the tool answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes.interop.histories.claude_code_lines import ReplyGroups, blocks, messages_of
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    answer,
    changed_lines,
    compact,
    from_json,
    image_part,
    joined,
    local_path,
    opened_folder,
    reads,
    spoken,
    tagged,
    tool_call,
    user_folders,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines
from hermes.interop.records import Record, seconds, text
from hermes.store.engines.sqlite.foreign import ForeignDatabase, UnreadableDatabase, tables_of

SOURCE = "cursor"
_TABLE = "cursorDiskKV"
_OLD_CHATS = "workbench.panel.aichat.view.aichat.chatdata"
_USER = (1, "user")  # the type of a person's message, in the newer and the older form
_TOKENS = {"input_tokens": "inputTokens", "output_tokens": "outputTokens"}
_TRANSCRIPTS = "agent-transcripts"
_TIME = re.compile(r"<timestamp>\w+, (\w+ \d+, \d+, \d+:\d+ [AP]M) \(UTC([+-]\d+)?(?::(\d+))?\)</timestamp>")


def usual_places() -> list[Path]:
    """The places where Cursor keeps its conversations."""
    editor = [
        user / name for user in user_folders("Cursor") for name in ("globalStorage/state.vscdb", "workspaceStorage")
    ]
    return [*editor, Path.home() / ".cursor" / "projects"]


def sniff(path: Path) -> bool:
    """Whether a file is a database of the editor, or a transcript of the command line."""
    if path.suffix == ".jsonl":
        first = first_objects(path)
        said = [one for one in first if one.get("role") in ("user", "assistant")]
        return bool(said) and all("content" in one.object("message") and "type" not in one for one in said)
    return _TABLE in tables_of(path)


def files(folder: Path) -> Iterator[Path]:
    """The databases below a folder, then the transcripts of conversations that no database of this machine has."""
    yield from sorted(path for path in folder.rglob("state.vscdb") if path.is_file())
    found = sorted(path for path in folder.rglob("*.jsonl") if _TRANSCRIPTS in path.parts)
    in_editor = _in_editor([path.stem for path in found])
    yield from (path for path in found if path.stem not in in_editor)


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversations of a database, or the one of a transcript."""
    if path.suffix != ".jsonl":
        with ForeignDatabase(path) as database:
            yield from _Editor(path, database, reading).conversations()
    elif _in_editor([path.stem]):
        reading.unknown["transcript of a conversation that the editor's database has"] += 1
    else:
        yield _transcript(path, reading)


def _in_editor(names: list[str]) -> set[str]:
    """The conversations among these that the editor's own database has: their transcripts are poorer copies."""
    found = set[str]()
    for place in usual_places() if names else ():
        if place.is_file() and _TABLE in tables_of(place):
            with ForeignDatabase(place) as database:
                found |= {name for name in names if any(database.beginning(_TABLE, "key", f"bubbleId:{name}:"))}
    return found


class _Editor:
    """The conversations of one database."""

    def __init__(self, path: Path, database: ForeignDatabase, reading: Reading) -> None:
        self._path, self._database, self._reading = path, database, reading
        self._folders: dict[str, str] | None = None

    def conversations(self) -> Iterator[Conversation]:
        """Each conversation in which something was said."""
        heads = {
            row.get("composerId"): Record.of(from_json(row.get("value")))
            for row in self._database.rows("composerHeaders")
        }
        for row in self._database.beginning(_TABLE, "key", "composerData:"):
            if (data := self._value(row)) is not None:
                name = row["key"].partition(":")[2]
                yield self._conversation(name, Record({**heads.get(name, {}), **data}))
        for row in self._database.beginning("ItemTable", "key", _OLD_CHATS):
            for tab in Record.of(from_json(row["value"])).objects("tabs"):
                about = {
                    "name": tab.get("chatTitle"),
                    "createdAt": tab.get("lastSendTime"),
                    "conversation": tab.get("bubbles"),
                }
                yield self._conversation(str(tab.get("tabId")), Record(about))

    def _value(self, row: dict[str, Any]) -> Record | None:
        """The object of a row; None where it was emptied, or is damaged."""
        if row["value"] is None:
            return None
        value = from_json(row["value"])
        if not isinstance(value, dict):
            self._reading.damaged(0, f"{row['key']}: no JSON object")
            return None
        return Record(value)

    def _conversation(self, name: str, data: Record) -> Conversation:
        stored = {
            row["key"].rpartition(":")[2]: bubble
            for row in self._database.beginning(_TABLE, "key", f"bubbleId:{name}:")
            if (bubble := self._value(row)) is not None
        }
        inline = {
            str(one.get("bubbleId") or one.get("id") or f"{name}-{n}"): one
            for n, one in enumerate(data.objects("conversation"))
        }
        bubbles = {**inline, **stored}
        order = [str(one.get("bubbleId")) for one in data.objects("fullConversationHeadersOnly")] or list(inline)
        by_time = sorted(bubbles, key=lambda key: _time(bubbles[key]) or 0.0)
        shown = [key for key in order or by_time if key in bubbles]
        made = Conversation(
            SOURCE, name, title=data.text("name"), cwd=self._folder(name, data, bubbles),
            model=_model(data.get("modelConfig")), started_at=data.time("createdAt"),
            parent=data.object("subagentInfo").text("parentComposerId"), kind="subagent",
        )  # fmt: skip
        made.messages = [one for key in shown for one in self._messages(key, bubbles[key])]
        taken_back = [one for key in by_time if key not in shown for one in self._messages(key, bubbles[key])]
        if made.messages and taken_back:  # the editor keeps them, and shows them no longer
            made.branches.append((made.messages[-1]["platform_message_id"], taken_back))
        return made

    def _folder(self, name: str, data: Record, bubbles: dict[str, Record]) -> str | None:
        """The folder of a conversation: from itself, its messages, or the window in whose list it stands."""
        found = local_path(data.object("workspaceIdentifier").get("uri")) or opened_folder(self._path.parent)
        for bubble in bubbles.values():
            addresses = bubble.get("workspaceUris")
            first = addresses[0] if isinstance(addresses, list) and addresses else None
            found = found or bubble.text("workspaceProjectDir") or local_path(first)
        if found is None and self._folders is None:
            self._folders = dict(_listed(self._path.parent.parent / "workspaceStorage"))
        return found or (self._folders or {}).get(name)

    def _messages(self, name: str, bubble: Record) -> list[Message]:
        at, said = _time(bubble), bubble.text("text") or bubble.text("rawText")
        model = _model(bubble.get("modelInfo")) or bubble.text("modelType")
        if bubble.get("type") in _USER:
            parts = [*([said] if said else []), *_attached(bubble)]
            return spoken("user", joined(parts), at, name)
        thought = bubble.get("thinking")
        reasoning = text(thought) or Record.of(thought).text("text")
        asked = bubble.object("toolFormerData")
        calls, results = self._tool(name, asked, at) if asked.text("name") else ([], [])
        used = {name: told for name, told in bubble.object("tokenCount").counts(_TOKENS).items() if told}
        return [*spoken("assistant", said, at, name, thoughts=[reasoning], calls=calls, model=model, **used), *results]

    def _tool(self, name: str, asked: Record, at: float | None) -> tuple[list[Any], list[Message]]:
        """A bubble's tool call with its arguments, and its result where there is one yet."""
        call, tool = asked.text("toolCallId") or f"{name}-call", str(asked["name"])
        arguments = from_json(asked.get("rawArgs")) or from_json(asked.get("params"), asked.get("params"))
        result = asked.get("result")
        if isinstance(arguments, dict):
            arguments = {**arguments, **self._changed_lines(Record.of(from_json(result)))}
        told = text(result) or asked.text("error") or (compact(result) if result else None)
        is_error = asked.get("status") in ("error", "cancelled", "rejected")
        answered = [answer(told, at, f"{name}-result", call, tool, failed=is_error)] if told else []
        return [tool_call(call, tool, arguments)], answered

    def _changed_lines(self, result: Record) -> dict[str, str]:
        """The lines that an edit changed: its call names the file alone, and its result the file's text before and after."""
        texts = []
        for key in ("beforeContentId", "afterContentId"):
            name = text(result.get(key))
            found = next(self._database.beginning(_TABLE, "key", name), {}) if name else {}
            value = found.get("value")
            texts.append(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        before, after = texts
        return changed_lines(before or "", after) if isinstance(after, str) else {}


def _time(bubble: Record) -> float | None:
    timing = bubble.object("timingInfo").get("clientEndTime")
    return bubble.time("createdAt") or bubble.time("timestamp") or seconds(timing)


def _model(about: Any) -> str | None:
    name = Record.of(about).text("modelName")
    return None if name == "default" else name  # which one that was is written nowhere


def _attached(bubble: Record) -> Iterator[Any]:
    """Pictures in a message, and the names of files that were given to it."""
    context = bubble.object("context")
    for one in (
        *bubble.objects("images"),
        *context.objects("selectedImages"),
        *context.objects("fileSelections"),
    ):
        path = one.text("path") or local_path(one.get("uri"))
        if one.text("data"):
            yield image_part(one["data"].rpartition(",")[2], str(one.get("mimeType") or "image/png"))
        elif path:
            yield f"[file {path}]"


def _listed(storages: Path) -> Iterator[tuple[str, str]]:
    """The conversations in the list of each window, and the folder it was opened on."""
    for path in sorted(storages.glob("*/state.vscdb")):
        folder = opened_folder(path.parent)
        try:
            with ForeignDatabase(path) as database:
                for row in database.beginning("ItemTable", "key", "composer.composerData") if folder else ():
                    listed = Record.of(from_json(row["value"])).objects("allComposers")
                    yield from ((str(one.get("composerId")), folder) for one in listed if folder)
        except UnreadableDatabase:
            continue


def _transcript(path: Path, reading: Reading) -> Conversation:
    """A conversation of the command line. Questions may have their time; without one, that of the file stands for all."""
    made = Conversation(SOURCE, path.stem, started_at=path.stat().st_mtime)
    if path.parent.name == "subagents":
        made.parent, made.kind = path.parent.parent.name, "subagent"
    lines: dict[str, Record] = {}
    calls = ReplyGroups()  # these lines have Claude Code's content, and calls without an id
    for number, told in json_lines(path, reading):
        if told.get("role") in ("user", "assistant"):
            line = _line(told, told["role"] == "user")
            lines[f"line-{number}"] = line
            calls.take(f"line-{number}", line, line, None, {})
        elif told.get("type") != "turn_ended":
            reading.unknown[str(told.get("type"))] += 1
    made.messages = messages_of(lines, list(lines), {})
    return made


def _line(told: Record, is_user: bool) -> Record:
    """A line as Claude Code has it: a person's words without what Cursor puts around them, and the time that stands there."""
    said, at = [], None
    for block in blocks(told):
        if words := block.text("text"):
            at = at or (_written(words) if is_user else None)
            shown = words.rstrip().removesuffix("[REDACTED]").rstrip()  # stands in the place of a thought
            block = Record({**block, "text": tagged(words, "user_query") if is_user else shown})
        said.append(block)
    return Record({"type": told["role"], "timestamp": at, "message": {"content": said}})


def _written(words: str) -> float | None:
    """The time in a question: Sunday, Sep 20, 2026, 12:31 AM (UTC+3)."""
    if not (found := _TIME.search(words)):
        return None
    try:
        made = datetime.strptime(found[1], "%b %d, %Y, %I:%M %p").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return made - int(found[2] or 0) * 3600 - int(f"{found[2][:1]}{found[3]}" if found[3] else 0) * 60
