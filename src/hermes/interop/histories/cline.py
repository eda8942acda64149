"""Cline, and its forks Roo Code and Kilo Code: a folder a task, with the messages as the Anthropic API has them.

The editor's extensions write tasks/<id>/api_conversation_history.json, Cline's terminal program
~/.cline/data/sessions/<id>/<id>.messages.json. Both files are written anew each time. Older versions had tool calls in the
text, as XML, and their results as texts of the person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from hermes.interop.histories.api_messages import ApiMessageReader, Call
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    block_parts,
    compact,
    continued,
    from_json,
    joined,
    message,
    reads,
    user_folders,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines, json_object, top_keys
from hermes.interop.records import Record, seconds

_HISTORY, _SESSION = "api_conversation_history.json", ".messages.json"
_EXTENSIONS = {
    "saoudrizwan.claude-dev": "cline",
    "rooveterinaryinc.roo-cline": "roo",
    "rooveterinaryinc.roo-code": "roo",
    "kilocode.kilo-code": "kilo",
}
_TOOLS = (
    "execute_command", "read_file", "write_to_file", "replace_in_file", "apply_diff", "insert_content", "search_and_replace",
    "edit_file", "search_files", "codebase_search", "list_files", "list_code_definition_names", "browser_action", "web_fetch",
    "use_mcp_tool", "access_mcp_resource", "load_mcp_documentation", "ask_followup_question", "attempt_completion",
    "plan_mode_respond", "new_task", "switch_mode", "fetch_instructions", "update_todo_list", "condense", "new_rule",
)  # fmt: skip
_CALL = re.compile(rf"<({'|'.join(_TOOLS)})>(.*?)</\1>", re.DOTALL)
_ARGUMENT = re.compile(r"<(content|diff)>\n?(.*?)\n?</\1>(?!.*</\1>)|<([a-z_]+)>\n?(.*?)\n?</\3>", re.DOTALL)
_THOUGHT = re.compile(r"<thinking>(.*?)</thinking>", re.DOTALL)
_RESULT = re.compile(rf"\[(?:{'|'.join(_TOOLS)})\b[^\n]*?\] Result:\s*(.*)", re.DOTALL)
_SAID = re.compile(r"<(task|feedback|user_message|answer|user_input)(?: [^>]*)?>\s*(.*?)\s*</\1>", re.DOTALL)
_ENVIRONMENT = re.compile(r"<environment_details>.*?(?:</environment_details>|\Z)", re.DOTALL)
_FOLDER = re.compile(r"# Current (?:Working|Workspace) Directory \((.+?)\) Files")
_NOTES = ("[ERROR]", "[TASK RESUMPTION]", "# task_progress", "# TODO LIST", "# todo_list")
_ANSWERS = {"attempt_completion": "result", "plan_mode_respond": "response", "ask_followup_question": "question"}
_TOKENS = {"input_tokens": "tokensIn", "output_tokens": "tokensOut", "cache_read_tokens": "cacheReads",
           "cache_write_tokens": "cacheWrites"}  # fmt: skip


def usual_places() -> list[Path]:
    """The places where the extensions and Cline's terminal program keep their tasks."""
    stored = [user / "globalStorage" / extension / "tasks" for user in user_folders() for extension in _EXTENSIONS]
    return [Path.home() / ".cline" / "data" / "sessions", Path.home() / ".cline" / "data" / "tasks", *stored]


def sniff(path: Path) -> bool:
    """Whether a file has the messages of a task."""
    if path.suffix != ".json" or not path.is_file():
        return False
    if _is_session(path):
        return True
    first = first_objects(path, 2)
    if not first or not all(one.get("role") in ("user", "assistant") and "content" in one for one in first):
        return False
    return path.name == _HISTORY or "<task>" in compact(first[0]["content"])


def _is_session(path: Path) -> bool:
    with path.open("rb") as stream:
        return top_keys(stream.read(4096)) >= {"messages", "sessionId", "agent"}


def files(folder: Path) -> Iterator[Path]:
    """The tasks below a folder."""
    yield from sorted(path for path in folder.rglob("*.json") if path.name.endswith((_HISTORY, _SESSION)))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The task of one file, in as many parts as it was condensed into."""
    whole = json_object(path) if _is_session(path) else Record()
    made = _session(path, whole) if whole else _task(path)
    told = whole.objects("messages") if whole else [line for _, line in json_lines(path, reading)]
    reader = _MessageReader(reading)
    for number, one in enumerate(told):
        reader.add(one, number)
    made.cwd, made.keeps_lost = made.cwd or reader.cwd, True
    if not whole:
        _add_requests(path.with_name("ui_messages.json"), reader)
    yield from continued(made, reader.parts)


def _session(path: Path, whole: Record) -> Conversation:
    """A session of the terminal program; the file `<id>.json` beside it tells the rest."""
    name, origin = str(whole.get("sessionId")), whole.object("origin")
    about = json_object(path.with_name(path.name.removesuffix(_SESSION) + ".json"))
    above = origin.text("parentThreadId")
    lead = about or (json_object(path.with_name(f"{above}.json")) if above else Record())
    return Conversation(
        "cline", name, title=about.object("metadata").text("title"), cwd=lead.text("cwd"),
        model=about.text("model"), started_at=about.time("started_at"), parent=above,
        kind="subagent" if whole.get("agent") == "subagent" else "branch", system_prompt=whole.text("system_prompt"),
    )  # fmt: skip


def _task(path: Path) -> Conversation:
    """A task of an extension: Roo Code tells about it beside the messages, Cline in the list of all tasks."""
    source = next((_EXTENSIONS[part] for part in path.parts if part in _EXTENSIONS), "cline")
    name = path.parent.name if path.name == _HISTORY else path.stem
    about = json_object(path.with_name("history_item.json")) or _listed(path.parent.parent.parent).get(name, Record())
    used = json_object(path.with_name("task_metadata.json")).objects("model_usage")
    models = [about.text("modelId"), *(one.text("model_id") for one in reversed(used))]
    cost = about.get("totalCost")
    return Conversation(
        source, name, title=about.text("task"), model=next(filter(None, models), None),
        cwd=about.text("workspace") or about.text("cwdOnTaskInitialization"),
        started_at=seconds(int(name)) if name.isdecimal() else None,
        parent=about.text("parentTaskId"), kind="subagent", cost=cost if isinstance(cost, (int, float)) and cost else None,
        tokens=about.counts(_TOKENS),
    )  # fmt: skip


def _listed(storage: Path) -> dict[str, Record]:
    """The title, folder and time of each task, from Cline's own list."""
    path = storage / "state" / "taskHistory.json"
    try:
        return _read_list(path, path.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=8)
def _read_list(path: Path, changed: int) -> dict[str, Record]:
    return {str(one.get("id")): one for _, one in json_lines(path, Reading(path))}


def _add_requests(path: Path, reader: _MessageReader) -> None:
    """Times, tokens and cost of the replies of older versions, from what the editor showed: a line for each request."""
    replies = [one for part in reader.parts for one in part if one["role"] == "assistant"]
    if not path.is_file() or any(one.get("timestamp") for one in replies):
        return
    shown = [one for _, one in json_lines(path, Reading(path)) if one.get("say") == "api_req_started"]
    if len(shown) != len(replies):
        return
    for reply, one in zip(replies, shown, strict=True):
        used = Record.of(from_json(one.get("text")))
        reply["timestamp"] = one.time("ts")
        reply |= used.counts(_TOKENS)


class _MessageReader(ApiMessageReader):
    """Messages of these programs: older versions have tool calls, results and reasoning in the text."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading)
        self.cwd: str | None = None
        self._seen: set[str] = set()
        self._open: list[str] = []  # calls in the text that have no result yet

    def add(self, told: Record, number: int) -> None:
        """Add a message; its number in the file names it where it has neither an id nor a time."""
        role = told.get("role")
        name = told.text("id") or (f"{told['ts']}-{role}" if told.get("ts") else str(number))
        name = f"{name}-{number}" if name in self._seen else name
        self._seen.add(name)
        if told.get("isSummary"):
            self.summarize(joined(block_parts(told.get("content"))), name, told.time("ts"))
        elif told.get("type") != "reasoning":  # encrypted
            self.take(told, name, told.time("ts"))

    def understood(self, words: str, calls: list[Call], name: str) -> tuple[str, str | None, list[Call]]:
        thought = None
        if not calls:
            thought = "\n\n".join(one.strip() for one in _THOUGHT.findall(words)) or None
            words = _THOUGHT.sub("", words)
            for place, found in enumerate(_CALL.finditer(words)):
                arguments = {one[1] or one[3]: one[2] if one[1] else one[4] for one in _ARGUMENT.finditer(found[2])}
                calls.append((f"{name}-{place}", found[1], arguments))
            self._open = [call for call, _, _ in calls]
            words = _CALL.sub("", words)
        answers = [Record.of(given).text(_ANSWERS[tool]) for _, tool, given in calls if tool in _ANSWERS]
        return "\n\n".join(filter(None, (words.strip(), *answers))), thought, calls

    def heard(self, words: str, said: list[Any], made: list[Message], at: float | None, name: str) -> None:
        folder = _FOLDER.search(words)
        self.cwd = self.cwd or (folder[1] if folder else None)
        words = _ENVIRONMENT.sub("", words).strip()
        found = _RESULT.match(words)
        if found and self._open:
            made.append(self.result(self._open.pop(0), found[1] or None, at, name))
        elif words.startswith(_NOTES):
            made.append(message("system", words, at, name))
        elif made and made[-1]["role"] == "tool" and made[-1]["content"] is None and not _SAID.match(words):
            made[-1]["content"] = words or None
        elif words:
            super().heard(_SAID.sub(r"\2", words), said, made, at, name)
