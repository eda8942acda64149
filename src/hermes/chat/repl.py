"""The prompt: reads a line, runs a command or a turn, and ends the session properly however the program ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Unpack

from rich.cells import cell_len
from rich.text import Text

from hermes.agent.models.servers import unused_variables
from hermes.agent.prompt import OWN_COMMAND, TOOL_BUDGET
from hermes.agent.tools.permission import Answer, Question, read_answer
from hermes.chat.file_mentions import with_files
from hermes.chat.keyboard import ENDING, Terminated, Typing, handled, quiet_keyboard, shells_keyboard, signals_raise
from hermes.chat.render import console, display_for, folded, styled_lines
from hermes.chat.resume import recap
from hermes.chat.terminal_conversation import ChatOptions, NotSent, TerminalConversation, Voice
from hermes.commands.registry import run_command, sent_text
from hermes.config import environment
from hermes.errors import ContextTooLong, HermesError, InvalidInput, ModelError, StoreError
from hermes.home import get_hermes_home
from hermes.store.api import configured
from hermes.texts import harmless, shortened_line, without_middle

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hermes.agent.models.model import Model
    from hermes.chat.render import TerminalDisplay
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB


_SMALL_MODEL_NOTED = "embedded_model_told"  # the key of the store's meta data: the note below was shown
_SMALL = (
    "This small model lets you try Hermes without a network: short answers in English, with excerpts of your history. It rambles"
    " and has no tools. `hermes model install` lists better models available on this machine and how to install them."
)
_AT_ONCE = 65_536  # bytes of a command's output
_PATIENCE = 3.0  # seconds a command of the user's own has to end after Ctrl-C
_LONG_RULE = 200  # characters; a longer one is the command that stands above
_KEYS_MENTIONED = "unused_keys_told"  # the key of the store's meta data: the variables that were mentioned
_COLUMNS = re.compile(r"(\s*\S+(?: \S+)*? {2,})(\S.*)")  # "name  text": two spaces separate columns


class TerminalVoice(Voice):
    """Prints to the screen and asks at the keyboard. If standard output is no terminal, only replies go there."""

    def __init__(self) -> None:
        self.replies = console()
        self.screen = self.replies if self.replies.is_terminal else console(stderr=True)
        self.comfortable = self.replies.is_terminal and sys.stdin.isatty()
        self.unsent = ""  # a line that was not sent; the next prompt starts with it

    def say(self, text: str) -> None:
        for line in harmless(text).split("\n"):
            for part in hanging(self.screen, line):
                self.screen.print(part, soft_wrap=True)

    def note(self, text: str) -> None:
        for line in packed(shortened_line(text, 1000), self.screen.width):
            self.screen.print(line, style="dim", overflow="fold")

    def ask(self, question: str) -> bool:
        question = shortened_line(question, 1000)
        if cell_len(question) + len(" [y/N] y") > self.screen.width:  # too long for a prompt: print it above
            self.say(question)
            question = ""
        return self._read(f"{question} [y/N] ".lstrip()).strip().casefold() in ("y", "yes")

    def permission(self, question: str) -> Answer:
        """Ask whether a tool may do something: the diff, the question, and what can be answered."""
        detail = question.detail if isinstance(question, Question) else ""
        for line in styled_lines("edit_file", folded("edit_file", detail), self.screen.width):
            self.screen.print(line)
        self.say(question)
        rules = question.rules if isinstance(question, Question) else ()
        kind = ", ".join(rules) if sum(map(len, rules)) < _LONG_RULE else "exactly this"
        always = f"a: always for {kind} in this folder · e: everywhere · " if rules else ""
        self.note(f"y: yes · {always}anything else: decline, and tell the model why")
        answer = read_answer(self._read("[y/N] "))
        return answer if rules or not answer.lasting else Answer(False)

    def choose(self, question: str, options: Sequence[str], says: Sequence[str] = ()) -> int | None:
        for number, option in enumerate(options, 1):
            self.say(f"{number:>3}  {option}")
        numbers = "1" if len(options) == 1 else f"1-{len(options)}"
        while answer := self._read(f"{question} [{numbers}, Enter: none] ").strip():
            if answer.isascii() and answer.isdigit() and 1 <= int(answer[:6]) <= len(options):
                return int(answer) - 1
            self.say("No such entry. Type a number from the list.")
        return None

    def _read(self, question: str) -> str:
        """A line from the keyboard; empty for Ctrl-D and Esc."""
        try:
            if not self.comfortable:
                return _read_plainly(question)
            from prompt_toolkit import PromptSession
            from prompt_toolkit.key_binding import KeyBindings

            keys = KeyBindings()
            keys.add("escape", eager=True)(lambda event: event.app.exit(result=""))
            session = PromptSession[str](key_bindings=keys)
            with _signals_wake(session):
                return session.prompt(question)
        except EOFError:
            return ""

    def clear(self) -> None:
        if self.comfortable:
            self.screen.clear()

    def typing(self) -> Typing | None:
        return Typing() if self.comfortable else None

    def display(self, *, reasoning: bool = False) -> TerminalDisplay:
        return display_for(self.replies, "/retry asks again.", reasoning=reasoning)

    def recap(self, db: SessionDB, session_id: str, config: Config) -> None:
        self.screen.print(recap(db, session_id, config, self.screen.width))


def packed(text: str, width: int) -> list[str]:
    """A text of parts with ` · ` between them, in lines that end between two parts where they fit."""
    lines: list[str] = []
    for part in text.split(" · "):
        if lines and cell_len(lines[-1]) + len(" · ") + cell_len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def hanging(screen: Console, line: str) -> list[str]:
    """A line wrapped to the screen; in a table, the second column is wrapped below itself."""
    columns = _COLUMNS.match(line)
    head = columns[1] if columns and cell_len(columns[1]) <= screen.width // 2 else ""
    head = head or line[: len(line) - len(line.lstrip())][: screen.width // 2]
    indent = cell_len(head)
    room = max(screen.width - indent, 1)
    first, *rest = [part.plain for part in Text(line[len(head) :]).wrap(screen, room, overflow="fold")] or [""]
    return [head + first, *(" " * indent + part for part in rest)]


def talk(db: SessionDB, config: Config, model: Model, *, session_id: str | None, **options: Unpack[ChatOptions]) -> int:
    """Run the prompt until the user leaves; returns the exit status."""
    voice = TerminalVoice()
    conversation = TerminalConversation(db, config, model, voice, **options)

    def sitting() -> int:
        if session_id is not None and not conversation.open(session_id):
            return 1
        banner(voice, conversation)
        if conversation.saved:
            configured.start(db, config)
        else:
            voice.note("This conversation is not saved (--no-save).")
        return _loop(conversation, voice)

    with quiet_keyboard() if voice.comfortable else nullcontext():
        try:
            status = _guarded(sitting)
        finally:
            lines = conversation.close()
    _goodbye(voice, lines)
    return status


def banner(voice: TerminalVoice, conversation: TerminalConversation) -> None:
    """The model that answers, and the most important keys."""
    voice.screen.print(Text.assemble(("Hermes", "bold"), f" · {harmless(conversation.model.describe())}"))
    voice.note("/help lists the commands · Ctrl-C stops a reply · Ctrl-D leaves")
    if files := conversation.agent.instruction_files():
        voice.note(f"Project instructions: {', '.join(map(str, files))}")
    if conversation.model.kind == "embedded" and conversation.db.get_meta(_SMALL_MODEL_NOTED) is None:
        conversation.db.set_meta(_SMALL_MODEL_NOTED, "1")
        voice.note(_SMALL)
    _mention_keys(voice, conversation)


def _mention_keys(voice: TerminalVoice, conversation: TerminalConversation) -> None:
    """Mention, once each, the keys of providers that are in the environment and not used."""
    mentioned = (conversation.db.get_meta(_KEYS_MENTIONED) or "").split()
    unused = unused_variables(getattr(conversation.model, "api_key", None), environment())
    new = [variable for variable in unused if variable not in mentioned]
    if new and conversation.saved:
        conversation.db.set_meta(_KEYS_MENTIONED, " ".join([*mentioned, *new]))
        are = "is" if len(new) == 1 else "are"
        voice.note(f"{', '.join(new)} {are} set but not used; `hermes model` shows what you can use.")


def _guarded(loop: Callable[[], int]) -> int:
    """Run the loop; a terminating signal ends it like any other exit."""
    try:
        with signals_raise():
            return loop()
    except Terminated as ended:
        return 128 + ended.number
    finally:
        for number in ENDING:  # from here on no signal interrupts the end of the session
            signal.signal(number, signal.SIG_IGN)


def _goodbye(voice: TerminalVoice, lines: list[str]) -> None:
    try:
        if lines:
            voice.screen.print()
        for line in lines:
            voice.screen.print(line, soft_wrap=True)
        voice.screen.file.flush()
    except OSError:  # the terminal is gone; everything is stored
        pass


def _loop(conversation: TerminalConversation, voice: TerminalVoice) -> int:
    read = _reader(conversation, voice) if voice.comfortable else _read_plainly
    hinted = False
    while not conversation.leaving:
        try:
            line = read()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            voice.note("Ctrl-D or /quit leaves." if not hinted else "Ctrl-D leaves.")
            hinted = True
            continue
        if line.strip():
            _answer(conversation, voice, line)
    typing = voice.typing()
    if typing is not None and (typed := typing.typed().strip()):  # while a command, such as /handoff, was at work
        voice.note(f"Not sent: {typed}")
    return 0


def _answer(conversation: TerminalConversation, voice: TerminalVoice, line: str) -> None:
    """Handle one line: a command or a message. Errors are shown; the conversation continues."""
    try:
        if line.startswith("!") and line[1:2] not in ("!", ""):
            _run_own(conversation, voice, line[1:].strip())
        elif not run_command(conversation, line.strip() if line.startswith("/") else line):
            content, notes = _content(conversation, voice, line[1:] if line.startswith("!!") else sent_text(line))
            voice.screen.print()
            for note in notes:
                voice.note(f"With {note}")
            if notes:
                voice.screen.print()
            conversation.talk(content)
        voice.screen.print()
    except NotSent:
        voice.unsent = line
        voice.note("Not sent; the other process is still answering.")
    except KeyboardInterrupt:
        voice.note("Stopped.")
    except HermesError as error:
        if isinstance(error, StoreError) and not conversation.is_stored(line):
            voice.unsent = line
        _tell(voice, error, unsent=bool(voice.unsent))


def run_own_command(command: str, folder: Path) -> tuple[str, int]:
    """Run a command in the user's shell, at the terminal; the message about it, and its exit status. Ctrl-C ends it."""
    kept, echoed = b"", False  # whether the terminal has printed ^C
    words = [os.environ.get("SHELL") or "/bin/sh", "-c", command]
    with (
        shells_keyboard(),
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child,
    ):
        assert child.stdout is not None
        try:
            while data := os.read(child.stdout.fileno(), _AT_ONCE):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                kept += data
                if len(kept) > 20 * TOOL_BUDGET:  # only both ends of an endless output are kept
                    kept = kept[: 4 * TOOL_BUDGET] + kept[-4 * TOOL_BUDGET :]
            status = child.wait()
        except KeyboardInterrupt:  # the command got the signal as well
            echoed = True
            try:
                status = child.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                status = child.wait()
        except BaseException:
            child.kill()
            raise
    if echoed or not kept.endswith(b"\n"):
        print(flush=True)
    output = without_middle(harmless(kept.decode("utf-8", "replace")).strip("\n"), TOOL_BUDGET)
    lines = [OWN_COMMAND, f"$ {command}", output or "(no output)", *([f"[exit status {status}]"] if status else [])]
    return "\n".join(lines), status


def _run_own(conversation: TerminalConversation, voice: TerminalVoice, command: str) -> None:
    """Run the user's own command and put its output into the conversation."""
    text, status = run_own_command(command, conversation.agent.cwd)
    conversation.show(conversation.agent.record_only(text))
    how = f"Ended by {signal.Signals(-status).name}. " if status < 0 else f"Exit status {status}. " if status else ""
    voice.note(f"{how}The model sees this with your next message.")


def _content(conversation: TerminalConversation, voice: TerminalVoice, text: str) -> tuple[Any, list[str]]:
    """The message for a line and the files it names with @; returns the line to the prompt if a file can't be attached."""
    if "@" not in text:
        return text, []
    try:
        return with_files(text, conversation.agent.cwd, conversation.model.context_length)
    except InvalidInput:
        voice.unsent = text
        raise


def _tell(voice: TerminalVoice, error: HermesError, *, unsent: bool) -> None:
    hint = " (/retry asks again)" if isinstance(error, ModelError) else ""
    if isinstance(error, ContextTooLong):
        hint = " (/model switches to another model; /new starts a new session)"
    voice.screen.print(f"{harmless(str(error))}{hint}", style="red", overflow="fold")
    if isinstance(error, StoreError):
        back = "Your message was not saved; it is back on the input line."
        voice.note(back if unsent else "The reply may not have been saved.")
    voice.screen.print()


def _reader(conversation: TerminalConversation, voice: TerminalVoice) -> Callable[[], str]:
    """The function that reads lines on a terminal."""
    from hermes.chat.input_line import Pastes, prompt_session, readable

    pastes = Pastes()
    home = get_hermes_home() if conversation.saved and not conversation.db.is_encrypted else None
    edge = [""]
    session = prompt_session(conversation, home, pastes, conversation.db.masked, lambda: edge[0])

    def read() -> str:
        edge[0] = _used(conversation)
        with _signals_wake(session):
            unsent, voice.unsent = voice.unsent, ""
            return readable(pastes.expand(session.prompt("❯ ", default=unsent)))

    return read


def _used(conversation: TerminalConversation) -> str:
    """How much of the model's window the conversation fills, for the right end of the prompt; "" before its first message."""
    from hermes.commands.model_commands import context_parts

    try:
        used = sum(context_parts(conversation).values()) if conversation.db.get_session(conversation.session_id) else 0
    except HermesError:  # the store is busy: the prompt does not wait for it
        return ""
    window = conversation.model.context_length if used else 0  # a server may be asked for it
    if not window:
        return ""
    return f"{_thousands(used)} of {_thousands(window)} tokens"


def _thousands(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    return f"{round(count / 1000)}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M".replace(".0M", "M")


@contextmanager
def _signals_wake(session: Any) -> Iterator[None]:
    """While the prompt waits, let SIGTERM and SIGHUP end it through its own exit, so that the terminal is restored."""

    def end(number: int, frame: Any) -> None:
        loop = session.app.loop
        if loop is None:
            raise Terminated(number)
        loop.call_soon_threadsafe(lambda: session.app.exit(exception=Terminated(number)))

    with handled(dict.fromkeys(ENDING, end)):
        yield


def _read_plainly(question: str = "> ") -> str:
    """Read a line if the output is no terminal: the prompt goes to stderr."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
