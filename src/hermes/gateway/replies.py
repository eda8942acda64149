"""Replies: in its lane a message becomes a turn of the agent, a slash command is done, a quiet conversation is reset.

A turn goes through the store at every step. The message is linked to the event it came from in the transaction that
stores it; the reply enters the outbox in the transaction that finishes the event. So whatever line a process dies at,
the next one knows what is left to do: take up the turn, or only send what it said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Done, Followed, Restarted, Text, ToolStarted, Turn
from hermes.agent.turn import Notice as TurnNotice
from hermes.commands.registry import parse, run_command, sent_text
from hermes.errors import Fenced, HermesError, ModelError, StoreClosed, StoreError
from hermes.gateway.events import Event, as_json, is_own
from hermes.gateway.inbox import Request, Reset
from hermes.gateway.media import content_of, quotation
from hermes.gateway.participants import ChatHost, Participant
from hermes.gateway.senders import escaped, said_by, speaker
from hermes.store import gateway_queues
from hermes.store.gateway_db import Name, PendingNotice, Route
from hermes.store.instances import platform_lease

if TYPE_CHECKING:
    from hermes.gateway.cluster import Cluster
    from hermes.gateway.inbox import Inbox
    from hermes.gateway.participants import Services
    from hermes.gateway.resets import Resets
    from hermes.gateway.streaming import StreamedReply
    from hermes.gateway.workers import Lane, Workers
    from hermes.store.db import SessionDB
    from hermes.store.gateway_db import TakenUp
    from hermes.store.visibility import User

STOPPED = "⏹ (stopped)"
NOT_YOURS = "Only the person who asked, or the owner, stops an answer."
NOTHING = "(The model said nothing. `/retry` asks again.)"
CUT_SHORT = (
    "The gateway was restarted while `{}` was being done. Look whether it was (`/status`, `/history`) before you say it"
    " again."
)
_log = logging.getLogger("hermes.gateway")


def words_of(db: SessionDB, event: Event, *, shared: bool) -> str:
    """What was said, as the model reads it: nobody's text can pass for another's, or for the gateway's."""
    text, sender = sent_text(event.text.strip()), event.sender
    if is_own(event):
        return text
    text = f"{quotation(event.quoted)}{text}"
    if shared and sender.id:
        return said_by(speaker(db, event.chat.platform, sender), text)
    return escaped(text, shared=shared)


class Replies:
    """Does what lanes hold."""

    def __init__(self, services: Services, inbox: Inbox, workers: Workers, cluster: Cluster, resets: Resets) -> None:
        self._services, self._inbox, self._workers, self._cluster = services, inbox, workers, cluster
        self._resets = resets
        self._store, self._db, self._outbox = services.store, services.db, services.outbox

    def work(self, lane: Lane, item: Request | Reset) -> None:
        """One thing of a lane, to its end. A store that is busy or full is waited for: no message is given up."""
        with self._db.fenced(*item.fence):
            if isinstance(item, Reset):
                self._resets.begin_anew(lane.key, item.stop)
            else:
                self._work(lane, item)

    def _work(self, lane: Lane, item: Request) -> None:
        pause = 0.5
        try:
            while True:
                try:
                    self._take_up(lane, item)
                    return
                except StoreClosed:
                    return
                except gateway_queues.Revised:  # in this very moment: taken up again, as it is now
                    continue
                except StoreError as error:  # what of it was stored, before or as the store failed, is not stored again
                    if isinstance(error, Fenced) and error.lease == item.fence[0]:
                        _log.warning("%s is answered by another gateway: %s", lane.key, error)
                        return
                    _log.error("%s waits for the store: %s", lane.key, error)
                    if self._services.halted.wait(pause):
                        return
                    pause = min(30.0, pause * 2)
                except Exception as error:  # a mistake of ours: the person must hear of it, and the next message comes
                    _log.exception("a message in %s could not be answered", lane.key)
                    self._apologise(item, error)
                    return
        finally:
            self._inbox.done(item.inbox_id)

    def _take_up(self, lane: Lane, said: Request) -> None:
        """Answer a message as it is now: it may have been edited, begun by us before the store failed, or be another's.

        What came with it is fetched by the gateway that is connected: its chat is given to that one.
        """
        cluster, platform = self._cluster, said.event.chat.platform
        name = said.fence[0].partition(":")[2]
        while True:
            found = self._store.take_up(said.inbox_id, lane.key, name, self._user(said))
            if found.event is None:
                self._services.calls(cluster.wake)  # its reply may be stored, and not sent
                return
            said.follow(found.event)
            if said.begun or not said.event.attachments or cluster.has(platform):
                self._answer(lane, said, found)
                return
            holder = self._db.lease_holder(platform_lease(platform))
            if holder is not None and holder != name:
                self._store.give(lane.key, holder)
                return
            if self._services.halted.wait(0.5):
                return

    def _user(self, said: Request) -> User | None:
        who = said.event.sender.id
        return None if who is None else (said.event.chat.platform, who)

    def _apologise(self, said: Request, error: Exception) -> None:
        text = f"⚠️ This could not be answered: a mistake of this program ({type(error).__name__}). Its log says more."
        try:
            self._finish(self._outbox.reply(said, resumed=True), text)
        except StoreError as problem:
            _log.error("and that could not be said: %s", problem)

    # ------------------------------------------------------------------------------------------ a message

    def _finish(self, reply: StreamedReply, text: str) -> None:
        self._inbox.answered(reply.inbox_id)  # before it is sent: what comes next may answer it
        self._outbox.finish(reply, text)

    def _answer(self, lane: Lane, said: Request, found: TakenUp) -> None:
        services, event = self._services, said.event
        stored_in = said.session_id if said.session_id and self._db.get_session(said.session_id) is not None else None
        route, tip = found.route, found.session_id
        if not said.begun and self._resets.begin_anew(lane.key, said.stop, route) is None:
            route, tip = self._store.route(lane.key), None
        seat = Participant(services, lane, route, event.sender, session_id=stored_in or self._chosen(said) or tip)
        if found.is_member and tip is not None and event.sender.id is not None:
            seat.seen_by = tip, event.sender.id
        line = event.text.strip()
        is_stored, is_command = said.message_id is not None, parse(line) is not None and not event.attachments
        if said.session_id is None and is_command:
            self._command(seat, said, line)
            return
        reply = self._outbox.reply(said, resumed=said.begun)
        try:
            text = self._turn(seat, said, reply, taken_up=stored_in is not None and (is_stored or is_command))
            if text == "":  # nothing is to be said: the next message's reply answers this one, too
                self._store.finish(said.inbox_id, event.chat.platform, as_json(event.chat))
                services.index.touched()
            elif text is not None:  # else the gateway is stopping: the next process takes the turn up
                self._finish(reply, text)
                services.index.touched()
        finally:
            reply.abandon()
            seat.let_go()

    def _chosen(self, said: Request) -> str | None:
        """The session that a process chose for a message and died before it stored the message there: it is used now."""
        if said.session_id is None or said.message_id is not None:
            return None  # what was stored is gone with its session: a new one begins
        trashed = (row["id"] for row in self._db.list_trash())
        return None if said.session_id in trashed else said.session_id

    def _turn(self, seat: Participant, said: Request, reply: StreamedReply, *, taken_up: bool) -> str | None:
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
                self._outbox.begin(reply)
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

    def _only_heard(self, seat: Participant, said: Request) -> bool:
        """Whether a message is kept without an answer of its own: a remark among others, or one the next goes on with."""
        lane = self._workers.get(seat.route.key)
        if self._services.router.is_remark(seat.route.key, said.event):
            return True
        return lane is not None and self._inbox.is_quick(said, self._workers.following(lane))

    def _new_turn(self, seat: Participant, said: Request, reply: StreamedReply, *, answer: bool = True) -> Turn | None:
        """A turn that begins with what was said. What is to be told of a reset is told before the reply, and once.

        None when the gateway stops before what came with it was fetched.
        """
        event, route = said.event, seat.route
        notice = self._notice(route, event)
        if notice is None and answer:
            self._outbox.begin(reply)
        words = words_of(self._db, event, shared=route.shared)
        content = content_of(self._services, event, words)
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
                self._outbox.send(told)
            if answer and notice is not None:
                self._outbox.begin(reply)
            return message_id

        return said.stop.bind(seat.agent.turn(content, keep=keep) if answer else seat.agent.hear(content, keep=keep))

    def _notice(self, route: Route, event: Event) -> PendingNotice | None:
        text = self._resets.told(route)
        if text is None:
            return None
        chat = self._services.router.delivered_to(event.chat)
        return PendingNotice(chat.platform, as_json(chat), text, self._outbox.new_nonce())

    def _listen(
        self, seat: Participant, reply: StreamedReply, turn: Turn, *, since: float | None = None,
        joined: Callable[[], bool] = lambda: False,
    ) -> str | None:  # fmt: skip
        """Follow a turn; what it said, or None when it was cut short because the gateway stops.

        Nothing is shown as long as the person may go on speaking (`since` is when they spoke): if they do, the turn ends
        with "", and what comes next is answered together with this (`joined`).
        """
        said: list[str] = []
        unshown: list[str] = []
        shown = False
        shown_from = 0.0 if since is None else since + self._services.config.gateway.debounce_seconds
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
        if interrupted and self._services.stopping:
            return None
        text = "".join(said).strip() or final.strip()
        if (interrupted or not text) and joined() and not shown:
            return ""
        if interrupted:
            return f"{text}\n\n{STOPPED}".strip()
        return text or NOTHING

    def _share(self, seat: Participant) -> None:
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

    def _command(self, seat: Participant, said: Request, line: str) -> None:
        chat = said.event.chat
        if said.begun:  # half done, or done and not told: doing it twice could do harm
            self._outbox.post(chat, CUT_SHORT.format(line.split()[0][:40]))
            self._store.finish(said.inbox_id, chat.platform, as_json(chat))
            return
        self._store.begin(said.inbox_id)
        if said.refused:
            self._outbox.post(chat, NOT_YOURS)
            self._store.finish(said.inbox_id, chat.platform, as_json(chat))
            return
        if seat.route.shared:
            self._share(seat)
        host = ChatHost(self._services, seat, said, self._listen, self._share)
        try:
            run_command(host, line)
        except Exception as error:  # the person must hear that it failed
            _log.exception("the command %s failed", line.split()[0][:40])
            host.say(f"{line.split()[0][:40]} failed ({type(error).__name__}); the log says more.")
        finally:
            seat.let_go()
        if not host.answered:
            self._store.finish(said.inbox_id, chat.platform, as_json(chat))
        self._services.index.touched()
