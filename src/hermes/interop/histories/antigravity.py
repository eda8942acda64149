"""Antigravity: brain/<conversation>/.system_generated/logs/transcript.jsonl, a line a step of the agent."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    continued,
    from_json,
    message,
    reads,
    tagged,
    tool_call,
    without_cached,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines
from hermes.interop.records import Record, count

SOURCE = "antigravity"
_MODEL = re.compile(r"setting `Model Selection` from .*? to (.+?)\.(?:\s|$)")
_BOOKKEEPING = ("CONVERSATION_HISTORY", "EPHEMERAL_MESSAGE", "KNOWLEDGE_ARTIFACTS")


def usual_places() -> list[Path]:
    """The places where Antigravity keeps its conversations: the editor, its other edition, and the command line."""
    gemini = Path.home() / ".gemini"
    named = [gemini / name for name in ("antigravity", "antigravity-ide", "antigravity-cli")]
    return [folder / "brain" for folder in dict.fromkeys((*named, *sorted(gemini.glob("antigravity*"))))]


def sniff(path: Path) -> bool:
    """Whether a file is a transcript of Antigravity."""
    return any("step_index" in one and one.keys() & {"source", "type"} for one in first_objects(path))


def files(folder: Path) -> Iterator[Path]:
    """The transcripts below a folder."""
    yield from sorted(path for path in folder.rglob("transcript.jsonl") if path.parent.name == "logs")


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversation of one transcript, in as many parts as it was compacted into."""
    steps: dict[int, Record] = {}
    for number, line in json_lines(path, reading):
        at = line.get("step_index")
        before = steps.setdefault(at if isinstance(at, int) else number, Record())
        before.update(
            (key, value) for key, value in line.items() if value or key not in before
        )  # it may be written again
    name = path.parents[2].name if path.parent.name == "logs" else path.stem
    made = Conversation(SOURCE, name)
    yield from continued(made, _parts(made, steps, reading))


def _parts(made: Conversation, steps: dict[int, Record], reading: Reading) -> list[list[Message]]:
    """The messages, cut where a checkpoint put a summary in the place of what was said before."""
    parts: list[list[Message]] = [[]]
    waiting: deque[tuple[str, str]] = deque()  # calls without a result yet: results name none, and come in order
    for number, step in sorted(steps.items()):
        kind, source, name = str(step.get("type")), str(step.get("source")), f"step-{number}"
        at, content = (
            step.time("created_at"),
            step.text("content") or step.object("content").text("text"),
        )
        if kind == "PLANNER_RESPONSE":
            parts[-1] += _reply(name, step, content, at, waiting)
        elif kind == "USER_INPUT" or source.startswith("USER"):
            chosen = _MODEL.search(content or "")
            made.model = chosen[1] if chosen else made.model
            parts[-1] += [message("user", tagged(content, "USER_REQUEST"), at, name)] if content else []
        elif source == "MODEL":
            call, tool = waiting.popleft() if waiting else (None, kind.lower())
            parts[-1].append(message("tool", content, at, name, tool_call_id=call, tool_name=tool))
        elif kind == "CHECKPOINT" and content:
            parts.append([message("user", content, at, name, meta={"summary": True})])
        elif kind == "SYSTEM_MESSAGE" and content:
            parts[-1].append(message("system", tagged(content, "SYSTEM_MESSAGE"), at, name))
        elif kind not in (*_BOOKKEEPING, "CHECKPOINT", "SYSTEM_MESSAGE"):
            reading.unknown[kind] += 1
    return parts


def _reply(
    name: str, step: Record, content: str | None, at: float | None, waiting: deque[tuple[str, str]]
) -> list[Message]:
    calls = []
    for number, asked in enumerate(step.objects("tool_calls")):
        call, tool = asked.text("id") or f"{name}-{number}", str(asked.get("name") or "tool")
        waiting.append((call, tool))
        # each argument is JSON in a text
        calls.append(
            tool_call(call, tool, {key: from_json(value, value) for key, value in asked.object("args").items()})
        )
    thought, used = step.text("thinking"), step.object("usage")
    if not content and not calls and not thought:
        return []
    cached = used.get("cached_content_token_count")
    sent, wrote = (
        used.get("input_tokens", used.get("prompt_token_count")),
        used.get("output_tokens", used.get("candidates_token_count")),
    )
    return [message(
        "assistant", content, at, name, model=step.text("model"), reasoning=thought, tool_calls=calls or None,
        input_tokens=without_cached(sent, cached), cache_read_tokens=count(cached), output_tokens=count(wrote),
    )]  # fmt: skip
