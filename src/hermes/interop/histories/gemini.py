"""Gemini CLI: ~/.gemini/tmp/<project>/chats/session-….jsonl (a header, messages, patches), older ones one JSON object."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, compact, first_objects, json_lines, json_object, text

SOURCE = "gemini"
_TOKENS = ("input", "output", "cached", "", "thoughts")
_BOOKKEEPING = ("info", "error", "warning")
_SET_ONCE = ("sessionId", "startTime")  # which session it is, and when it began, no later line changes
_CALLS = frozenset(("functionCall", "functionResponse", "thoughtSignature"))  # as the API has them: also in `toolCalls`
_WITHOUT_WORDS = _CALLS | {"text", "thought"}


def usual_places() -> list[Path]:
    """The folder in which Gemini CLI keeps its sessions."""
    return [make.program_home("GEMINI_CLI_HOME", "") / ".gemini" / "tmp"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Gemini CLI."""
    first = first_objects(path, 1)
    if first and "sessionId" in first[0] and "type" not in first[0] and first[0].keys() & {"projectHash", "startTime"}:
        return True
    if path.suffix == ".jsonl":  # the header is damaged
        return bool(first) and first[0].get("type") in ("user", "gemini") and {"id", "content"} <= first[0].keys()
    whole = json_object(path, "sessionId")
    return "sessionId" in whole and isinstance(whole.get("messages"), list)


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder, those of sub-agents included.

    A resumed older chat goes on in a file of lines, which begins with all that the older file has.
    """
    for path in sorted(folder.rglob("*.json*")):
        goes_on = path.suffix == ".json" and path.with_suffix(".jsonl").exists()
        if "chats" in path.parts and path.suffix in (".json", ".jsonl") and not goes_on:
            yield path


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file."""
    header, records, rewound = _records(path, reading)
    name = header.text("sessionId") or path.stem
    made = Conversation(SOURCE, name, title=header.text("summary"), started_at=header.time("startTime"))
    folders = header.get("directories")
    made.cwd = folders[0] if isinstance(folders, list) and folders and isinstance(folders[0], str) else _project(path)
    if path.parent.name != "chats" and path.parent.parent.name == "chats":
        made.parent, made.kind = path.parent.name, "subagent"
    ends: dict[str, str] = {}  # the last message made of a record, or of one before it that says something
    for record in records:
        made.messages += _messages(record, reading)
        if made.messages and (last := made.messages[-1].get("platform_message_id")):
            ends[str(record.get("id"))] = last
    made.branches = [
        (ends.get(str(after)), [message for record in branch for message in _messages(record, reading)])
        for after, branch in rewound
    ]
    made.branches = [(after, branch) for after, branch in made.branches if branch]
    # To resume a session, Gemini CLI begins a file of the same id that it leaves with its own context in it.
    if any(message["role"] != "system" for message in made.messages):
        yield made


Records = list[Record]


def _records(path: Path, reading: Reading) -> tuple[Record, Records, list[tuple[str | None, Records]]]:
    """The header, the messages that are shown, and those that a rewind took away with the message before them."""
    if path.suffix != ".jsonl" and (whole := json_object(path)):
        return whole, whole.objects("messages"), []
    if path.suffix == ".json":
        reading.damaged(1, "not a JSON object")
        return Record(), [], []
    header = Record()
    shown: dict[str, Record] = {}  # by id
    rewound: list[tuple[str | None, dict[str, Record]]] = []

    def take(name: str, record: Record, *, is_copy: bool) -> None:
        # One that was taken back and comes again is shown again.
        known = shown.get(name) or next((branch.pop(name) for _, branch in rewound if name in branch), None)
        shown[name] = record if known is None else _merged(known, record, is_copy=is_copy)

    for number, line in json_lines(path, reading):
        if "$rewindTo" in line:
            names = list(shown)
            if line["$rewindTo"] in shown:
                cut = names.index(line["$rewindTo"])
                rewound.append((names[cut - 1] if cut else None, {name: shown.pop(name) for name in names[cut:]}))
        elif isinstance(line.get("$set"), dict) or ("sessionId" in line and "type" not in line):
            patch = dict(line.get("$set") or line)
            # What the model is given from here on: messages left out of it were said all the same.
            for message in Record.all(patch.pop("messages", None)):
                take(str(message.get("id")), _as_record(message), is_copy=True)
            first = {name: header[name] for name in _SET_ONCE if header.get(name)}
            header |= {name: value for name, value in patch.items() if value} | first
        elif "type" not in line:
            reading.unknown[next(iter(line), "nothing")] += 1
        else:
            take(str(line.get("id") or f"line-{number}"), line, is_copy=False)
    return header, list(shown.values()), [(after, list(branch.values())) for after, branch in rewound]


def _as_record(message: Record) -> Record:
    """A message in the API's form (`role`, `parts`) in the form of the file."""
    if "parts" not in message:
        return message
    kind = "gemini" if message.get("role") == "model" else message.get("role")
    return Record({"type": kind, "content": message["parts"], **message})


def _merged(known: Record, record: Record, *, is_copy: bool) -> Record:
    """One record of two with the same id: the newer one, and what only the earlier one has.

    A copy of what the model is given (resumed chats have one) is poorer and has the time of the resumption: of it only what
    the earlier record lacks is taken.
    """
    first, second = (known, record) if is_copy else (record, known)
    made = {name: second.get(name) if _is_empty(name, first.get(name)) else first[name] for name in known | record}
    made["timestamp"] = known.get("timestamp") or record.get("timestamp")
    if record.get("type") in _BOOKKEEPING and known.get("type") not in _BOOKKEEPING and "type" in known:
        return known  # a note about a message is not the message
    calls = {str(call.get("id") or number): call for number, call in enumerate(known.objects("toolCalls"))}
    for number, call in enumerate(record.objects("toolCalls")):
        name = str(call.get("id") or number)
        calls[name] = _merged(calls[name], call, is_copy=is_copy) if name in calls else call
    return Record({**made, "toolCalls": list(calls.values())})


def _is_empty(name: str, value: Any) -> bool:
    """Whether a field says nothing. Calls in the content are no words: `toolCalls` has them."""
    if name == "content" and isinstance(value, list):
        return not any(part if isinstance(part, str) else Record.of(part).keys() - _CALLS for part in value)
    return not any(value.values()) if name == "tokens" and isinstance(value, dict) else not value


def _messages(record: Record, reading: Reading) -> list[Message]:
    kind, at, name = record.get("type"), record.time("timestamp"), record.text("id")
    if kind == "user":
        content = content_of(record.get("content"), reading)
        role = "system" if isinstance(content, str) and content.lstrip().startswith("<session_context>") else "user"
        return make.spoken(role, content, at, name)
    if kind == "gemini":
        return _reply(record, at, name, reading)
    if kind not in _BOOKKEEPING:
        reading.unknown[str(kind)] += 1
    return []


def _reply(record: Record, at: float | None, name: str | None, reading: Reading) -> list[Message]:
    thoughts = [
        ": ".join(filter(None, (one.text("subject"), one.text("description")))) for one in record.objects("thoughts")
    ] or [part.text("text") or "" for part in record.objects("content") if part.get("thought")]
    made = make.Parts()
    for number, call in enumerate(record.objects("toolCalls")):
        call_id = call.text("id") or f"{name}-{number}"
        made.call(call_id, call.get("name"), call.get("args"))
        if call.get("result") is not None or call.text("resultDisplay"):
            failed, ended = call.get("status") in ("error", "cancelled"), call.time("timestamp") or at
            made.result(_result(call), ended, f"{call_id}-result", call_id, call.text("name"), failed=failed)
    content, thought = content_of(record.get("content"), reading), "\n".join(filter(None, thoughts)) or None
    reply = make.message("assistant", content, at, name, model=record.text("model"), reasoning=thought)
    reply |= record.object("tokens").counts(_TOKENS, with_cached=True)
    if made.calls:
        reply["tool_calls"] = made.calls
    return [reply, *made.results]


def output_of(parts: Any) -> str | None:
    """The output inside function responses."""
    answers = [part.object("functionResponse").object("response") for part in (Record.all(parts) or [Record.of(parts)])]
    texts = [one for answer in answers for one in (answer.get("output"), answer.get("error")) if isinstance(one, str)]
    return "\n".join(texts) if texts else None


def _result(call: Record) -> Any:
    """A tool's result: the output inside its function response, else as it is."""
    result = call.get("result")
    if (output := output_of(result)) is not None:
        return output
    return result if isinstance(result, str) else call.text("resultDisplay") or compact(result)


def content_of(content: Any, reading: Reading) -> Any:
    """Parts as Gemini writes them: a text, a part, or a list of both."""
    parts: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            parts += [part] if part else []
        elif isinstance(part, dict) and not part.get("thought"):
            part = Record(part)
            if part.text("text"):
                parts.append(part["text"])
            elif held := make.picture_in(part.object("inlineData")):
                parts.append(held)
            elif part.object("fileData").text("fileUri"):
                parts.append(f"[file {part['fileData']['fileUri']}]")
            else:
                reading.unknown.update(f"part {key}" for key in part.keys() - _WITHOUT_WORDS)
    return make.joined(parts)


def _project(path: Path) -> str | None:
    """The folder of a project: in `.project_root`, or in projects.json by its slug; older versions name it by its hash."""
    chats = next((parent for parent in path.parents if parent.name == "chats"), None)
    if chats is None:
        return None
    project = chats.parent
    try:
        if folder_text := text((project / ".project_root").read_text("utf-8")):
            return folder_text.strip()
    except (OSError, ValueError):
        pass
    if project.parent.name != "tmp":
        return None
    listed = json_object(project.parent.parent / "projects.json")
    for folder, slug in (listed.object("projects") or listed).items():
        if project.name in (slug, hashlib.sha256(folder.encode()).hexdigest()):
            return str(folder)
    return None
