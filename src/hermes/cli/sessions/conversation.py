"""A conversation as lines of text: who, when, what; tool calls one line each, their results short.

On a terminal the assistant's Markdown is rendered; in a pipe it stays as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.cli.sessions.shared import BOLD, CYAN, DIM, GOLD, GREEN, counted, styled
from hermes.cli.table import cut, wrap
from hermes.harmless import harmless, one_line
from hermes.times import clock

if TYPE_CHECKING:
    from datetime import tzinfo

Message = dict[str, Any]
_MARKS = {"user": ("●", GOLD), "assistant": ("◆", GREEN), "tool": ("↳", DIM), "system": ("○", DIM)}
_INDENT = "  "


def said(message: Message) -> str:
    """The words of a message; pictures and other parts as [image], [file] …"""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content] if isinstance(content, dict) else []
    out = []
    for part in parts:
        text = part if isinstance(part, str) else None
        if isinstance(part, dict):
            text = part.get("text") or part.get("content") or part.get("refusal")
            if not isinstance(text, str):
                text = f"[{str(part.get('type') or 'part').removesuffix('_url').removeprefix('input_')}]"
        out.append(text or "")
    return "\n".join(out)


def calls(message: Message) -> list[tuple[str, str]]:
    """(name, arguments as `key=value, …`) of each tool call of a message."""
    given = message.get("tool_calls")
    out = []
    for call in given if isinstance(given, list) else [given] if isinstance(given, dict) else []:
        if not isinstance(call, dict):
            continue
        inner = call.get("function")
        function = inner if isinstance(inner, dict) else call
        arguments = function.get("arguments", function.get("input"))
        out.append((one_line(str(function.get("name") or "tool")), _arguments(arguments)))
    return out


def _arguments(value: Any) -> str:
    from hermes.interop.jsonl import decoded, encoded

    if isinstance(value, str):
        try:
            value = decoded(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return one_line(value)
    if not isinstance(value, dict):
        return "" if value is None else one_line(str(value))
    shown = [f"{key}={item if isinstance(item, str) else encoded(item).decode()}" for key, item in value.items()]
    return one_line(", ".join(shown))


@dataclass(frozen=True, slots=True)
class Renderer:
    """How a conversation is drawn: how wide, whether in colour, whether everything or the short form."""

    width: int
    colour: bool = False
    markdown: bool = False
    full: bool = False
    zone: tzinfo | None = None

    def head(self, session: dict[str, Any], notes: list[str]) -> list[str]:
        """What stands above the conversation."""
        about = [
            session["id"],
            session["source"],
            session.get("model"),
            f"began {clock(session['started_at'], self.zone)}",
        ]
        about.append(counted(session.get("message_count") or 0, "message"))
        if session.get("ended_at") is not None:
            reason = f" ({one_line(session['end_reason'])})" if session.get("end_reason") else ""
            notes = [f"ended {clock(session['ended_at'], self.zone)}{reason}", *notes]
        width = max(8, self.width)
        out = [styled(one, BOLD, on=self.colour) for one in wrap(one_line(session.get("title")) or "—", width)]
        for text in (" · ".join(one_line(str(one)) for one in about if one), *notes):
            out += [styled(one, DIM, on=self.colour) for one in wrap(text, width)]
        return [*out, styled("─" * min(width, 200), DIM, on=self.colour)]

    def message(self, message: Message) -> list[str]:
        """A message's lines; an empty one stands before them, except for the short form of a tool's result."""
        role = str(message.get("role") or "?")
        if role == "tool" and not self.full:
            return self._result(message)
        mark, code = _MARKS.get(role, ("·", CYAN))
        name = f"{role} {message['tool_name']}" if message.get("tool_name") else role
        when = clock(message.get("timestamp"), self.zone)
        top = styled(f"{mark} {one_line(name)}", code, BOLD, on=self.colour) + styled(f" · {when}", DIM, on=self.colour)
        out = ["", top]
        if self.full:
            thought = message.get("reasoning_content") or message.get("reasoning")
            out += [styled(one, DIM, on=self.colour) for one in self._body(thought or "", plain=True)]
        text = said(message)
        if role == "system" and not self.full:
            out += self._short(text)
        else:
            out += self._body(text, plain=role != "assistant")
        for called, arguments in calls(message):
            whole = f"⚙ {called}({arguments})"
            lines = wrap(whole, self.width - 4) if self.full else [cut(whole, max(8, self.width - 2))]
            out += [styled(_INDENT + one, CYAN, on=self.colour) for one in lines]
        return out

    def between(self, text: str) -> list[str]:
        """A remark between messages."""
        return ["", *(styled(one, DIM, on=self.colour) for one in wrap(f"┄ {text} ┄", max(8, self.width)))]

    def _result(self, message: Message) -> list[str]:
        name = one_line(message.get("tool_name")) or "result"
        first, more = _first_line(said(message))
        tail = f" (+{counted(more, 'line')})" if more else ""
        room = max(8, self.width - len(tail))
        return [styled(cut(f"  ↳ {name}: {first}", room) + tail, DIM, on=self.colour)]

    def _short(self, text: str) -> list[str]:
        first, more = _first_line(text)
        tail = f" (+{counted(more, 'line')})" if more else ""
        return [styled(_INDENT + cut(first, max(8, self.width - 2 - len(tail))) + tail, DIM, on=self.colour)]

    def _body(self, text: str, *, plain: bool) -> list[str]:
        text = harmless(text).expandtabs(4).strip("\n")
        if not text.strip():
            return []
        room = max(4, self.width - len(_INDENT))
        if self.markdown and not plain:
            lines = list(_markdown(text, room, self.colour))
        else:
            lines = [part for row in text.split("\n") for part in wrap(row, room)]
        return [(_INDENT + one).rstrip() for one in lines]


def _first_line(text: str) -> tuple[str, int]:
    """The first line with something in it, and how many such lines follow."""
    lines = [one for one in harmless(text).split("\n") if one.strip()]
    return (one_line(lines[0]), len(lines) - 1) if lines else ("(empty)", 0)


def _markdown(text: str, width: int, colour: bool) -> Iterator[str]:
    from io import StringIO

    from rich.console import Console
    from rich.markdown import Markdown

    page = StringIO()
    console = Console(file=page, width=width, force_terminal=True, no_color=not colour, legacy_windows=False)
    console.print(Markdown(text, hyperlinks=False, code_theme="ansi_dark"))
    yield from (one.rstrip() for one in page.getvalue().rstrip("\n").split("\n"))
