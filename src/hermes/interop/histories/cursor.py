"""Cursor: conversations of the editor in `state.vscdb`, and those of its command line in ~/.cursor/projects.

The editor keeps JSON by key: `composerData:<conversation>` has the order of the messages, `bubbleId:<conversation>:<bubble>`
each message, with the tool call in it and what the tool answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.histories.claude_code_lines import ReplyGroups, blocks, messages_of
from hermes.interop.histories.vscode_copilot import opened_folder, user_folders
from hermes.interop.json_reading import Reading, Record, compact, first_objects, from_json, json_lines, text
from hermes.store.engines.sqlite.foreign import ForeignDatabase, tables_of

SOURCE = "cursor"
_TABLE = "cursorDiskKV"
_USER = 1  # the type of a person's message
_TOKENS = ("inputTokens", "outputTokens")
_TRANSCRIPTS = "agent-transcripts"


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
        messages = [record for record in first if record.get("role") in ("user", "assistant")]
        return bool(messages) and all("content" in one.object("message") and "type" not in one for one in messages)
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

    def conversations(self) -> Iterator[Conversation]:
        """Each conversation in which something was said."""
        for row in self._database.beginning(_TABLE, "key", "composerData:"):
            if (data := self._value(row)) is not None:
                yield self._conversation(row["key"].partition(":")[2], data)

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
        bubbles = {
            row["key"].rpartition(":")[2]: bubble
            for row in self._database.beginning(_TABLE, "key", f"bubbleId:{name}:")
            if (bubble := self._value(row)) is not None
        }
        by_time = sorted(bubbles, key=lambda key: _time(bubbles[key]) or 0.0)
        order = [str(one.get("bubbleId")) for one in data.objects("fullConversationHeadersOnly")]
        shown = [key for key in order or by_time if key in bubbles]
        folders = (one.text("workspaceProjectDir") for one in bubbles.values())
        made = Conversation(SOURCE, name, title=data.text("name"), started_at=data.time("createdAt"))
        made.cwd = next(filter(None, folders), None) or opened_folder(self._path.parent)
        made.messages = [one for key in shown for one in self._messages(key, bubbles[key])]
        if cut := len(made.messages):  # what was taken back the editor keeps, and shows no longer
            made.messages += [one for key in by_time if key not in shown for one in self._messages(key, bubbles[key])]
            made.hide_from(cut)
        return made

    def _messages(self, name: str, bubble: Record) -> list[Message]:
        at, words = _time(bubble), bubble.text("text") or bubble.text("rawText")
        if bubble.get("type") == _USER:
            return make.spoken("user", words, at, name)
        made = make.Parts([words], [bubble.object("thinking").text("text")])
        if (called := bubble.object("toolFormerData")).text("name"):
            call, tool = called.text("toolCallId") or f"{name}-call", called["name"]
            arguments = from_json(called.get("rawArgs")) or from_json(called.get("params"), called.get("params"))
            made.call(call, tool, arguments)
            result = called.get("result")
            if output := text(result) or called.text("error") or (compact(result) if result else None):
                failed = called.get("status") in ("error", "cancelled", "rejected")
                made.result(output, at, f"{name}-result", call, tool, failed=failed)
        used = {ours: number for ours, number in bubble.object("tokenCount").counts(_TOKENS).items() if number}
        return made.messages("assistant", at, name, model=bubble.object("modelInfo").text("modelName"), **used)


def _time(bubble: Record) -> float | None:
    return bubble.time("createdAt") or bubble.time("timestamp")


def _transcript(path: Path, reading: Reading) -> Conversation:
    """A conversation of the command line, which has no times: that of the file stands for all."""
    made = Conversation(SOURCE, path.stem, started_at=path.stat().st_mtime)
    if path.parent.name == "subagents":
        made.parent, made.kind = path.parent.parent.name, "subagent"
    lines: dict[str, Record] = {}
    calls = ReplyGroups()  # these lines have Claude Code's content, and calls without an id
    for number, record in json_lines(path, reading):
        if record.get("role") in ("user", "assistant"):
            line = lines[f"line-{number}"] = Record({"type": record["role"], "message": {"content": _blocks(record)}})
            calls.take(f"line-{number}", line, None, {})
        elif record.get("type") != "turn_ended":
            reading.unknown[str(record.get("type"))] += 1
    made.messages = messages_of(lines, list(lines), {})
    return made


def _blocks(record: Record) -> list[Record]:
    """The content of a line, a person's words without what Cursor puts around them."""
    if record["role"] != "user":
        return blocks(record)
    return [
        Record({**block, "text": make.tagged(block["text"], "user_query")}) if block.text("text") else block
        for block in blocks(record)
    ]
