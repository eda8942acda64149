"""Participants: the person who speaks in a conversation on a platform, in which session, with which agent.

Turns, slash commands and resets see the gateway through this: `Services` holds the parts of it that they use. There is one
agent for each active conversation, kept for a while, never shared: its tools depend on who speaks. Only the owner's reach into
the machine, and the memory of each person lies in that person's own folder. The owner's commands (`hooks:`) run when a session
ends or is reset, with the session as JSON on standard input.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.conversations import Conversations, new_session_id
from hermes.agent.loop import Agent
from hermes.agent.titler import set_chosen_title
from hermes.agent.tools.permission import NO_USER, Answer
from hermes.agent.tools.tool import Toolbox
from hermes.commands.registry import GATEWAY
from hermes.errors import ContextTooLong, Fenced, ModelError, StoreClosed, StoreError
from hermes.gateway.chats.media import file_tool
from hermes.gateway.chats.router import is_proven
from hermes.gateway.events import DM, Chat, Choice, Event, Sender, as_json, from_json
from hermes.gateway.flow.turns import PendingQuestion, buttons, wording
from hermes.gateway.notices import language_of, say
from hermes.store.gateway import inbox, routes
from hermes.store.gateway.gateway_db import newest_session
from hermes.store.gateway.outbox import PendingNotice
from hermes.store.records.sessions import CONFIGURED
from hermes.texts import shortened_line

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.agent.turn import Stop, Turn
    from hermes.config import Config
    from hermes.gateway.chats.access import Access
    from hermes.gateway.chats.router import Router, SessionsIndex
    from hermes.gateway.flow.inbox import Request
    from hermes.gateway.flow.outbox import Outbox
    from hermes.gateway.flow.streaming import StreamedReply
    from hermes.gateway.flow.turns import Conversation
    from hermes.gateway.settings import Timings
    from hermes.store.api.session_db import SessionDB
    from hermes.store.gateway.gateway_db import GatewayDB
    from hermes.store.gateway.routes import Route
    from hermes.store.records.rows import SessionRow
    from hermes.store.records.visibility import User


class ChatAgent(Agent):
    """An agent of a conversation in a chat."""

    chosen_early = False  # whether its model was chosen before the session's first message


class Agents(Conversations[ChatAgent]):
    """Agents by session key."""

    def __init__(self, db: SessionDB, config: Config, model: Model, home: Path) -> None:
        super().__init__()
        self._db, self._config, self._home = db, config, home
        self.model = model
        self.toolbox = Toolbox(config)

    def of(
        self, key: str, session_id: str, *, source: str, home: Path, confirm: Callable[[str], bool | Answer], user_id: str | None,
        parent: str | None = None,
    ) -> ChatAgent:  # fmt: skip
        """The agent for a session under a key; one that talked in another session there is closed."""

        def make() -> ChatAgent:
            model, early = self._chosen(key, session_id)
            agent = ChatAgent(
                self._db, self._config, model, session_id=session_id, source=source, confirm=confirm, home=home,
                cwd=Path.home(), user_id=user_id, parent_session_id=parent, kind="reset" if parent else None,
            )  # fmt: skip
            agent.gathers, agent.chosen_early = True, early
            return agent

        return self.take(key, session_id, make)

    def _chosen(self, key: str, session_id: str) -> tuple[Model, bool]:
        """The model chosen for a conversation, else the configured one; and whether it was chosen before the first message."""
        name = self._db.chosen_model(session_id)
        early = name is None and (name := self._db.chosen_model(key)) is not None
        from hermes.agent.models.choice import model_of_choice

        return model_of_choice(self._config, name, self.model), early

    def close(self, seconds: float = 5.0) -> None:
        """Close all agents and the tools within this time; what takes longer is abandoned."""
        closing = threading.Thread(target=self.toolbox.close, daemon=True)
        closing.start()
        end = time.monotonic() + seconds
        super().close(seconds)
        closing.join(max(0.0, end - time.monotonic()))


def home_of(home: Path, platform: str, who: str | None, *, owner: bool) -> Path:
    """The folder with an agent's memory of a person: the owner's home, or a folder of the person's own below it.

    Two people never get one folder, whatever their ids are and however a file system reads names.
    """
    if owner:
        return home
    import hashlib
    import re

    shown = re.sub(r"[^A-Za-z0-9@+_-]+", "-", who or "everyone")[:60].strip("-")
    exact = hashlib.sha256(b"" if who is None else b":" + who.encode(errors="surrogatepass")).hexdigest()[:16]
    return home / "people" / re.sub(r"[^a-z0-9_-]+", "-", platform) / f"{shown}-{exact}".lstrip("-")


_log = logging.getLogger("hermes.gateway")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a gateway that turns and commands use."""

    db: SessionDB
    store: GatewayDB
    config: Config
    home: Path
    clock: Callable[[], float]
    halted: threading.Event  # the gateway is stopping
    access: Access
    agents: Agents
    router: Router
    outbox: Outbox
    index: SessionsIndex
    timings: Timings

    @property
    def stopping(self) -> bool:
        """Whether the gateway is about to end."""
        return self.halted.is_set()

    def persist(self, fence: tuple[str, int], place: str, work: Callable[[], None]) -> None:
        """Do this under a lease, again while the store is busy or full: no message is dropped. Ends when the gateway stops."""
        pause = 0.5
        while True:
            try:
                with self.db.fenced(*fence):
                    return work()
            except StoreClosed:
                return None
            except StoreError as error:
                if isinstance(error, Fenced) and error.lease == fence[0]:
                    _log.warning("%s is now answered by another gateway: %s", place, error)
                    return None
                _log.error("a message in %s waits for the store: %s", place, error)
                if self.halted.wait(pause):
                    return None
                pause = min(30.0, pause * 2)

    def ended(self, session_id: str, reason: str) -> None:
        """Run the user's hooks for the end of a session."""
        session = self.db.get_session(session_id)
        run_hook(self.config, FINALIZE, session, reason=reason)
        if reason in RESETS:
            run_hook(self.config, RESET, session, reason=reason)


class Participant:
    """A person in a conversation, for the time of one turn or command.

    `sender` is None for the gateway's own actions; then it sees what the person the key belongs to may see.
    """

    def __init__(
        self, services: Services, talk: Conversation | None, route: Route | None, sender: Sender | None, *,
        session_id: str | None = None,
    ) -> None:  # fmt: skip
        assert route is not None
        self._services = services
        self._talk = talk  # None: for an action without a message
        self.route = route
        self.sender = sender
        self._session_id = session_id
        self._agent: ChatAgent | None = None
        self.answers: Event | None = None  # the event that is being answered
        self.seen_by: tuple[str, str] | None = None  # cache: a session, and the user who may see it

    @property
    def chat(self) -> Chat:
        """The chat it takes place in."""
        return from_json(self.route.chat, Chat)

    @property
    def is_owner(self) -> bool:
        """Whether the owner of this machine speaks or, without a sender, whether it is the owner's conversation."""
        return self._services.access.is_owner(self.route.platform, self._who)

    @property
    def user(self) -> User | None:
        """The user whose sessions are visible; None: the owner, who sees all."""
        return self._services.access.user(self.route.platform, self._who)

    @property
    def _who(self) -> Sender:
        if self.sender is not None:
            return self.sender
        return Sender(user_id=self.route.user_id, proven=is_proven(self.route.key))

    @property
    def language(self) -> str | None:
        """The language of the conversation: of the message that is answered, else of the first one, else of the person."""
        session = self._services.db.get_session(self.session_id)
        texts = [self.answers.words if self.answers else None, session["preview"] if session else None]
        return language_of(texts, self._who.language)

    @property
    def session_id(self) -> str:
        """The current session; a new id if there is none yet."""
        if self._agent is not None:
            return self._agent.session_id
        if self._session_id is None:
            known = self.route.session_id
            tip = None if known is None else self._services.store.read(newest_session, known)
            self._session_id = new_session_id(gateway=True) if tip is None else tip
        return self._session_id

    @property
    def agent(self) -> ChatAgent:
        """The agent that answers, with the tools this person may use."""
        if self._agent is None:
            services, route = self._services, self.route
            whose = None if route.shared else self._who.id
            home = home_of(services.home, route.platform, whose or route.key, owner=self.is_owner and not route.shared)
            self._agent = services.agents.of(
                route.key, self.session_id, source=route.platform, home=home, confirm=self.permission,
                user_id=None if route.shared else route.user_id, parent=route.previous_id,
            )  # fmt: skip
            self._agent.context.user = self.user
            self._agent.context.home = home
            self._agent.confirm = self.permission
            self._agent.shared = route.shared
            settings = services.router.settings.get(self.chat.connection)
            self._agent.private = self.chat.type == DM
            self._agent.recall_key = f"recall_off:{route.key}"
            self._agent.recalls = not services.db.get_meta(self._agent.recall_key)
            self._agent.titles = settings is None or settings.titles
            self._agent.tools = {tool.name: tool for tool in services.agents.toolbox.tools(owner=self.is_owner)}
            if (tool := file_tool(services, self)) is not None:
                self._agent.tools[tool.name] = tool
        return self._agent

    def moved(self) -> None:
        """The conversation continues in another session, which the route points to already."""
        self.route.session_id = self.session_id

    def follow(self, session_id: str) -> None:
        """The conversation continues in another session after a compression, with its background processes."""
        self._services.store.write(routes.follow, self.session_id, session_id)
        if self._agent is not None:
            self._agent.session_id = session_id
        self._session_id = self.route.session_id = session_id

    @property
    def pending_title(self) -> str | None:
        """The title for a session that has no message yet; it survives the process."""
        return self.route.pending_title

    @pending_title.setter
    def pending_title(self, title: str | None) -> None:
        self.route.pending_title = title
        self._services.store.set_pending_title(self.route.key, title)

    def name_it(self) -> None:
        """Give the session the title that was chosen before it existed."""
        wanted, db = self.route.pending_title, self._services.db
        if wanted is None or db.get_session(self.session_id) is None:
            return
        self.pending_title = None
        set_chosen_title(db, self.session_id, wanted, self.user)

    def choose_model(self, name: str | None) -> None:
        """Keep the choice of a model (None: the configured one) with the session or, before its first message, with the chat."""
        db = self._services.db
        if db.get_session(self.session_id) is not None:
            db.choose_model(self.session_id, name or CONFIGURED)
        else:
            db.choose_model(self.route.key, name)
            self.agent.chosen_early = name is not None

    def begun(self) -> None:
        """Move choices made before the session existed to the session."""
        self.name_it()
        agent, db = self.agent, self._services.db
        if agent.chosen_early and db.get_session(self.session_id) is not None:
            db.begin_with_choice(self.route.key, self.session_id)
            agent.chosen_early = False

    def permission(self, question: str) -> bool | Answer:
        """Ask for a tool, as `confirm` does. In the background there is no one to ask, and the rules decide alone.

        The person's messages then go to the conversation beside it.
        """
        if self.sender is None or self._talk is None:
            return NO_USER
        return self.confirm(question)

    def confirm(self, question: str) -> bool:
        """Ask the person who began this turn; no, without an answer within five minutes."""
        if self.sender is None or self._talk is None:
            return False
        patience = self._services.timings.answer
        pending = PendingQuestion(self.sender.id)
        self._talk.question = pending
        try:
            self._services.outbox.post(
                self.chat, wording(question, patience, self.language), asks=True, answers=self.answers,
                choices=buttons(pending, self.language),
            )  # fmt: skip
            return pending.wait(self.agent.context.cancelled, patience)
        finally:
            self._talk.question = None

    def switch(self, session_id: str | None, *, ending: str | None) -> None:
        """Continue in another session (None: a new one)."""
        services, key = self._services, self.route.key
        old = self.session_id
        services.agents.drop(key)
        self._agent, self._session_id = None, session_id
        if self.route.pending_title is not None:  # it was meant for the new session here
            self.pending_title = None
        if services.db.chosen_model(key) is not None:  # so was the model
            services.db.choose_model(key, None)
        if session_id is None:
            services.store.write(routes.release, key)
            self.route.session_id = None
        else:
            part = services.store.bind(key, session_id, notice=taken_from(services, session_id, self.sender))
            if part is not None:
                services.outbox.send(part)
            services.db.reopen_session(session_id)
            self.route.session_id = session_id
        self.route.previous_id = self.route.reset_reason = None
        if ending is not None and old != session_id and services.db.get_session(old) is not None:
            services.db.end_session(old, ending)
            services.ended(old, ending)

    def wait_for_turn(self) -> bool:
        """Wait, with a notice, until no other process answers in the session; False when the gateway stops before."""

        def waiting(who: str) -> None:
            _log.info("%s waits: %s answers in session %s", self.route.key, who, self.session_id)
            text = say("waiting", self.language, who=who)
            self._services.outbox.post(self.chat, text, answers=self.answers)

        return self.agent.wait_for_turn(waiting, self._services.halted.wait)

    def release(self) -> None:
        """Release the session between turns, so that other processes may use it."""
        if self._agent is not None:
            self._agent.lease.release()


def taken_from(services: Services, session_id: str, by: Sender | None) -> PendingNotice | None:
    """The notice for the chat whose session another person resumes elsewhere; None if no other person's chat has it.

    `by` is the person who resumes it; None: the owner in a terminal.
    """
    route = services.store.read(routes.of_session, session_id)
    if route is None or (not route.shared and route.user_id is None):
        return None
    owners = services.access.owners(route.platform)
    same = route.user_id in owners if by is None else route.user_id in (by.user_id, by.stable_id)
    if not route.shared and same:
        return None
    session = services.db.get_session(session_id)
    title, language = (session["title"], language_of([session["preview"]])) if session else (None, None)
    chat = from_json(route.chat, Chat)
    place = services.router.delivered_to(chat)
    text = say("taken", language, name=f'"{title}"' if title else session_id, session=session_id)
    return PendingNotice(place.connection, as_json(place), text, services.outbox.new_nonce())


class ChatHost(Participant):
    """The gateway as a slash command sees it (see commands.registry.Host)."""

    where = GATEWAY

    def __init__(
        self, services: Services, talk: Conversation, route: Route | None, request: Request, session_id: str | None,
        listen: Callable[[Participant, StreamedReply, Turn], str | None], share: Callable[[Participant], None],
    ) -> None:  # fmt: skip
        super().__init__(services, talk, route, request.event.sender, session_id=session_id)
        self.answers: Event = request.event
        self.answered = False  # the event was finished together with a reply
        self._request = request
        self.stop: Stop | None = request.stop
        self._listen = listen
        self._share = share
        self.platform = self.chat.connection
        self.config = services.config
        self.db = services.db

    @property
    def model(self) -> Model:
        return self.agent.model

    @property
    def default_model(self) -> Model:
        return self._services.agents.model

    @property
    def chat(self) -> Chat:
        return self.answers.chat

    @property
    def stopped(self) -> bool:
        return self._request.stops

    @property
    def place(self) -> str | None:
        return as_json(self.chat)

    def say(self, text: str) -> None:
        self._services.outbox.post(self.chat, text, answers=self.answers, session=self.route.session_id)

    def ask(self, question: str) -> bool:
        return self.confirm(question)

    def choose(self, question: str, options: Sequence[str], says: Sequence[str] = ()) -> int | None:
        text = "\n".join([question, "", *options, "", "`/resume` with an id or a title continues one."])
        buttons = [
            Choice(label=shortened_line(one.removeprefix("- ").rpartition(" · ")[0] or one, 60), says=line)
            for one, line in zip(options, says, strict=False)
        ]
        self._services.outbox.post(self.chat, text, answers=self.answers, choices=buttons)
        return None

    def show(self, turn: Turn) -> None:
        """Show a turn as a reply. From here on it is resumed after a kill, like any other."""
        request, services = self._request, self._services
        if not self.wait_for_turn():
            self.answered = True  # by the next process, which reports that it was interrupted
            return
        services.store.write(inbox.begin, request.inbox_id, self.session_id)
        reply = services.outbox.reply(request)
        services.outbox.begin(reply)
        try:
            try:
                text = self._listen(self, reply, request.stop.bind(turn))
            except ModelError as error:
                text = f"⚠️ {error}\n\n{hint_after(error, self.language)}"
            self.answered = True
            if text is not None:  # None: the gateway is stopping; the next process resumes the turn
                services.outbox.finish(reply, text)
        finally:
            services.outbox.abandon(reply)

    def switch(self, session_id: str | None, *, ending: str | None) -> None:
        super().switch(session_id, ending=ending)
        if session_id is not None:
            self._share(self)

    @property
    def stopping(self) -> bool:
        """Whether a command that waits here should stop waiting."""
        return self._services.stopping

    def clear(self) -> None:
        """Do nothing: a chat's messages stay where they are."""

    def leave(self, *, ending: bool = True) -> None:
        """Do nothing: a chat has no exit."""


def hint_after(error: ModelError, language: str | None) -> str:
    """A hint for a chat in which the model did not answer."""
    return say("hint_new" if isinstance(error, ContextTooLong) else "hint_retry", language)


# ------------------------------------------------------------------------------------------ the user's own commands

FINALIZE, RESET = "on_session_finalize", "on_session_reset"
RESETS = ("idle", "daily")  # the reasons of a reset
TIMEOUT = 60.0


def run_hook(
    config: Config, name: str, session: SessionRow | None, *, timeout: float = TIMEOUT, **more: Any
) -> threading.Thread | None:
    """Run a hook in the background; a failure only goes to the log."""
    command = config.hooks.get(name)
    if not command or session is None:
        return None
    data = json.dumps({**session, **more}, default=str).encode()
    thread = threading.Thread(target=_run, args=(name, command, data, timeout), name=f"hermes-{name}", daemon=True)
    thread.start()
    return thread


def _run(name: str, command: str | list[str], data: bytes, timeout: float) -> None:
    """Run it until it ends, or to the time limit; then its children are killed, too. Its standard error goes to the log."""
    with tempfile.TemporaryFile() as errors:
        try:
            started = subprocess.Popen(
                command, shell=isinstance(command, str), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            _log.error("the hook %s could not be started: %s", name, error)
            return
        try:
            started.communicate(data, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            _log.error("the hook %s did not end within %g s and was killed", name, timeout)
            return
        if started.returncode != 0:
            errors.seek(0, os.SEEK_END)
            errors.seek(max(0, errors.tell() - 200))
            output = errors.read().decode(errors="replace").strip()
            _log.error("the hook %s exited with status %s: %s", name, started.returncode, output)
