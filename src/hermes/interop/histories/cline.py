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

from hermes.interop.formats import Found, Problem
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    compact,
    continued,
    count,
    dicts,
    from_json,
    image_part,
    joined,
    mapping,
    message,
    seconds,
    text,
    tool_call,
    without_cached,
)  # fmt: skip
from hermes.interop.histories.editors import user_folders
from hermes.interop.json_reading import Skipped, first_objects, json_lines, json_object, top_keys

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
    """Where the extensions and Cline's terminal program keep their tasks."""
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


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The task of one file, in as many parts as it was condensed into."""
    skipped = Skipped(path, problems)
    whole = json_object(path) if _is_session(path) else {}
    made = _session(path, whole) if whole else _task(path)
    told = dicts(whole.get("messages")) if whole else [dict(line) for _, line, _ in json_lines(path, skipped)]
    reader = _MessageReader(skipped)
    for number, one in enumerate(told):
        reader.take(one, number)
    made.cwd = made.cwd or reader.cwd
    if not whole:
        _add_requests(path.with_name("ui_messages.json"), reader)
    for part in continued(made, reader.parts):
        if (session := part.session()) is not None:
            yield Found(0, {**session, "keeps_lost": True}, path.stat().st_size)
    skipped.report()


def _session(path: Path, whole: dict[str, Any]) -> Conversation:
    """A session of the terminal program; the file `<id>.json` beside it tells the rest."""
    name, origin = str(whole.get("sessionId")), mapping(whole.get("origin"))
    about = json_object(path.with_name(path.name.removesuffix(_SESSION) + ".json"))
    above = text(origin.get("parentThreadId"))
    lead = about or (json_object(path.with_name(f"{above}.json")) if above else {})
    return Conversation(
        "cline", name, title=text(mapping(about.get("metadata")).get("title")), cwd=text(lead.get("cwd")),
        model=text(about.get("model")), started_at=seconds(about.get("started_at")), parent=above,
        kind="subagent" if whole.get("agent") == "subagent" else "branch", system_prompt=text(whole.get("system_prompt")),
    )  # fmt: skip


def _task(path: Path) -> Conversation:
    """A task of an extension: Roo Code tells about it beside the messages, Cline in the list of all tasks."""
    source = next((_EXTENSIONS[part] for part in path.parts if part in _EXTENSIONS), "cline")
    name = path.parent.name if path.name == _HISTORY else path.stem
    about = json_object(path.with_name("history_item.json")) or _listed(path.parent.parent.parent).get(name, {})
    used = dicts(json_object(path.with_name("task_metadata.json")).get("model_usage"))
    models = [text(about.get("modelId")), *(text(one.get("model_id")) for one in reversed(used))]
    cost = about.get("totalCost")
    return Conversation(
        source, name, title=text(about.get("task")), model=next(filter(None, models), None),
        cwd=text(about.get("workspace")) or text(about.get("cwdOnTaskInitialization")),
        started_at=seconds(int(name)) if name.isdecimal() else None,
        parent=text(about.get("parentTaskId")), kind="subagent", cost=cost if isinstance(cost, (int, float)) and cost else None,
        tokens={to: told for to, key in _TOKENS.items() if (told := count(about.get(key)))},
    )  # fmt: skip


def _listed(storage: Path) -> dict[str, dict[str, Any]]:
    """What Cline's list of tasks tells about each of them."""
    path = storage / "state" / "taskHistory.json"
    try:
        return _read_list(path, path.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=8)
def _read_list(path: Path, changed: int) -> dict[str, dict[str, Any]]:
    return {str(one.get("id")): dict(one) for _, one, _ in json_lines(path, Skipped(path, []))}


def _add_requests(path: Path, reader: _MessageReader) -> None:
    """Times, tokens and cost of the replies of older versions, from what the editor showed: a line for each request."""
    replies = [one for part in reader.parts for one in part if one["role"] == "assistant"]
    if not path.is_file() or any(one.get("timestamp") for one in replies):
        return
    shown = [one for _, one, _ in json_lines(path, Skipped(path, [])) if one.get("say") == "api_req_started"]
    if len(shown) != len(replies):
        return
    for reply, one in zip(replies, shown, strict=True):
        used = mapping(from_json(one.get("text")))
        reply["timestamp"] = seconds(one.get("ts"))
        reply |= {to: told for to, key in _TOKENS.items() if (told := count(used.get(key))) is not None}


class _MessageReader:
    """The messages of the API as messages of the record."""

    def __init__(self, skipped: Skipped) -> None:
        self._skipped = skipped
        self.parts: list[list[Message]] = [[]]
        self.cwd: str | None = None
        self._seen: set[str] = set()
        self._names: dict[str, str] = {}  # of each call, its tool
        self._open: list[str] = []  # calls in the text that have no result yet

    def take(self, told: dict[str, Any], number: int) -> None:
        at, role = seconds(told.get("ts")), told.get("role")
        name = text(told.get("id")) or (f"{told['ts']}-{role}" if told.get("ts") else str(number))
        name = f"{name}-{number}" if name in self._seen else name
        self._seen.add(name)
        content = told.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else dicts(content)
        if told.get("isSummary"):
            summary = joined([one["text"] for one in blocks if text(one.get("text"))])
            self.parts.append([message("user", summary, at, name, meta={"summary": True})])
        elif role == "assistant":
            self._reply(told, blocks, at, name)
        elif role == "user":
            self._said(blocks, at, name)
        elif told.get("type") != "reasoning":  # encrypted
            self._skipped.unknown[f"message {role}"] += 1

    def _reply(self, told: dict[str, Any], blocks: list[dict[str, Any]], at: float | None, name: str) -> None:
        texts, thoughts = list[str](), [text(told.get("reasoning_content"))]
        calls: list[tuple[str, str, Any]] = []
        for block in blocks:
            kind = block.get("type")
            if kind == "text":
                texts.append(str(block.get("text") or ""))
            elif kind in ("thinking", "reasoning"):
                thoughts.append(text(block.get("thinking")) or text(block.get("text")))
            elif kind == "tool_use":
                calls.append(
                    (
                        text(block.get("id")) or f"{name}-{len(calls)}",
                        str(block.get("name") or "tool"),
                        block.get("input"),
                    )
                )
            elif kind != "redacted_thinking":
                self._skipped.unknown[f"block {kind}"] += 1
        words = "\n\n".join(texts)
        if not calls:
            thoughts += [one.strip() for one in _THOUGHT.findall(words)]
            words = _THOUGHT.sub("", words)
            for place, found in enumerate(_CALL.finditer(words)):
                arguments = {one[1] or one[3]: one[2] if one[1] else one[4] for one in _ARGUMENT.finditer(found[2])}
                calls.append((f"{name}-{place}", found[1], arguments))
            self._open = [call for call, _, _ in calls]
            words = _CALL.sub("", words)
        answers = [mapping(given).get(_ANSWERS[tool]) for _, tool, given in calls if tool in _ANSWERS]
        words = "\n\n".join(filter(None, (words.strip(), *(one for one in answers if text(one)))))
        self._names |= {call: tool for call, tool, _ in calls}
        model, used = mapping(told.get("modelInfo")), mapping(told.get("metrics"))
        tokens = mapping(used.get("tokens"))
        cached, cost = used.get("cacheReadTokens", tokens.get("cached")), used.get("cost")
        self.parts[-1].append(message(
            "assistant", words or None, at, name, model=text(model.get("id")) or text(model.get("modelId")),
            reasoning="\n\n".join(filter(None, thoughts)) or None, tool_calls=[tool_call(*one) for one in calls] or None,
            input_tokens=without_cached(used.get("inputTokens", tokens.get("prompt")), cached), cache_read_tokens=count(cached),
            cache_write_tokens=count(used.get("cacheWriteTokens")), cost_usd=cost if isinstance(cost, (int, float)) else None,
            output_tokens=count(used.get("outputTokens", tokens.get("completion"))),
        ))  # fmt: skip

    def _said(self, blocks: list[dict[str, Any]], at: float | None, name: str) -> None:
        """The person's words, results of tools, and notes of the program, each as what it is."""
        made: list[Message] = []
        said: list[Any] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                call = str(block.get("tool_use_id"))
                made.append(self._result(call, joined(_parts(block.get("content"))), at, f"{name}-{len(made)}"))
                continue
            for part in _parts([block]):
                words = self._without_environment(part) if isinstance(part, str) else part
                found = _RESULT.match(words) if isinstance(words, str) else None
                if found and self._open:
                    made.append(self._result(self._open.pop(0), found[1] or None, at, f"{name}-{len(made)}"))
                elif isinstance(words, str) and words.startswith(_NOTES):
                    made.append(message("system", words, at, f"{name}-{len(made)}"))
                elif made and made[-1]["role"] == "tool" and made[-1]["content"] is None and not _is_said(words):
                    made[-1]["content"] = joined([words])
                elif words:
                    said.append(_SAID.sub(r"\2", words) if isinstance(words, str) else words)
        self.parts[-1] += made
        if said:
            self.parts[-1].append(message("user", joined(said), at, name))

    def _without_environment(self, words: str) -> str:
        """A text without the files and times that the program adds to it; they tell the folder."""
        found = _FOLDER.search(words)
        self.cwd = self.cwd or (found[1] if found else None)
        return _ENVIRONMENT.sub("", words).strip()

    def _result(self, call: str, output: Any, at: float | None, name: str) -> Message:
        return message("tool", output, at, name, tool_call_id=call, tool_name=self._names.get(call))


def _is_said(words: Any) -> bool:
    return isinstance(words, str) and bool(_SAID.match(words))


def _parts(content: Any) -> list[Any]:
    """The parts of a message: texts as text, pictures as pictures, anything else as its JSON."""
    parts: list[Any] = [content] if text(content) else []
    for block in dicts(content):
        source = mapping(block.get("source"))
        if block.get("type") == "text":
            parts += [block["text"]] if text(block.get("text")) else []
        elif block.get("type") in ("image", "document") and isinstance(source.get("data"), str):
            parts.append(image_part(source["data"], str(source.get("media_type") or "image/png")))
        else:
            parts.append(compact(block))
    return parts
