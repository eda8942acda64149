"""One question, one answer: `hermes chat -q`, and text that is piped in.

In a pipe the answer alone is on standard output, as bare text; everything else goes to standard error. For scripts it is JSON:
one object with the answer (`--json`), or the events one a line (`--stream-json`).
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Unpack

from hermes.agent.tools.permission import NO_USER, Question
from hermes.agent.turn import Done, Event, Followed, Notice, Restarted, Text, ToolFinished, ToolStarted
from hermes.chat.file_mentions import with_files
from hermes.chat.keyboard import Terminated, quiet_keyboard, shells_keyboard
from hermes.chat.render import TerminalDisplay, console, display_for
from hermes.chat.resume import resume_line
from hermes.chat.terminal_conversation import ChatOptions, TerminalConversation, Voice
from hermes.commands.info_commands import ONESHOT
from hermes.errors import ModelError, kind_of
from hermes.store.api import configured
from hermes.texts import harmless, shortened_line

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.agent.tools.permission import Answer
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB


def put_json(stream: IO[str], value: dict[str, Any]) -> None:
    """One object, on a line of its own."""
    stream.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    stream.flush()


class JsonDisplay(TerminalDisplay):
    """Collects a turn; with a stream, writes every event as it happens."""

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream = stream
        self.answer = ""
        self.calls: list[dict[str, Any]] = []

    def feed(self, event: Event) -> None:
        if isinstance(event, Text):
            self._tell("text", text=event.text, **({"restart": True} if event.restarted else {}))
        elif isinstance(event, ToolStarted):
            self.calls.append({"id": event.call_id, "name": event.name, "arguments": event.arguments})
            self._tell("tool_start", **self.calls[-1])
        elif isinstance(event, ToolFinished):
            ended = {"ok": event.ok, "seconds": round(event.seconds, 3), "outcome": event.outcome}
            for call in self.calls:
                if call["id"] == event.call_id:
                    call.update(ended)
            self._tell("tool_end", id=event.call_id, name=event.name, **ended)
        elif isinstance(event, Notice):
            self._tell("restart" if isinstance(event, Restarted) else "notice", text=event.text)
        elif isinstance(event, Followed):
            self._tell("compressed", session_id=event.session_id)
        elif isinstance(event, Done):
            self.answer = event.text

    def _tell(self, kind: str, **values: Any) -> None:
        if self.stream is not None:
            put_json(self.stream, {"type": kind, **values})


class PipeVoice(Voice):
    """Writes everything but the answer to standard error; asks questions only if standard input is a terminal."""

    def __init__(self) -> None:
        self.screen = console()

    def say(self, text: str) -> None:
        print(harmless(text), file=sys.stderr)

    def note(self, text: str) -> None:
        print(shortened_line(text, 1000), file=sys.stderr)

    def ask(self, question: str) -> bool:
        if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
            self.note(f"{question} Answered no: there is no terminal to ask on (--yes answers yes to every question).")
            return False
        with shells_keyboard():
            print(f"{harmless(question)} [y/N] ", end="", file=sys.stderr, flush=True)
            return sys.stdin.readline().strip().casefold() in ("y", "yes")

    def permission(self, question: str) -> bool | Answer:
        if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
            return self.ask(question)
        rules = question.rules if isinstance(question, Question) else ()
        how = " ".join(f"--yes-to {shlex.quote(rule)}" for rule in rules) or "--yes"
        self.say(f"{question}\nRefused: there is no terminal to ask on. Allow it with {how}")
        return NO_USER

    def display(self, *, reasoning: bool = False) -> TerminalDisplay:
        return display_for(self.screen, "Run the command again, or rephrase the question.")


class JsonVoice(PipeVoice):
    """Writes one JSON object with the answer to standard output; with `stream`, every event before it, a line each."""

    def __init__(self, *, stream: bool) -> None:
        super().__init__()
        self.shown = JsonDisplay(sys.stdout if stream else None)

    def display(self, *, reasoning: bool = False) -> TerminalDisplay:
        return self.shown

    def result(self, values: dict[str, Any]) -> None:
        """The last object."""
        put_json(sys.stdout, {"type": "result", **values} if self.shown.stream else values)


def _last_message(conversation: TerminalConversation) -> int:
    return max((row["id"] for row in conversation.db.get_messages(conversation.session_id)), default=0)


def _summary(conversation: TerminalConversation, voice: JsonVoice, before: int) -> dict[str, Any]:
    """The facts about an answer, for a script."""
    rows = [row for row in conversation.db.get_messages(conversation.session_id) if row["id"] > before]
    replies = [row for row in rows if row["role"] == "assistant"]
    costs = [row["cost_usd"] for row in replies]

    def total(name: Literal["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"]) -> int:
        return sum(row[name] or 0 for row in replies)

    return {
        "answer": voice.shown.answer,
        "session_id": conversation.session_id if conversation.saved else None,
        "model": next((row["model"] for row in reversed(replies) if row["model"]), conversation.model.name),
        "tokens": {
            "input": total("input_tokens") + total("cache_read_tokens") + total("cache_write_tokens"),
            "output": total("output_tokens"),
            "cached": total("cache_read_tokens"),
        },
        "cost_usd": None if not costs or None in costs else sum(cost for cost in costs if cost is not None),
        "finish_reason": replies[-1]["finish_reason"] if replies else None,
        "tool_calls": voice.shown.calls,
    }


def piped_text() -> str:
    """The piped text, if any; bytes that are not UTF-8 become replacement characters."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def joined(question: str | None, piped: str) -> str:
    """The question and the piped text, as one text."""
    parts = [part for part in ((question or "").strip(), piped.strip("\n")) if part.strip()]
    return "\n\n".join(parts)


def ask(
    db: SessionDB,
    config: Config,
    model: Model,
    question: str,
    piped: str = "",
    *,
    session_id: str | None,
    output: str = "text",
    **options: Unpack[ChatOptions],
) -> int:
    """Ask once and print the answer (as text, `json` or `stream-json`); the exit status."""
    content: str | list[Any] = joined(question, piped)
    notes: list[str] = []
    if "@" in question:  # a server may be asked for the window
        window = model.context_length
        content, notes = with_files(question.strip(), Path.cwd(), window, piped=piped.strip("\n"))
    voice = PipeVoice() if output == "text" else JsonVoice(stream=output == "stream-json")
    # The shell waits for the answer alone, not for a title.
    conversation = TerminalConversation(db, config, model, voice, titles_by_model=False, **options)
    status = 0
    try:
        if session_id is not None and not conversation.open(session_id):
            return 1
        if session_id is None:
            conversation.end_reason = ONESHOT
        if conversation.saved:
            configured.start(db, config)
        before = _last_message(conversation)
        for about in notes:
            voice.note(f"With {about}")
        with quiet_keyboard(prompts=False):  # an echoed ^C would move what is redrawn
            status = 130 if conversation.talk(content) else 0
    except Terminated as ended:
        status = 128 + ended.number
    except ModelError as error:
        if isinstance(voice, JsonVoice):
            voice.result({"error": str(error), "kind": kind_of(error), "session_id": conversation.session_id})
        raise
    finally:
        if isinstance(voice, JsonVoice) and status in (0, 130) and sys.exc_info()[0] is None:
            voice.result(_summary(conversation, voice, before))
        lines = conversation.close()
    if lines and sys.stderr.isatty():
        voice.note(f"{resume_line(conversation.session_id)}  continues this conversation")
    return status
