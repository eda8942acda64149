"""A conversation in a terminal: its agent and session, and switching to another session.

This is the Host of the slash commands. The Voice shows and asks, so that the same conversation serves a person at a prompt and
a single question in a pipe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from hermes.agent.conversations import Conversations, new_session_id
from hermes.agent.tools.tool import Toolbox
from hermes.chat import resume
from hermes.chat.turn_display import TurnDisplay
from hermes.commands.registry import TERMINAL, sent_text
from hermes.commands.session_commands import USER_EXIT
from hermes.errors import HermesError, InvalidInput
from hermes.store.records.sessions import CONFIGURED
from hermes.texts import content_text

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.models.model import Model
    from hermes.agent.tools.permission import Answer
    from hermes.agent.turn import Stop, Turn
    from hermes.agent.turn_session import Content
    from hermes.chat.keyboard import Typing
    from hermes.chat.render import TerminalDisplay
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User


WRITE_TO_THE_HOME = ("memory", "skills")  # tools that keep something beside the record
TITLE_SECONDS = 10.0  # seconds for the title of a session on leaving
WAITING = "Another process is answering in this conversation ({}); waiting…"


class NotSent(KeyboardInterrupt):
    """Ctrl-C while another process was answering in the session: nothing was sent."""


class Voice:
    """The conversation's output to the user, and its questions; what a voice leaves out does nothing, or answers None."""

    def say(self, text: str) -> None:
        """Print a text."""

    def note(self, text: str) -> None:
        """Print a side note, in one line."""

    def ask(self, question: str) -> bool:
        """Ask a question with the answers yes and no."""
        raise NotImplementedError

    def permission(self, question: str) -> bool | Answer:
        """Ask in the middle of a turn whether a tool may do something."""
        raise NotImplementedError

    def choose(self, question: str, options: Sequence[str], says: Sequence[str] = ()) -> int | None:
        """Let the user choose one of these options; its number."""

    def clear(self) -> None:
        """Clear the screen, where there is one."""

    def typing(self) -> Typing | None:
        """The type-ahead during a turn; None without a keyboard."""

    def display(self, *, reasoning: bool = False) -> TerminalDisplay:
        """The display of a turn; with the model's reasoning, or a line about it."""
        raise NotImplementedError

    def recap(self, db: SessionDB, session_id: str, config: Config) -> None:
        """Show the end of a conversation that goes on."""


class ChatOptions(TypedDict, total=False):
    """How a conversation is held, as the command line says."""

    yes: bool  # every question is answered with yes
    keep_model: bool  # a resumed session gets the model of the command line
    restore_cwd: bool  # a resumed session continues in its folder (the default)
    system: str | None  # the system prompt of a new session
    saved: bool  # whether the conversation is stored (the default)
    note: str | None  # shown when the first session is opened


class TerminalConversation:
    """One person, one agent, one session at a time."""

    where = TERMINAL
    platform = "cli"
    user: User | None = None
    is_owner = True
    stop: Stop | None = None  # set by Ctrl-C
    place = None
    stopped = False
    shows_reasoning = False  # /reasoning show
    end_reason = USER_EXIT

    def __init__(
        self,
        db: SessionDB,
        config: Config,
        model: Model,
        voice: Voice,
        *,
        titles_by_model: bool = True,
        **options: Unpack[ChatOptions],
    ) -> None:
        self.db, self.config, self.voice = db, config, voice
        self.say, self.ask, self.choose, self.clear = voice.say, voice.ask, voice.choose, voice.clear
        self.pending_title: str | None = None
        note = options.get("note")
        self.notes = [note] if note else []  # shown when the next session is opened
        self.leaving = False
        self._ending = True  # end the session on leaving; False when it continues elsewhere
        self.since = time.time()
        self.default_model = model
        self._options, self._yes, self._titles_by_model = options, options.get("yes", False), titles_by_model
        self.saved = options.get("saved", True)
        self._toolbox = Toolbox(config)
        self._toolbox.start()
        self._shown: TurnDisplay | None = None  # the turn on the screen
        self._agents: Conversations[Agent] = Conversations(patience=TITLE_SECONDS)
        self.agent = self._agent_of(new_session_id(), model, Path.cwd())

    # ------------------------------------------------------------------------------------------ agent and session

    def _agent_of(self, session_id: str, model: Model, cwd: Path) -> Agent:
        """The agent of a session, in place of the previous one. It gets its tools with the first turn."""
        from hermes.agent.loop import Agent

        def make() -> Agent:
            agent = Agent(
                self.db, self.config, model, session_id=session_id, source=self.platform, confirm=self._confirm,
                user=self.user, cwd=cwd,
            )  # fmt: skip
            agent.titles_by_model, agent.titles = self._titles_by_model, self.saved
            agent.system = self._options.get("system")
            agent.expected_tools = self._toolbox.known
            return agent

        self._agents.drop(self.platform)
        return self._agents.take(self.platform, session_id, make)

    def _equip(self) -> None:
        if self.agent.tools or not self.agent.model.calls_tools:
            return
        written = () if self.saved else WRITE_TO_THE_HOME
        self.agent.tools = {tool.name: tool for tool in self._toolbox.tools() if tool.name not in written}
        for problem in self._toolbox.problems:
            self.voice.note(problem)
        self._toolbox.problems = []

    @property
    def model(self) -> Model:
        return self.agent.model

    def choose_model(self, name: str | None) -> None:
        self.db.choose_model(self.session_id, name or CONFIGURED)

    @property
    def session_id(self) -> str:
        return self.agent.session_id

    def _confirm(self, question: str) -> bool | Answer:
        return self._yes or (self._shown is not None and self._shown.confirm(question))

    # ------------------------------------------------------------------------------------------ turns

    def talk(self, content: Content) -> bool:
        """Send a message and show the reply; True when it was interrupted."""
        return self._run(self.agent.turn(content))

    def show(self, turn: Turn) -> None:
        self._run(turn)

    def is_stored(self, line: str) -> bool:
        """Whether a typed line is the user's last message."""
        with suppress(HermesError):
            rows = [row for row in self.db.get_messages(self.session_id) if row["role"] == "user"]
            return bool(rows) and content_text(rows[-1]["content"]).startswith(sent_text(line))
        return False

    def _run(self, turn: Turn) -> bool:
        self._equip()
        self._wait_for_turn()
        self._shown = TurnDisplay(
            turn, self.voice.display(reasoning=self.shows_reasoning), self.voice.permission,
            each=self._name_it, typing=self.voice.typing(), typed_stops=_busy(self.config) == "interrupt",
        )  # fmt: skip
        try:
            return self._shown.run()
        finally:
            self._shown = None
            self._name_it()

    def _wait_for_turn(self) -> None:
        """Wait until no other process answers in this session; NotSent when the user presses Ctrl-C."""
        try:
            self.agent.wait_for_turn(lambda who: self.voice.note(WAITING.format(who)), time.sleep)
        except KeyboardInterrupt:
            raise NotSent from None

    def _name_it(self) -> None:
        """Give the session the title that was chosen before it existed."""
        if self.pending_title is None or self.db.get_session(self.session_id) is None:
            return
        from hermes.agent.titler import set_chosen_title

        wanted, self.pending_title = self.pending_title, None
        name = set_chosen_title(self.db, self.session_id, wanted, self.user)
        if name != wanted:
            self.voice.note(f'"{wanted}" is already taken; this session is called "{name}".')

    # ------------------------------------------------------------------------------------------ switching sessions

    def open(self, session_id: str) -> bool:
        """Continue a session: its history, model and folder. False when it is open elsewhere and the user declines."""
        if resume.is_elsewhere(self.db, session_id):
            copy = self._branch_instead(session_id)
            if copy is None:
                return False
            session_id = copy
        row = self.db.get_session(session_id)
        if row is None:
            raise InvalidInput(f"session {session_id} no longer exists")
        is_branch = row["parent_session_id"] == self.session_id  # of the current session: everything stays as it is
        if is_branch:
            back = resume.Restored(self.agent.cwd, self.agent.model)
        else:
            chosen = self.db.chosen_model(session_id)
            back = resume.restore(
                row, self.default_model,
                cwd=self._options.get("restore_cwd", True), keep_model=self._options.get("keep_model", False),
                used=resume.model_used(self.db, row) if chosen is None else chosen,
            )  # fmt: skip
        self.agent = self._agent_of(session_id, back.model, back.cwd)
        self.agent.hold()
        self.db.reopen_session(session_id)
        self.pending_title = None
        if not is_branch:
            self.voice.recap(self.db, session_id, self.config)
        for notice in (*self.notes, *back.notices):
            self.voice.note(notice)
        self.notes.clear()
        return True

    def _branch_instead(self, session_id: str) -> str | None:
        question = f"Session {session_id} is open in another process. Continue in a branch of it?"
        if not (self._yes or self.voice.ask(question)):
            return None
        branch = self.db.branch_session(session_id, new_session_id())
        if self._yes:
            self.voice.note(f"Session {session_id} is open in another process; continuing in its branch {branch}.")
        return branch

    def switch(self, session_id: str | None, *, ending: str | None) -> None:
        old = self.session_id
        if session_id is not None:
            if not self.open(session_id):
                self.say("Staying here.")
                return
        else:
            self.agent, self.pending_title = self._agent_of(new_session_id(), self.default_model, Path.cwd()), None
        if ending is not None and old != self.session_id:
            self.db.end_session(old, ending)
        self.since = time.time()

    def follow(self, session_id: str) -> None:
        self.agent.session_id = session_id
        self.agent.hold()

    # ------------------------------------------------------------------------------------------ leaving

    def leave(self, *, ending: bool = True) -> None:
        self.leaving = True
        self._ending = ending

    def close(self) -> list[str]:
        """End the session and release everything; returns the lines to show."""
        session_id = self.session_id
        if self._ending:
            self.db.end_session(session_id, self.end_reason)
        slow = threading.Timer(1.0, self.voice.note, ["Waiting for the session's title; Ctrl-C leaves at once."])
        slow.daemon = True
        if self._titles_by_model:
            slow.start()
        try:
            self._agents.drop(self.platform)
        except KeyboardInterrupt:
            pass  # the user does not want to wait for a title
        finally:
            slow.cancel()
            self._toolbox.close()
        return resume.farewell(self.db, session_id, self.since) if self._ending and self.saved else []


def _busy(config: Config) -> str:
    """The effect of a line typed during a reply: `interrupt` it, or `queue` (config: display.busy)."""
    return str(config.display.platforms.get(TerminalConversation.platform, {}).get("busy", config.display.busy))


def folder_is_there() -> None:
    """InvalidInput if the shell's current folder was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InvalidInput("this folder no longer exists; change to another one and try again") from None
