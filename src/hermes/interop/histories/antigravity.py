"""Antigravity: brain/<conversation>/.system_generated/logs/transcript.jsonl, one line per step of the agent."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, first_objects, from_json, json_lines

SOURCE = "antigravity"
FILES = "logs/transcript.jsonl"
_MODEL = re.compile(r"setting `Model Selection` from .*? to (.+?)\.(?:\s|$)")
_TOKENS = ("input_tokens", "output_tokens", "cached_content_token_count")
_BOOKKEEPING = ("CONVERSATION_HISTORY", "EPHEMERAL_MESSAGE", "KNOWLEDGE_ARTIFACTS")


def usual_places() -> list[Path]:
    """The places where Antigravity keeps its conversations: the editor, its other edition, and the command line."""
    gemini = Path.home() / ".gemini"
    named = [gemini / name for name in ("antigravity", "antigravity-ide", "antigravity-cli")]
    return [folder / "brain" for folder in dict.fromkeys((*named, *sorted(gemini.glob("antigravity*"))))]


def sniff(path: Path) -> bool:
    """Whether a file is a transcript of Antigravity."""
    return any("step_index" in record and record.keys() & {"source", "type"} for record in first_objects(path))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversation of one transcript, in as many parts as it was compacted into."""
    steps: dict[int, Record] = {}
    for number, line in json_lines(path, reading):
        at = line.get("step_index")
        before = steps.setdefault(at if isinstance(at, int) else number, Record())
        before |= {key: value for key, value in line.items() if value or key not in before}  # it may be written again
    name = path.parents[2].name if path.parent.name == "logs" else path.stem
    made = Conversation(SOURCE, name)
    _add(made, steps, reading)
    yield made


def _add(made: Conversation, steps: dict[int, Record], reading: Reading) -> None:
    """Add the messages; a checkpoint puts a summary in the place of what was said before."""
    waiting: deque[tuple[str, str]] = deque()  # calls without a result yet: results name none, and come in order
    for number, step in sorted(steps.items()):
        kind, source, name = str(step.get("type")), str(step.get("source")), f"step-{number}"
        at, content = step.time("created_at"), step.text("content") or step.object("content").text("text")
        if kind == "PLANNER_RESPONSE":
            made.messages += _reply(name, step, content, at, waiting)
        elif kind == "USER_INPUT" or source.startswith("USER"):
            chosen = _MODEL.search(content or "")
            made.model = chosen[1] if chosen else made.model
            made.messages += make.spoken("user", content and make.tagged(content, "USER_REQUEST"), at, name)
        elif source == "MODEL":
            call, tool = waiting.popleft() if waiting else (None, kind.lower())
            made.messages.append(make.result(content, at, name, call, tool))
        elif kind == "CHECKPOINT" and content:
            made.compact(content, at, name)
        elif kind == "SYSTEM_MESSAGE" and content:
            made.messages.append(make.message("system", make.tagged(content, "SYSTEM_MESSAGE"), at, name))
        elif kind not in (*_BOOKKEEPING, "CHECKPOINT", "SYSTEM_MESSAGE"):
            reading.unknown[kind] += 1


def _reply(
    name: str, step: Record, content: str | None, at: float | None, waiting: deque[tuple[str, str]]
) -> list[Message]:
    made = make.Parts([content], [step.text("thinking")])
    for number, requested in enumerate(step.objects("tool_calls")):
        call, tool = requested.text("id") or f"{name}-{number}", str(requested.get("name") or "tool")
        waiting.append((call, tool))
        made.call(
            call, tool, {key: from_json(value, value) for key, value in requested.object("args").items()}
        )  # JSON in texts
    used = step.object("usage").counts(_TOKENS, with_cached=True)
    return made.messages("assistant", at, name, model=step.text("model"), **used)
