"""Markdown: conversations to read, print and keep beside other notes. It can't be imported; JSONL can.

A session is a heading, each message a smaller one; tool calls and results stand in fences that nothing inside can close.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING

from hermes.interop.formats import Export
from hermes.interop.json_reading import encoded
from hermes.store.records.sessions import described_event, interleaved
from hermes.store.text.index_text import plain_content
from hermes.texts import one_line, unfinished
from hermes.times import clock

if TYPE_CHECKING:
    from hermes.store.records.rows import ExportedSession, MessageRow, SessionEvent

_BACKTICKS = re.compile("`{3,}")


def calls_of(message: MessageRow) -> Iterator[tuple[str, str]]:
    """(name, arguments as JSON text) of each tool call."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else [calls] if isinstance(calls, dict) else []:
        if isinstance(call, dict):
            inner = call.get("function")
            function = inner if isinstance(inner, dict) else call
            arguments = function.get("arguments", function.get("input"))
            text = arguments if isinstance(arguments, str) else encoded(arguments).decode() if arguments else ""
            yield str(function.get("name") or "tool"), text


def fenced(text: str, language: str = "") -> str:
    """Text in a fence longer than any run of backticks inside."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def write(export: Export) -> Iterator[bytes]:
    """Exported sessions as Markdown, one after the other."""
    first, zone = True, export.zone
    for session in export.sessions:
        text = "" if first else "\n---\n\n"
        first = False
        yield (text + _head(session, zone)).encode("utf-8", "replace")
        for is_event, item in interleaved(session.get("messages") or [], session.get("events") or []):
            yield (_event(item, zone) if is_event else _message(item, zone)).encode("utf-8", "replace")


def _head(session: ExportedSession, zone: tzinfo | None) -> str:
    facts = {
        "Session": f"`{session['id']}`",
        "Source": session.get("source"),
        "Model": session.get("model"),
        "Began": clock(session.get("started_at"), zone, unknown=""),
        "Ended": clock(session.get("ended_at"), zone, unknown=""),
        "Continues": session.get("parent_session_id") and f"`{session['parent_session_id']}`",
        "Tags": ", ".join(map(str, session.get("tags") or [])),
    }
    lines = [f"# {one_line(str(session.get('title') or session['id']))}", ""]
    lines += [f"- {name}: {one_line(str(value))}" for name, value in facts.items() if value]
    return "\n".join(lines) + "\n"


def _event(event: SessionEvent, zone: tzinfo | None) -> str:
    when = clock(event["at"], zone, unknown="")
    return f"\n## Event · {when}\n\n{fenced(described_event(event))}\n"


def _message(message: MessageRow, zone: tzinfo | None) -> str:
    role = str(message.get("role") or "unknown")
    name = f"{role.capitalize()} {message['tool_name']}" if message.get("tool_name") else role.capitalize()
    when = clock(message.get("timestamp"), zone, unknown="")
    parts = [f"## {one_line(name)}" + (f" · {when}" if when else "")]
    text = plain_content(message.get("content"))
    if text.strip():
        parts.append(fenced(text) if role == "tool" else text.strip("\n"))
    if cut_off := unfinished(message):
        parts.append(f"*({cut_off})*")
    parts += [f"Calls `{one_line(tool)}`:\n\n{fenced(arguments, 'json')}" for tool, arguments in calls_of(message)]
    return "\n" + "\n\n".join(parts) + "\n"
