"""Talking through the page: a turn of the agent, which pages follow as events and may stop, and whose questions they answer.

A turn belongs to the server, not to the tab that began it: a page that is loaded again finds it, and two tabs see the same.
The rules of leases are those of every entry point: while another process answers in a conversation, nothing is sent.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.conversations import Conversations, new_session_id
from hermes.agent.turn import (
    Done,
    Event,
    Followed,
    Notice,
    Stop,
    Text,
    Thought,
    ToolFinished,
    ToolStarted,
    Turn,
    run_turn,
)
from hermes.errors import HermesError, InvalidInput, SessionBusy
from hermes.texts import encodable, shortened

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.model import Model
    from hermes.agent.tools.toolbox import Toolbox
    from hermes.config import Config
    from hermes.store.db import SessionDB

SOURCE = "web"
IDLE_SECONDS = 600.0  # an agent stays so long after its last turn, with its background processes
ANSWER_SECONDS = 600.0  # after this time without an answer, the answer is no
_PATIENCE = 10.0  # seconds
_LOOK = 0.2  # seconds between two checks whether a turn that asks was stopped
_SHOWN = 20_000  # characters of a tool's output that are streamed; the record has all
_REMEMBERED = 50  # turns that are over and can still be asked for


class PageTurn:
    """One turn: its events so far, and those who follow them."""

    def __init__(self, session_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.id = secrets.token_urlsafe(12)
        self.session_id = session_id
        self.over = False
        self.interrupted = False
        self.stop = Stop()
        self._loop = loop
        self._events: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._question: tuple[str, threading.Event, list[bool]] | None = None

    def post(self, **event: Any) -> None:
        """Add an event. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._add, encodable(event))
        except RuntimeError:
            pass  # the program exits; the record has everything

    def _add(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        self.over = self.over or event["kind"] in ("done", "error")
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, start: int = 0) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
        """The events from a place on, some at a time, each time with the place after them; ends with the turn."""
        while True:
            news, some = self._news, self._events[start:]
            if some:
                start += len(some)
                yield start, some
            if self.over and start >= len(self._events):
                return
            if news is self._news:
                await news.wait()

    # ------------------------------------------------------------------------------------------ questions

    def ask(self, question: str) -> bool:
        """Ask on the open pages, from the turn's thread; no without an answer in time, or when the turn is stopped."""
        number, answered, given = secrets.token_urlsafe(6), threading.Event(), list[bool]()
        self._question = number, answered, given
        self.post(kind="question", id=number, text=question)
        left = ANSWER_SECONDS
        while not answered.wait(_LOOK) and left > 0 and not self.stop.wanted:
            left -= _LOOK
        self._question = None
        yes = bool(given and given[0])
        self.post(kind="answered", id=number, yes=yes)
        return yes

    def answer(self, number: str, yes: bool) -> bool:
        """Answer the question of that number; False when it is not (or no longer) asked."""
        asked = self._question
        if asked is None or asked[0] != number or asked[1].is_set():
            return False
        asked[2].append(yes)
        asked[1].set()
        return True


class Talks:
    """The turns of the page's visitors."""

    def __init__(self, db: SessionDB, config: Config) -> None:
        self._db, self._config = db, config
        self._lock = threading.Lock()
        self._conversations: Conversations[Agent] = Conversations(idle_seconds=IDLE_SECONDS)
        self._running: dict[str, PageTurn] = {}  # by the first session of the conversation
        self._turns: OrderedDict[str, PageTurn] = OrderedDict()
        self._model: Model | None = None
        self._toolbox: Toolbox | None = None

    def turn(self, turn_id: str) -> PageTurn | None:
        """A turn that runs, or was over a short time ago."""
        return self._turns.get(turn_id)

    def running_in(self, session_id: str) -> PageTurn | None:
        """The turn of this page that runs in a session's conversation."""
        return self._running.get(self._name(session_id))

    def begin(self, session_id: str | None, text: str, by: str, loop: asyncio.AbstractEventLoop) -> PageTurn:
        """Begin a turn, in a new session (None) or at the end of this one's conversation. Not on the event loop.

        SessionBusy while another process, or another tab, is answering there; then nothing was stored.
        """
        if not text.strip():
            raise InvalidInput("there is nothing to send: the message is empty")
        tip = new_session_id() if session_id is None else self._db.get_compression_tip(session_id)
        name = tip if session_id is None else self._name(tip)
        turn = PageTurn(tip, loop)
        with self._lock:
            if name in self._running:
                raise SessionBusy(tip, "this page")
            self._running[name] = turn
        agent: Agent | None = None
        try:
            self._conversations.queue(name).result(_PATIENCE)  # an idle agent may be closing at this moment
            agent = self._conversations.take(name, tip, lambda: self._agent(tip))
            agent.model = self._model_for(tip)
            if (who := agent.answering()) is not None:
                raise SessionBusy(tip, who)
            self._follow_questions(turn, agent, by)
            self._db.record_audit("turn", tip, by=by, detail=f"a message of {len(text):,} characters")
        except BaseException:
            if agent is not None:
                agent.let_go()
            self._conversations.leave(name)
            self._running.pop(name, None)
            raise
        with self._lock:
            self._turns[turn.id] = turn
            while len(self._turns) > _REMEMBERED and next(iter(self._turns.values())).over:
                self._turns.popitem(last=False)
        run_turn(lambda: self._begun(turn, agent, text), _teller(turn), lambda error: self._over(name, turn, agent, error),
                 name="hermes-web-turn")  # fmt: skip
        if session_id is None:
            self._await_row(turn)
        return turn

    def close(self, seconds: float = 3.0) -> None:
        """Stop every turn, wait until the replies so far are stored, and close all agents."""
        for turn in list(self._running.values()):
            turn.stop.want()
        pause = threading.Event()
        while self._running and seconds > 0:
            pause.wait(0.05)
            seconds -= 0.05
        self._conversations.close(1.0)
        if self._toolbox is not None:
            self._toolbox.close()

    # ------------------------------------------------------------------------------------------ in threads

    def _await_row(self, turn: PageTurn) -> None:
        """Wait until the turn has made its session: the page opens it next."""
        pause, left = threading.Event(), _PATIENCE
        while left > 0 and not turn.over and self._db.get_session(turn.session_id) is None:
            pause.wait(0.02)
            left -= 0.02

    def _name(self, session_id: str) -> str:
        return self._db.get_compression_chain(session_id)[0]

    def _model_for(self, session_id: str) -> Model:
        """The model chosen for a conversation, in whatever place; else the configured one."""
        from hermes.agent.model_choice import choose_model, model_of_choice

        with self._lock:
            if self._model is None:
                self._model = choose_model(self._config, self._db)
            main = self._model
        return model_of_choice(self._config, self._db.chosen_model(session_id), main)

    def _agent(self, session_id: str) -> Agent:
        from hermes.agent.loop import Agent

        row = self._db.get_session(session_id)
        folder = Path(row["cwd"]) if row is not None and row["cwd"] else Path.cwd()
        cwd = folder if folder.is_dir() else Path.cwd()
        return Agent(self._db, self._config, self._model_for(session_id), session_id=session_id, source=SOURCE, cwd=cwd)

    def _begun(self, turn: PageTurn, agent: Agent, text: str) -> Turn:
        if agent.model.calls_tools and not agent.tools:
            agent.tools = {tool.name: tool for tool in self._tools()}
        return turn.stop.bind(agent.turn(text))

    def _tools(self) -> list[Any]:
        from hermes.agent.tools.toolbox import Toolbox

        with self._lock:
            if self._toolbox is None:
                self._toolbox = Toolbox(self._config)
        return self._toolbox.tools()

    def _follow_questions(self, turn: PageTurn, agent: Agent, by: str) -> None:
        """From now on, the agent asks those who follow this turn."""

        def confirmed(question: str) -> bool:
            yes = turn.ask(question)
            said = "allow" if yes else "decline"
            self._db.record_audit(said, agent.session_id, by=by, detail=shortened(question, 1000))
            return yes

        agent.confirm = confirmed

    def _over(self, name: str, turn: PageTurn, agent: Agent, error: BaseException | None) -> None:
        try:
            if not agent.background_running():
                agent.let_go()
        except HermesError:
            pass  # a closed store: the lease expires
        self._conversations.leave(name)
        self._running.pop(name, None)
        turn.session_id = agent.session_id
        if error is not None:
            known = isinstance(error, HermesError)
            turn.post(kind="error", text=str(error) if known else f"{type(error).__name__}: {error}")
        else:
            turn.post(kind="done", session=turn.session_id, interrupted=turn.interrupted)


def _teller(turn: PageTurn) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        match event:
            case Text():
                turn.post(kind="text", text=event.text, anew=event.anew)
            case Thought():
                turn.post(kind="thought", text=event.text)
            case ToolStarted():
                turn.post(kind="tool", id=event.call_id, name=event.name, given=event.arguments)
            case ToolFinished():
                turn.post(kind="result", id=event.call_id, ok=event.ok, text=event.text[:_SHOWN],
                          outcome=event.outcome or "done", seconds=round(event.seconds, 2))  # fmt: skip
            case Notice():
                turn.post(kind="notice", text=event.text)
            case Followed():
                turn.session_id = event.session_id
                turn.post(kind="followed", session=event.session_id)
            case Done():
                turn.interrupted = event.interrupted

    return tell
