"""What happens in a lane: a message becomes a turn of the agent, a slash command is done, a quiet conversation is reset.

A turn goes through the store at every step. The message is linked to the event it came from in the transaction that
stores it; the reply enters the outbox in the transaction that finishes the event. So whatever line a process dies at,
the next one knows what is left to do: take up the turn, or only send what it said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Done, Followed, Restarted, Stop, Text, ToolStarted, Turn
from hermes.agent.turn import Notice as TurnNotice
from hermes.commands.registry import parse, run_command, text_of
from hermes.errors import Fenced, HermesError, ModelError, StoreClosed, StoreError
from hermes.gateway import renewal
from hermes.gateway.events import Event, as_json, from_json, is_own
from hermes.gateway.growing import Growing
from hermes.gateway.host import ChatHost, Seat
from hermes.gateway.media import content_of, quotation
from hermes.gateway.speaking import escaped, said_by, speaker
from hermes.store import instances, mail
from hermes.store.gateway_db import Name, Notice, Received, Route

if TYPE_CHECKING:
    from hermes.gateway.lanes import Lane
    from hermes.gateway.runner import Gateway
    from hermes.store.db import SessionDB

STOPPED = "⏹ (stopped)"
NOT_YOURS = "Only the person who asked, or the owner, stops an answer."
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
    message_id: int | None = None  # under this id
    stops: bool = False  # it has stopped a turn
    refused: bool = False  # it wanted to stop another person's turn
    joined: bool = False  # the next message is answered together with this one
    at: float = field(default_factory=time.monotonic)  # when it came
    shown: tuple[str, ...] = ()
    fence: tuple[str, int] | None = None  # the lease it is answered under, where several gateways share the chats
    stop: Stop = field(default_factory=Stop)  # ends its turn, also one that has not begun


@dataclass(slots=True)
class Expired:
    """A conversation may have to begin anew."""

    fence: tuple[str, int] | None = None
    stop: Stop = field(default_factory=Stop)


def said_of(row: Received, fence: tuple[str, int] | None = None, stop: Stop | None = None) -> Said:
    """An event as the store has it; ValueError when it can't be read."""
    shown = () if row.shown is None else tuple(row.shown.split("\n"))
    event = from_json(row.event, Event)
    return Said(
        row.id, event, begun=row.begun_at is not None, session_id=row.session_id, message_id=row.message_id, shown=shown,
        fence=fence, stop=stop or Stop(),
    )  # fmt: skip


def words_of(db: SessionDB, event: Event, *, shared: bool) -> str:
    """What was said, as the model reads it: nobody's text can pass for another's, or for the gateway's."""
    text, sender = text_of(event.text.strip()), event.sender
    if is_own(event):
        return text
    text = f"{quotation(event.quoted)}{text}"
    if shared and sender.id:
        return said_by(speaker(db, event.chat.platform, sender), text)
    return escaped(text, shared=shared)


def is_turn(item: Any) -> bool:
    """Whether the agent answers something just now: a message, or the last one again. Other commands are not cut short."""
    command = parse(item.event.text.strip()) if isinstance(item, Said) else None
    return isinstance(item, Said) and (command is None or bool(item.event.attachments) or command[0] == "retry")


class Turns:
    """Does what lanes hold."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._db = gateway.db

    def work(self, lane: Lane, item: Said | Expired) -> None:
        """One thing of a lane, to its end. A store that is busy or full is waited for: no message is given up."""
        with self._gateway.fenced(item.fence):
            if isinstance(item, Expired):
                renewal.begin_anew(self._gateway, lane.key, item.stop)
            else:
                self._work(lane, item)

    def _work(self, lane: Lane, item: Said) -> None:
        pause, failed = 0.5, False
        try:
            while True:
                try:
                    if failed:  # what of it was stored, before or as the store failed, is not stored again
                        row = self._store.still(item.inbox_id)
                        if row is None:
                            self._send_the_rest(item)
                            return
                        item, failed = said_of(row, item.fence, item.stop), False
                    current = self._current(lane.key, item)
                    if current is not None:
                        self._answer(lane, current)
                    return
                except StoreClosed:
                    return
                except mail.Revised:  # in this very moment
                    known = self._again(item)
                    if known is None:
                        return
                    item = known
                except StoreError as error:
                    if isinstance(error, Fenced) and item.fence is not None and error.lease == item.fence[0]:
                        _log.warning("%s is answered by another gateway: %s", lane.key, error)
                        return
                    _log.error("%s waits for the store: %s", lane.key, error)
                    failed = True
                    if self._gateway.halted.wait(pause):
                        return
                    pause = min(30.0, pause * 2)
                except Exception as error:  # a mistake of ours: the person must hear of it, and the next message comes
                    _log.exception("a message in %s could not be answered", lane.key)
                    self._apologise(item, error)
                    return
        finally:
            self._gateway.done_with(item.inbox_id)

    def _again(self, said: Said) -> Said | None:
        """A message whose answer failed in the middle, as the store knows it now; None when it waits no more."""
        try:
            row = self._store.still(said.inbox_id)
        except StoreError:
            return said
        return None if row is None else said_of(row, said.fence, said.stop)

    def _send_the_rest(self, said: Said) -> None:
        """The reply was stored after all, with the event's end; where another gateway may have done it, that one sends it."""
        if said.fence is None:
            for part in self._store.unsent(said.inbox_id):
                self._gateway.send(part)

    def _current(self, key: str, said: Said) -> Said | None:
        """A message as it is now: where several gateways share the chats, another may have had it meanwhile.

        None when it is not for us to answer, or given to whoever can fetch what came with it.
        """
        gateway, sharing = self._gateway, self._gateway.sharing
        if sharing is None or said.fence is None:
            return self._again(said) if said.inbox_id in gateway.revised else said
        name, platform = said.fence[0].partition(":")[2], said.event.chat.platform
        while True:
            row = self._store.look(
                lambda tx: mail.still(tx, said.inbox_id) if instances.serves(tx, name, key) else None
            )
            if row is None:
                return None
            known = said_of(row, said.fence, said.stop)
            if known.begun or not known.event.attachments or sharing.has(platform):
                return known
            holder = self._db.lease_holder(instances.platform_lease(platform))
            if holder is not None and holder != name:  # files are fetched by whoever is connected
                self._store.together([partial(instances.give, key=key, name=holder)])
                return None
            if gateway.halted.wait(0.5):
                return None

    def _apologise(self, said: Said, error: Exception) -> None:
        gateway, chat = self._gateway, said.event.chat
        text = f"⚠️ This could not be answered: a mistake of this program ({type(error).__name__}). Its log says more."
        try:
            gateway.finish(said.inbox_id, gateway.growing(chat, said, resumed=True), text)
        except StoreError as problem:
            _log.error("and that could not be said: %s", problem)

    # ------------------------------------------------------------------------------------------ a message

    def _answer(self, lane: Lane, said: Said) -> None:
        gateway, event = self._gateway, said.event
        stored_in = said.session_id if said.session_id and self._db.get_session(said.session_id) is not None else None
        route = None if said.begun else renewal.begin_anew(gateway, lane.key, said.stop)
        if route is None:
            route = self._store.route(lane.key)
        seat = Seat(gateway, lane, route, event.sender, session_id=stored_in or self._chosen(said))
        line = event.text.strip()
        is_stored, is_command = said.message_id is not None, parse(line) is not None and not event.attachments
        if said.session_id is None and is_command:
            self._command(seat, said, line)
            return
        reply = gateway.growing(event.chat, said, resumed=said.begun)
        try:
            text = self._turn(seat, said, reply, taken_up=stored_in is not None and (is_stored or is_command))
            if text == "":  # nothing is to be said: the next message's reply answers this one, too
                self._store.finish(said.inbox_id, event.chat.platform, as_json(event.chat))
                gateway.touched()
            elif text is not None:  # else the gateway is stopping: whoever comes next takes the turn up
                gateway.finish(said.inbox_id, reply, text)
                gateway.touched()
        finally:
            reply.abandon()
            seat.let_go()

    def _chosen(self, said: Said) -> str | None:
        """The session that a process chose for a message and died before it stored the message there: it is used now."""
        if said.session_id is None or said.message_id is not None:
            return None  # what was stored is gone with its session: a new one begins
        trashed = (row["id"] for row in self._db.list_trash())
        return None if said.session_id in trashed else said.session_id

    def _turn(self, seat: Seat, said: Said, reply: Growing, *, taken_up: bool) -> str | None:
        """One turn of the agent: what it said, or what went wrong; None when it was cut short because the gateway stops."""
        if not seat.wait_for_turn():
            return None
        try:
            if said.message_id is not None and self._store.is_redacted(said.message_id):
                return ""  # it was deleted while a process that died was answering it
            self._share(seat)
            heard = self._only_heard(seat, said)
            if heard and taken_up:
                return ""
            if heard:
                turn = self._new_turn(seat, said, reply, answer=False)
                return None if turn is None else self._listen(seat, reply, turn, joined=lambda: True)
            if taken_up:
                self._gateway.begin(reply)
                text = self._listen(seat, reply, said.stop.bind(seat.agent.go_on(said.message_id)))
            else:
                turn = self._new_turn(seat, said, reply)
                text = (
                    None if turn is None else self._listen(seat, reply, turn, since=said.at, joined=lambda: said.joined)
                )
            if text is not None:
                self._share(seat)
            return text
        except ModelError as error:
            return f"⚠️ {error}\n\nYour message is kept; `/retry` asks again."
        except StoreError:
            raise
        except HermesError as error:
            _log.exception("a turn in %s failed", seat.route.key)
            return f"⚠️ {error}"

    def _only_heard(self, seat: Seat, said: Said) -> bool:
        """Whether a message is kept without an answer of its own: a remark among others, or one the next goes on with."""
        gateway, lane = self._gateway, self._gateway.lanes.get(seat.route.key)
        if gateway.is_remark(seat.route.key, said.event):
            return True
        return lane is not None and gateway.is_quick(said, gateway.lanes.following(lane))

    def _new_turn(self, seat: Seat, said: Said, reply: Growing, *, answer: bool = True) -> Turn | None:
        """A turn that begins with what was said. What is to be told of a reset is told before the reply, and once.

        None when the gateway stops before what came with it was fetched.
        """
        gateway, event, route = self._gateway, said.event, seat.route
        notice = self._notice(route, event)
        if notice is None and answer:
            gateway.begin(reply)
        words = words_of(self._db, event, shared=route.shared)
        content = content_of(gateway, event, words)
        if content is None:
            return None
        masked = self._db.masked
        name = Name(
            event.id, (event.text, masked(event.text)), len(masked(words.strip())) if event.attachments else None
        )  # fmt: skip

        if route.session_id != seat.session_id:  # it may have to be made: whoever takes this up must not make another
            self._store.begin(said.inbox_id, seat.session_id)

        def keep(session_id: str, what: str | list[Any]) -> int:
            message_id, told = self._store.say(said.inbox_id, route.key, session_id, what, notice=notice, name=name)
            if told is not None:
                gateway.send(told)
            if answer:
                gateway.begin(reply)
            return message_id

        return said.stop.bind(seat.agent.turn(content, keep=keep) if answer else seat.agent.hear(content, keep=keep))

    def _notice(self, route: Route, event: Event) -> Notice | None:
        text = renewal.told(self._gateway, route)
        if text is None:
            return None
        chat = self._gateway.delivered_to(event.chat) or event.chat
        return Notice(chat.platform, as_json(chat), text, self._gateway.new_nonce())

    def _listen(
        self, seat: Seat, reply: Growing, turn: Turn, *, since: float | None = None,
        joined: Callable[[], bool] = lambda: False,
    ) -> str | None:  # fmt: skip
        """Follow a turn; what it said, or None when it was cut short because the gateway stops.

        Nothing is shown as long as the person may go on speaking (`since` is when they spoke): if they do, the turn ends
        with "", and what comes next is answered together with this (`joined`).
        """
        said: list[str] = []
        unshown: list[str] = []
        shown = False
        shown_from = 0.0 if since is None else since + self._gateway.config.gateway.debounce_seconds
        paragraph = False
        interrupted, final = False, ""
        for event in turn:
            if isinstance(event, Text):
                piece = f"\n\n{event.text}" if paragraph and said else event.text
                paragraph = False
                said.append(piece)
                unshown.append(piece)
                if time.monotonic() >= shown_from and not joined():
                    shown = True
                    reply.write("".join(unshown))
                    unshown.clear()
            elif isinstance(event, ToolStarted):
                paragraph = True
                if unshown and not joined():  # what was said comes before what a tool asks
                    shown = True
                    reply.write("".join(unshown))
                    unshown.clear()
            elif isinstance(event, Followed):
                self._store.follow(event.old_session_id, event.session_id)
                seat.moved()
            elif isinstance(event, TurnNotice):
                _log.info("%s: %s", seat.lane.key, event.text)
                if isinstance(event, Restarted):
                    said.clear()
                    unshown.clear()
                    reply.restart()
            elif isinstance(event, Done):
                interrupted, final = event.interrupted, event.text
            seat.name_it()
        if interrupted and self._gateway.stopping:
            return None
        text = "".join(said).strip() or final.strip()
        if (interrupted or not text) and joined() and not shown:
            return ""
        if interrupted:
            return f"{text}\n\n{STOPPED}".strip()
        return text or NOTHING

    def _share(self, seat: Seat) -> None:
        """Who speaks in a session that is not their own may see it from then on.

        What its prompt tells of those who were there before is not for them: the next turn writes it anew.
        """
        who = seat.sender.id if seat.sender is not None else None
        session_id = seat.session_id
        if who is None or seat.seen_by == (session_id, who):
            return
        user = (seat.route.platform, who)
        if self._store.may_see(session_id, user):
            seat.seen_by = session_id, who
        elif (session := self._db.get_session(session_id)) is not None:
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
        if said.refused:
            gateway.post(chat, NOT_YOURS)
            self._store.finish(said.inbox_id, chat.platform, as_json(chat))
            return
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
