"""The page's turns: pages follow a turn of the agent as events, may stop it, and answer its questions.

A turn belongs to the server, not to the tab that began it: a page that is loaded again finds it, and two tabs see the same.
The reply so far is rendered as Markdown while it is written, by the code that renders it when it is stored. Leases are obeyed
as by every entry point: while another process answers in a conversation, nothing is sent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.agent.attached_files import MOST_TEXT, AttachedFile, Reader, joined, separated
from hermes.agent.conversations import Conversations, folder_of, new_session_id
from hermes.agent.loop import Agent
from hermes.agent.models.choice import choose_model, model_of_choice
from hermes.agent.tools.permission import Question
from hermes.agent.tools.tool import Toolbox
from hermes.agent.turn import (
    Done,
    Followed,
    Notice,
    PermissionDecided,
    PermissionRequest,
    StreamEvent,
    Text,
    Thought,
    ToolFinished,
    ToolStarted,
    Turn,
    stream_turn,
)
from hermes.agent.turn_session import Also
from hermes.errors import HermesError, InvalidInput, SessionBusy
from hermes.serve.http_messages import ApiError
from hermes.serve.models import Models
from hermes.serve.web.message_html import written
from hermes.store.api.session_db import Transactions
from hermes.texts import encodable, shortened

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB

SOURCE = "web"
IDLE_SECONDS = 600.0  # an agent stays so long after its last turn, with its background processes
_SHOWN = 20_000  # characters of what a question is about
_PAUSE = 0.05  # seconds at least between two pieces of news for a page; more where rendering them takes long
_REMEMBERED = 50  # finished turns that can still be fetched


@dataclass(frozen=True, slots=True)
class Prompt:
    """A visitor's message: a text with files, or nothing (`again`: another reply to the last message).

    `instead_of` is the message that the text replaces, in a branch that begins before it; `model` is chosen for the
    conversation ("": as it is).
    """

    text: str = ""
    files: Sequence[AttachedFile] = ()
    again: bool = False
    instead_of: int = 0
    model: str = ""


class PageTurn:
    """One turn: its events and its reply so far."""

    turn: Turn  # known when `begin` has returned
    task: asyncio.Task[None]  # which runs it

    def __init__(self, session_id: str, by: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.session_id, self.by = session_id, by  # `by`: the visitor who began it
        self.over = False
        self.stored = asyncio.Event()  # the session and the user's message are in the record, or the turn is over
        self.request: PermissionRequest | None = None  # the open question
        self.reply = ""  # as far as it is written, since the last tool
        self._events: list[dict[str, Any]] = []
        self._news = asyncio.Event()  # set, and replaced, when there is something new

    def write(self, reply: str) -> None:
        """Set the reply so far."""
        self.reply = reply
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def post(self, **event: Any) -> None:
        """Add an event, with its number `n`: a browser that was connected again knows which ones it has had."""
        self._events.append({**encodable(event), "n": len(self._events)})
        if event["kind"] in ("done", "error"):
            self.over = True
            self.stored.set()
        self._tell()

    async def follow(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """The events from the beginning, some at a time, to the end of the turn; and the reply as it is written, as HTML:
        the blocks from the first one on that has changed. These have no number: a browser takes the newest."""
        start, text, shown, now = 0, "", list[str](), asyncio.get_running_loop().time
        while not self.over or start < len(self._events):
            news, begun, some, before, text = self._news, now(), self._events[start:], text, self.reply
            start += len(some)
            if any(event["kind"] == "tool" for event in some):
                before, shown = "", []
            if text != before and not self.over:
                drawn = await asyncio.to_thread(written, text)
                pairs = enumerate(zip(shown, drawn, strict=False))
                same = next((at for at, (old, new) in pairs if old != new), min(len(shown), len(drawn)))
                if drawn != shown:
                    some.append({"kind": "html", "from": same, "blocks": drawn[same:]})
                shown = drawn
            if some:
                yield some
            if not self.over:
                await news.wait()
                await asyncio.sleep(max(_PAUSE, 3 * (now() - begun)))


class Talks:
    """The turns of the page's visitors, on one event loop."""

    def __init__(self, db: SessionDB, config: Config) -> None:
        self._db, self._config = db, config
        self._conversations: Conversations[Agent] = Conversations(idle_seconds=IDLE_SECONDS)
        self._running: dict[str, PageTurn] = {}  # by the first session of the conversation
        self._turns: dict[str, PageTurn] = {}
        self._known_models: Models | None = None
        self._toolbox = Toolbox(config)

    def turn(self, turn_id: str) -> PageTurn | None:
        """A turn that runs, or ended a short time ago."""
        return self._turns.get(turn_id)

    def running_in(self, session_id: str) -> PageTurn | None:
        """The turn of this page that runs in a session's conversation. In a thread."""
        return self._running.get(self._name(session_id))

    async def models(self, session_id: str | None) -> dict[str, Any]:
        """The models that can be chosen for a conversation, and the one that answers there."""
        models = await asyncio.to_thread(self._models)
        now = models.main if session_id is None else await asyncio.to_thread(self._model_for, session_id)
        return {"models": await models.names(now.name), "model": now.name}

    async def choose(self, session_id: str, name: str, by: str) -> None:
        """Keep a model with a session."""
        models = await asyncio.to_thread(self._models)
        await models.choose(self._db, session_id, name)
        await asyncio.to_thread(self._db.record_audit, "model", session_id, by=by, detail=name)

    async def begin(self, session_id: str | None, prompt: Prompt, by: str) -> PageTurn:
        """Begin a turn, in a new session (None; it exists then) or at the end of this one's conversation.

        SessionBusy while another process, or another tab, is answering there; then nothing was stored.
        """
        if not prompt.again and not prompt.text.strip() and not prompt.files:
            raise InvalidInput("there is nothing to send: the message is empty")
        name = tip = new_session_id()
        carried: tuple[list[str], list[Any]] = [], []
        if session_id is not None and prompt.instead_of:
            carried = await asyncio.to_thread(self._branched, session_id, tip, prompt.instead_of, by)
        elif session_id is not None:
            tip = await asyncio.to_thread(self._db.get_compression_tip, session_id)
            name = await asyncio.to_thread(self._name, tip)
        if name in self._running:
            raise answering_here()
        page = self._running[name] = PageTurn(tip, by)
        with ExitStack() as undo:  # if the turn can't begin
            undo.callback(self._running.pop, name)
            if prompt.model:
                await self.choose(tip, prompt.model, by)
            await self._conversations.enter(name)  # an idle agent may be closing at this moment
            undo.callback(self._conversations.leave, name)
            agent, content = await asyncio.to_thread(self._agent_and_content, name, page, prompt, carried)
            undo.pop_all()
        loop = asyncio.get_running_loop()

        def keep(session_id: str, content: Any, also: Also) -> int:
            message = {"role": "user", "content": content}
            message_id = Transactions(self._db).store_message(session_id, message, lambda tx, _: also(tx))
            loop.call_soon_threadsafe(page.stored.set)
            return message_id

        page.turn = agent.retry() if prompt.again else agent.turn(content, keep=keep if session_id is None else None)
        self._turns[page.id] = page
        if len(self._turns) > _REMEMBERED and (oldest := next(iter(self._turns.values()))).over:
            del self._turns[oldest.id]
        page.task = asyncio.create_task(self._run(name, page, agent))
        if session_id is None:
            await page.stored.wait()  # the page opens the session next
        return page

    async def answer(self, page: PageTurn, number: str, yes: bool) -> bool:
        """Answer the question of that number; False when it is not (or no longer) open."""
        request = page.request
        if request is None or request.id != number:
            return False
        page.request = None
        await self._audit(page, request, yes)  # before it is done
        if request.answer(yes):
            return True
        await self._audit(page, request, False)  # the turn was stopped at this moment
        return False

    async def close(self, seconds: float = 3.0) -> None:
        """Stop every turn, wait until the replies so far are stored, and close all agents."""
        for page in self._running.values():
            page.turn.interrupt()
        await asyncio.to_thread(self._conversations.close, seconds)
        await asyncio.to_thread(self._toolbox.close)

    # ------------------------------------------------------------------------------------------ one turn

    async def _run(self, name: str, page: PageTurn, agent: Agent) -> None:
        end: dict[str, Any] = {"kind": "done", "interrupted": False}
        try:
            if agent.model.calls_tools and not agent.tools:
                agent.tools = {tool.name: tool for tool in await asyncio.to_thread(self._toolbox.tools)}
            async for event in stream_turn(agent, page.turn):
                if isinstance(event, Done):
                    end["interrupted"] = event.interrupted
                await self._tell(page, event)
        except HermesError as error:
            end = {"kind": "error", "text": str(error)}
        except Exception as error:
            end = {"kind": "error", "text": f"{type(error).__name__}: {error}"}
        finally:
            await asyncio.to_thread(_let_go, agent)
            page.session_id = agent.session_id
            self._conversations.leave(name)
            del self._running[name]
            page.post(**end, **({"session": page.session_id} if end["kind"] == "done" else {}))

    async def _tell(self, page: PageTurn, event: StreamEvent) -> None:
        match event:
            case Text():
                page.write(event.text if event.restarted else page.reply + event.text)
            case Thought():
                page.post(kind="thought", text=event.text)
            case ToolStarted():
                page.write("")
                page.post(kind="tool")
            case ToolFinished():
                page.post(kind="result")
            case Notice():
                page.post(kind="notice", text=event.text)
            case Followed():
                page.session_id = event.session_id
                page.post(kind="followed", session=event.session_id)
            case PermissionRequest():
                page.request = event
                detail = event.question.detail if isinstance(event.question, Question) else ""
                page.post(kind="question", id=event.id, text=event.question, detail=detail[:_SHOWN])
            case PermissionDecided():
                if page.request is not None:  # without an answer
                    page.request = None
                    await self._audit(page, event.request, False)
                page.post(kind="answered", id=event.request.id, yes=event.allowed)

    async def _audit(self, page: PageTurn, request: PermissionRequest, yes: bool) -> None:
        action, about = "allow" if yes else "decline", shortened(request.question, 1000)
        await asyncio.to_thread(self._db.record_audit, action, page.session_id, by=page.by, detail=about)

    # ------------------------------------------------------------------------------------------ in threads

    def _agent_and_content(
        self, name: str, page: PageTurn, prompt: Prompt, carried: tuple[list[str], list[Any]]
    ) -> tuple[Agent, str | list[Any]]:
        """The conversation's agent, which holds the session for a turn, and the content of the message.

        `carried` are the files of the message that this one replaces: their notes, and their parts.
        """
        agent = self._conversations.take(name, page.session_id, lambda: self._agent(page.session_id))
        try:
            agent.model = self._model_for(page.session_id)
            if (who := agent.answering()) is not None:
                raise SessionBusy(page.session_id, who)
            detail = "another reply" if prompt.again else f"a message of {len(prompt.text):,} characters"
            self._db.record_audit("turn", page.session_id, by=page.by, detail=detail)
            reader, room = Reader(self._db, self._config, agent.model), MOST_TEXT // max(1, len(prompt.files))
            read = [reader.read(file, room) for file in prompt.files]
        except BaseException:
            agent.lease.release()
            raise
        notes, parts = [note for note, _ in read], [part for _, part in read if part is not None]
        return agent, joined(prompt.text, [*carried[0], *notes], [*carried[1], *parts])

    def _branched(self, session_id: str, new_id: str, message_id: int, by: str) -> tuple[list[str], list[Any]]:
        """Make a branch that ends before a message of the user's; the files of that message."""
        rows = self._db.get_messages(session_id)
        place = next((at for at, row in enumerate(rows) if row["id"] == message_id and row["role"] == "user"), None)
        if place is None:
            raise InvalidInput(f"this conversation shows no message {message_id} of yours")
        self._db.branch_session(session_id, new_id, at_message=rows[place - 1]["id"] if place else 0)
        self._db.record_audit("branch", session_id, by=by, detail=f"new session {new_id}")
        content = rows[place]["content"]
        parts = [part for part in content if "text" not in part] if isinstance(content, list) else []
        return separated(content)[1], parts

    def _name(self, session_id: str) -> str:
        return self._db.get_compression_chain(session_id)[0]

    def _model_for(self, session_id: str) -> Model:
        """The model chosen for a conversation, at any entry point; else the configured one."""
        return model_of_choice(self._config, self._db.chosen_model(session_id), self._models().main)

    def _models(self) -> Models:
        if self._known_models is None:
            self._known_models = Models(choose_model(self._config, self._db))
        return self._known_models

    def _agent(self, session_id: str) -> Agent:
        cwd = folder_of(self._db, session_id)
        return Agent(self._db, self._config, self._model_for(session_id), session_id=session_id, source=SOURCE, cwd=cwd)


def answering_here() -> ApiError:
    """The error for a change that has to wait for the page's own turn."""
    return ApiError(409, "this page is answering in this conversation; wait for it, or stop it")


def _let_go(agent: Agent) -> None:
    with suppress(HermesError):  # a closed store: the lease expires
        if not agent.background_running():
            agent.lease.release()
