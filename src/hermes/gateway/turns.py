"""What happens in a lane: a message becomes a turn of the agent, a slash command is done, a quiet conversation is reset.

A turn goes through the store at every step. The message is linked to the event it came from in the transaction that
stores it; the reply enters the outbox in the transaction that finishes the event. So whatever line a process dies at,
the next one knows what is left to do: take up the turn, or only send what it said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.agent.events import Done, Followed, Notice, Text, ToolStarted
from hermes.agent.events import Event as TurnEvent
from hermes.commands.registry import parse, run_command, text_of
from hermes.errors import HermesError, ModelError
from hermes.gateway import renewal
from hermes.gateway.access import speaker
from hermes.gateway.delivery import parts_of
from hermes.gateway.events import Event, as_json
from hermes.gateway.growing import Growing
from hermes.gateway.host import ChatHost, Seat
from hermes.gateway.media import content_of

if TYPE_CHECKING:
    from hermes.gateway.lanes import Lane
    from hermes.gateway.runner import Gateway

STOPPED = "⏹ (stopped)"
NOTHING = "(The model said nothing. `/retry` asks again.)"
CUT_SHORT = (
    "The gateway was restarted while `{}` was being done. Look whether it was (`/status`, `/history`) before you say it"
    " again."
)
_log = logging.getLogger("hermes.gateway")


@dataclass(slots=True)
class Said:
    """An event that waits in a lane, or is answered in it."""

    inbox_id: int
    event: Event
    begun: bool = False  # a process that died had begun with it
    session_id: str | None = None  # and had stored it there
    shown: tuple[str, ...] = ()


@dataclass(slots=True)
class Expired:
    """A conversation may have to begin anew."""


class Turns:
    """Does what lanes hold."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._db = gateway.db

    def work(self, lane: Lane, item: Said | Expired) -> None:
        """One thing of a lane, to its end."""
        if isinstance(item, Expired):
            renewal.begin_anew(self._gateway, lane.key)
        elif self._store.route(lane.key) is None:
            _log.error("an event of %s has no route; it is left as it is", lane.key)
        else:
            self._answer(lane, item)

    # ------------------------------------------------------------------------------------------ a message

    def _answer(self, lane: Lane, said: Said) -> None:
        gateway, event = self._gateway, said.event
        if not said.begun:
            renewal.begin_anew(gateway, lane.key)
        seat = self._seat(lane, said)
        line = event.text.strip()
        if parse(line) is not None and not event.attachments:
            self._command(seat, said, line)
            return
        route = seat.route
        session_id = said.session_id or seat.session_id
        notice = renewal.told(gateway, route)
        self._share(seat)
        agent = seat.agent
        reply = gateway.growing(event.chat, said.inbox_id, said.shown, resumed=said.begun)
        try:
            if said.session_id is not None and self._db.get_session(session_id) is not None:
                turn = agent.go_on()
            else:
                content = content_of(
                    gateway, event, text_of(line), speaker(event.sender) if route.shared and event.sender.id else None
                )
                turn = agent.turn(
                    content, keep=lambda where, what: self._store.say(said.inbox_id, lane.key, where, what)
                )
            if notice:
                gateway.post(event.chat, notice)
            gateway.begin(event.chat.platform, reply)
            text = self._listen(seat, reply, turn)
        except ModelError as error:
            text = f"⚠️ {error}\n\nYour message is kept; `/retry` asks again."
        except HermesError as error:
            _log.exception("a turn in %s failed", lane.key)
            text = f"⚠️ {error}"
        finally:
            agent.let_go()
        if text is None:  # the gateway is stopping: whoever comes next takes the turn up
            reply.finish([])
            return
        self._share(seat)
        self._finish(said, reply, text)
        gateway.touched()

    def _listen(self, seat: Seat, reply: Growing, turn: Iterator[TurnEvent]) -> str | None:
        """Follow a turn; what it said, or None when it was cut short because the gateway stops."""
        said: list[str] = []
        paragraph = False
        interrupted, final = False, ""
        for event in turn:
            if isinstance(event, Text):
                piece = f"\n\n{event.text}" if paragraph and said else event.text
                paragraph = False
                said.append(piece)
                reply.write(piece)
            elif isinstance(event, ToolStarted):
                paragraph = True
            elif isinstance(event, Followed):
                self._store.follow(event.old_session_id, event.session_id)
                seat.moved()
            elif isinstance(event, Notice):
                _log.info("%s: %s", seat.lane.key, event.text)
                if "begins anew" in event.text:
                    said.clear()
                    reply.restart()
            elif isinstance(event, Done):
                interrupted, final = event.interrupted, event.text
            seat.name_it()
        if interrupted and self._gateway.stopping:
            return None
        text = "".join(said).strip() or final.strip()
        if interrupted:
            return f"{text}\n\n{STOPPED}".strip()
        return text or NOTHING

    def _finish(self, said: Said, reply: Growing, text: str) -> None:
        """The reply enters the outbox as the event leaves the inbox; then it is sent."""
        chat = self._gateway.delivered_to(said.event.chat)
        parts: list[dict[str, Any]] = []
        if chat is not None:
            adapter = self._gateway.adapter(chat.platform)
            pieces = parts_of(text, adapter) if adapter is not None else [text]
            parts = [{"text": piece, "nonce": reply.part_nonce(n)} for n, piece in enumerate(pieces)]
        target = chat or said.event.chat
        reply.finish(self._store.finish(said.inbox_id, target.platform, as_json(target), parts))

    def _share(self, seat: Seat) -> None:
        """Who speaks in a session that is not their own may see it from then on.

        What its prompt tells of those who were there before is not for them: the next turn writes it anew.
        """
        who = seat.sender.id if seat.sender is not None else None
        session = self._db.get_session(seat.session_id)
        if who is None or session is None:
            return
        user = (seat.route.platform, who)
        if self._db.get_session(session["id"], visible_to=user) is None:
            if not seat.is_owner and session["message_count"]:
                self._db.update_system_prompt(session["id"], None)
            self._db.share_session(session["id"], *user)

    # ------------------------------------------------------------------------------------------ commands

    def _command(self, seat: Seat, said: Said, line: str) -> None:
        gateway, chat = self._gateway, said.event.chat
        if said.begun:  # half done, or done and not told: doing it twice could do harm
            gateway.post(chat, CUT_SHORT.format(line.split()[0][:40]))
            self._store.finish(said.inbox_id, chat.platform, as_json(chat))
            return
        self._store.begin(said.inbox_id)
        if seat.route.shared:
            self._share(seat)
        host = ChatHost(gateway, seat, said, self._listen, self._share)
        try:
            run_command(host, line)
        except Exception as error:  # the person must hear that it failed
            _log.exception("the command %s failed", line.split()[0][:40])
            host.say(f"{line.split()[0][:40]} failed ({type(error).__name__}); the log says more.")
        finally:
            seat.let_go()
        if not host.answered:
            self._store.finish(said.inbox_id, chat.platform, as_json(chat))
        gateway.touched()

    def _seat(self, lane: Lane, said: Said) -> Seat:
        route = self._store.route(lane.key)
        assert route is not None
        return Seat(self._gateway, lane, route, said.event.sender, session_id=said.session_id)
