"""A conversation on a platform, as a turn and as a slash command see it: who speaks, in which session, with which agent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hermes.agent.conversations import new_session_id
from hermes.agent.titler import set_chosen_title
from hermes.commands.registry import GATEWAY
from hermes.errors import ModelError
from hermes.gateway.agents import home_of
from hermes.gateway.events import Chat, Sender, as_json, from_json
from hermes.gateway.questions import Question, wording
from hermes.store.gateway_db import Notice

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.model import Model
    from hermes.agent.turn import Stop, Turn
    from hermes.gateway.growing import Growing
    from hermes.gateway.lanes import Lane
    from hermes.gateway.runner import Gateway
    from hermes.gateway.turns import Said
    from hermes.store.gateway_db import Route
    from hermes.store.visibility import User

WAITING = "⏳ Another process is answering in this conversation ({}). Your message waits until it is done."
_log = logging.getLogger("hermes.gateway")


TAKEN = (
    "The conversation{called} goes on elsewhere: the owner, or somebody who shares it, has taken it up there. What you write here"
    " begins a new one; `/resume {session_id}` brings it back here."
)


class Seat:
    """Somebody's place in a conversation, for the time of one turn or command.

    `sender` is None for what the gateway does by itself; then it sees what the person the key belongs to may see.
    """

    def __init__(
        self, gateway: Gateway, lane: Lane | None, route: Route | None, sender: Sender | None, *, session_id: str | None = None
    ) -> None:  # fmt: skip
        assert route is not None
        self._gateway = gateway
        self.lane = lane if lane is not None else _Nowhere(route.key)
        self.route = route
        self.sender = sender
        self._session_id = session_id
        self._agent: Agent | None = None
        self.seen_by: tuple[str, str] | None = None  # a session, and who was found to be one of those who may see it

    @property
    def chat(self) -> Chat:
        """Where it is."""
        return from_json(self.route.chat, Chat)

    @property
    def is_owner(self) -> bool:
        """Whether the owner of this machine speaks, or, when nobody does, whether it is their conversation."""
        return self._gateway.access.is_owner(self.route.platform, self._who)

    @property
    def user(self) -> User | None:
        """Whose conversations may be seen; None: the owner's, all."""
        return self._gateway.access.user(self.route.platform, self._who)

    @property
    def _who(self) -> Sender:
        return self.sender if self.sender is not None else Sender(user_id=self.route.user_id)

    @property
    def session_id(self) -> str:
        """The session that is talked in; a new id where none is yet."""
        if self._agent is not None:
            return self._agent.session_id
        if self._session_id is None:
            known = self.route.session_id
            tip = None if known is None else self._gateway.store.end_of_chain(known)
            self._session_id = new_session_id(gateway=True) if tip is None else tip
        return self._session_id

    @property
    def agent(self) -> Agent:
        """Who answers, with what whoever speaks may use."""
        if self._agent is None:
            gateway, route = self._gateway, self.route
            whose = None if route.shared else self._who.id
            home = home_of(gateway.home, route.platform, whose or route.key, owner=self.is_owner and not route.shared)
            self._agent = gateway.agents.of(
                route.key, self.session_id, source=route.platform, home=home, confirm=self.confirm,
                user_id=None if route.shared else route.user_id, parent=route.previous_id,
            )  # fmt: skip
            self._agent.context.user = self.user
            self._agent.context.home = home
            self._agent.confirm = self.confirm
            self._agent.shared = route.shared
            connection = gateway.connections.get(route.platform)
            self._agent.titles = connection is None or connection.settings.titles
            self._agent.tools = {tool.name: tool for tool in gateway.agents.toolbox.tools(owner=self.is_owner)}
        return self._agent

    def moved(self) -> None:
        """The conversation goes on in another session; the route follows it already."""
        self.route.session_id = self.session_id

    def follow(self, session_id: str) -> None:
        """The same conversation goes on in another session: it was compressed. What runs in the background goes on, too."""
        self._gateway.store.follow(self.session_id, session_id)
        if self._agent is not None:
            self._agent.session_id = session_id
        self._session_id = self.route.session_id = session_id

    def set_pending_title(self, title: str | None) -> None:
        """What the session is to be called from its first message on; that outlives the process."""
        self.route.pending_title = title
        self._gateway.store.set_pending_title(self.route.key, title)

    def name_it(self) -> None:
        """Give the session the title that was chosen before it existed."""
        wanted, db = self.route.pending_title, self._gateway.db
        if wanted is None or db.get_session(self.session_id) is None:
            return
        self.set_pending_title(None)
        set_chosen_title(db, self.session_id, wanted, self.user)

    def confirm(self, question: str) -> bool:
        """Ask whoever began this turn; no, when nobody answers within five minutes."""
        if self.sender is None:
            return False
        asked = Question(self.sender.id)
        self.lane.data = asked
        try:
            self._gateway.post(self.chat, wording(question), at_once=True)
            return asked.wait(self.agent.context.cancelled)
        finally:
            self.lane.data = None

    def switch(self, session_id: str | None, ending: str | None) -> None:
        """Go on in another session (None: a new one)."""
        gateway, key = self._gateway, self.route.key
        old = self.session_id
        gateway.agents.drop(key)
        self._agent, self._session_id = None, session_id
        if self.route.pending_title is not None:  # it was meant for what would have begun here
            self.set_pending_title(None)
        if session_id is None:
            gateway.store.let_go(key)
            self.route.session_id = None
        else:
            told = gateway.store.bind(key, session_id, notice=taken_from(gateway, session_id, self.sender))
            if told is not None:
                gateway.send(told)
            gateway.db.reopen_session(session_id)
            self.route.session_id = session_id
        self.route.previous_id = self.route.reset_reason = None
        if ending is not None and old != session_id and gateway.db.get_session(old) is not None:
            gateway.db.end_session(old, ending)
            gateway.ended(old, ending)

    def wait_for_turn(self) -> bool:
        """Wait until no other process answers in the session, and say so; False when the gateway stops before."""

        def waiting(who: str) -> None:
            _log.info("%s waits: %s answers in session %s", self.route.key, who, self.session_id)
            self._gateway.post(self.chat, WAITING.format(who), at_once=True)

        return self.agent.wait_for_turn(waiting, self._gateway.halted.wait)

    def let_go(self) -> None:
        """Between turns others may go on with the session."""
        if self._agent is not None:
            self._agent.let_go(soon=True)


def taken_from(gateway: Gateway, session_id: str, by: Sender | None) -> Notice | None:
    """What the person is told in whose chat a session is talked in that somebody else takes elsewhere; None: nobody is.

    `by` is who takes it; None stands for the owner in a terminal.
    """
    route = gateway.store.route_of_session(session_id)
    if route is None or (not route.shared and route.user_id is None):
        return None
    owners = gateway.access.owners(route.platform)
    same = route.user_id in owners if by is None else route.user_id in (by.user_id, by.stable_id)
    if not route.shared and same:
        return None
    title = gateway.db.get_session_title(session_id)
    called = f' "{title}"' if title else ""
    chat = from_json(route.chat, Chat)
    place = gateway.delivered_to(chat) or chat
    text = TAKEN.format(called=called, session_id=session_id)
    return Notice(place.platform, as_json(place), text, gateway.new_nonce())


class _Nowhere:
    """A lane for what nobody can answer."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.data: Any = None


class ChatHost:
    """What a slash command may do here (see commands.registry.Host)."""

    where = GATEWAY

    def __init__(
        self, gateway: Gateway, seat: Seat, said: Said,
        listen: Callable[[Seat, Growing, Turn], str | None], share: Callable[[Seat], None],
    ) -> None:  # fmt: skip
        self.gateway = gateway
        self.seat = seat
        self.answered = False  # the event was finished together with a reply
        self._said = said
        self.stop: Stop | None = said.stop
        self._listen = listen
        self._share = share
        self.platform = seat.route.platform
        self.config = gateway.config
        self.db = gateway.db
        self.user = seat.user
        self.is_owner = seat.is_owner

    @property
    def agent(self) -> Agent:
        return self.seat.agent

    @property
    def model(self) -> Model:
        return self.gateway.agents.model

    @property
    def session_id(self) -> str:
        return self.seat.session_id

    @property
    def chat(self) -> Chat:
        return self._said.event.chat

    @property
    def stopped(self) -> bool:
        return self._said.stops

    @property
    def place(self) -> str | None:
        return as_json(self.chat)

    @property
    def pending_title(self) -> str | None:
        return self.seat.route.pending_title

    @pending_title.setter
    def pending_title(self, title: str | None) -> None:
        self.seat.set_pending_title(title)

    def say(self, text: str) -> None:
        self.gateway.post(self.chat, text)

    def ask(self, question: str) -> bool:
        return self.seat.confirm(question)

    def choose(self, question: str, options: Sequence[str]) -> int | None:
        self.say("\n".join([question, "", *options, "", "`/resume` with an id or a title goes on with it."]))
        return None

    def show(self, turn: Turn) -> None:
        """Show a turn as a reply. From here on it is one that can be taken up after a kill, like any other."""
        said, gateway = self._said, self.gateway
        if not self.seat.wait_for_turn():
            self.answered = True  # by the next process, which says that it was cut short
            return
        gateway.store.begin(said.inbox_id, self.session_id)
        reply = gateway.growing(self.chat, said)
        gateway.begin(reply)
        try:
            try:
                text = self._listen(self.seat, reply, said.stop.bind(turn))
            except ModelError as error:
                text = f"⚠️ {error}\n\n`/retry` asks again."
            self.answered = True
            if text is not None:  # else the gateway is stopping: whoever comes next takes the turn up
                gateway.finish(said.inbox_id, reply, text)
        finally:
            reply.abandon()

    def switch(self, session_id: str | None, *, ending: str | None) -> None:
        self.seat.switch(session_id, ending)
        if session_id is not None:
            self._share(self.seat)

    def follow(self, session_id: str) -> None:
        self.seat.follow(session_id)

    @property
    def stopping(self) -> bool:
        """Whether whatever waits here should not."""
        return self.gateway.stopping

    def leave(self, *, ending: bool = True) -> None:
        """Nobody leaves a chat by a word."""
