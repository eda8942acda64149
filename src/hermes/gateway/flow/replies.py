"""Replies: in its conversation a message becomes a turn of the agent, a slash command is run, a quiet conversation is reset.

A turn goes through the store at every step. The message is linked to the event it came from in the transaction that
stores it; the reply enters the outbox in the transaction that finishes the event. So at whatever line a process dies,
the next one knows what is left to do: resume the turn, or only send its reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Done, Followed, Restarted, Text, ToolStarted, Turn
from hermes.agent.turn import Notice as TurnNotice
from hermes.agent.turn_session import Also
from hermes.commands.registry import parse, run_command
from hermes.errors import HermesError, ModelError, SessionBusy, StoreError
from hermes.gateway.chats.access import words_of
from hermes.gateway.chats.handoff import is_withdrawn
from hermes.gateway.chats.media import content_of
from hermes.gateway.chats.participants import ChatHost, Participant, hint_after
from hermes.gateway.events import Event, as_json, is_own
from hermes.gateway.flow.inbox import Request, Reset
from hermes.gateway.notices import language_of, say
from hermes.store.gateway import inbox as gateway_inbox
from hermes.store.gateway import routes
from hermes.store.gateway.inbox import SourceEvent
from hermes.store.gateway.outbox import PendingNotice
from hermes.store.gateway.routes import Binding, Route
from hermes.store.records import sessions

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services
    from hermes.gateway.chats.resets import Resets
    from hermes.gateway.flow.inbox import Inbox
    from hermes.gateway.flow.streaming import StreamedReply
    from hermes.gateway.flow.turns import Conversation
    from hermes.store.engines.base import Tx
    from hermes.store.gateway.gateway_db import WorkItem
    from hermes.store.gateway.outbox import Outgoing
    from hermes.store.records.visibility import User

_log = logging.getLogger("hermes.gateway")


class _Stream:
    """The text of a turn as it arrives, which is streamed to the chat."""

    def __init__(self, reply: StreamedReply, joined: Callable[[], bool] = lambda: False) -> None:
        """`joined`: whether the next message is answered with this one."""
        self._reply, self._joined = reply, joined
        self._written: list[str] = []
        self._written_on = False  # text was passed on
        self._paragraph = False  # a tool ran since the last piece
        self.stored: list[Outgoing] | None = None  # the parts of the reply, once they are stored with it

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._written).strip()

    @property
    def is_joined(self) -> bool:
        """Whether the reply to the next message answers this one as well: nothing was shown yet."""
        return self._joined() and not (self._written_on and self._reply.streams)

    def add(self, piece: str) -> None:
        """Take the next piece."""
        self._written.append(f"\n\n{piece}" if self._paragraph and self._written else piece)
        self._paragraph = False
        if self._written_on or not self._joined():
            self._reply.write(self._written[-1])
            self._written_on = True

    def before_tool(self) -> None:
        """End the paragraph: a tool is about to run."""
        self._paragraph = True

    def restart(self) -> None:
        """Discard the text: the reply starts over."""
        self._written.clear()
        self._reply.restart()


class Replies:
    """Handles the items of conversations, each in its thread."""

    def __init__(self, services: Services, inbox: Inbox, resets: Resets) -> None:
        self._services, self._inbox, self._resets = services, inbox, resets
        self._store, self._db, self._outbox = services.store, services.db, services.outbox

    def work(self, talk: Conversation, item: Request | Reset) -> None:
        """Handle one item of a conversation to its end."""
        self._services.persist(item.fence, talk.key, partial(self._work, talk, item))

    def _work(self, talk: Conversation, item: Request | Reset) -> None:
        if isinstance(item, Reset):
            self._resets.reset_if_due(talk.key, item.stop)
            return
        while True:
            try:
                found = self._store.read_work_item(item.inbox_id, talk.key, self._user(item))
                if found.event is not None:  # else it was answered before
                    item.follow(found.event)
                    self._answer(talk, item, found)
                return
            except (gateway_inbox.Revised, SessionBusy):  # edited, or its session used elsewhere, at this very moment
                continue
            except StoreError:  # tried again; parts of it that were stored already are not stored again
                raise
            except Exception as error:  # a bug of ours: report it to the person and continue with the next message
                _log.exception("a message in %s could not be answered", talk.key)
                self._report_failure(item, error)
                return

    def _user(self, request: Request) -> User | None:
        who = request.event.sender.id
        return None if who is None else (request.event.chat.platform, who)

    def _report_failure(self, request: Request, error: Exception) -> None:
        language = language_of([request.event.words], request.event.sender.language)
        text = say("internal_error", language, error=type(error).__name__)
        try:
            self._finish(self._outbox.reply(request, resumed=True), text)
        except StoreError as problem:
            _log.error("the error could not be reported in the chat: %s", problem)

    # ------------------------------------------------------------------------------------------ a message

    def _finish(self, reply: StreamedReply, text: str) -> None:
        self._inbox.answered(reply.inbox_id)  # before it is sent: the next message may answer it
        self._outbox.finish(reply, text)

    def _answer(self, talk: Conversation, request: Request, found: WorkItem) -> None:
        services, event = self._services, request.event
        known = request.session_id
        stored_in = known if known and self._db.get_session(known) is not None else None
        route, tip = found.route, found.session_id
        if not request.begun and self._resets.reset_if_due(talk.key, request.stop, route) is None:
            route, tip = self._store.read(routes.get, talk.key), None
        session_id = stored_in or self._chosen(request) or tip
        line = event.text.strip()
        is_stored, is_command = request.message_id is not None, parse(line) is not None and not event.attachments
        if request.session_id is None and is_command:
            host = ChatHost(services, talk, route, request, session_id, self._listen, self._share)
            self._command(host, request, line)
            return
        person = Participant(services, talk, route, event.sender, session_id=session_id)
        person.answers = event
        if found.is_member and tip is not None and event.sender.id is not None:
            person.seen_by = tip, event.sender.id
        reply = self._outbox.reply(request, resumed=request.begun)
        try:
            text = self._turn(
                talk, person, request, reply, taken_up=stored_in is not None and (is_stored or is_command)
            )
            if text == "":  # no reply of its own: the next message's reply answers this one, too
                self._store.finish(request.inbox_id, event.chat.connection, as_json(event.chat))
                services.index.touched()
            elif text is not None:  # None: the gateway is stopping; the next process resumes the turn
                self._finish(reply, text)
                services.index.touched()
        finally:
            self._outbox.abandon(reply)
            person.release()

    def _chosen(self, request: Request) -> str | None:
        """The session that a process chose for a message before it died without storing the message there."""
        if request.session_id is None or request.message_id is not None:
            return None  # the stored message is gone with its session: start a new one
        trashed = (row["id"] for row in self._db.list_trash())
        return None if request.session_id in trashed else request.session_id

    def _turn(
        self, talk: Conversation, person: Participant, request: Request, reply: StreamedReply, *, taken_up: bool
    ) -> str | None:
        """Run one turn: the reply or the error text; None when it was interrupted because the gateway stops."""
        if not person.wait_for_turn():
            return None
        try:
            if is_withdrawn(self._db, request.event):
                if (
                    request.begun and request.session_id is not None
                ):  # the gateway that bound the chat died: it undoes nothing
                    self._store.write(routes.unbind_chat, Binding(person.route.key, request.session_id, None, None))
                return ""
            if request.message_id is not None and self._store.is_redacted(request.message_id):
                return ""  # it was deleted while a process that died was answering it
            self._share(person)
            silent = self._is_record_only(talk, request)
            if silent and taken_up:
                return ""
            if silent:
                turn = self._new_turn(person, request, reply)
                return None if turn is None else self._listen(person, reply, turn, _Stream(reply, lambda: True))
            if taken_up:
                self._outbox.begin(reply)
                text = self._listen(person, reply, request.stop.bind(person.agent.resume(request.message_id)))
            else:
                stream = _Stream(reply, lambda: request.joined)
                turn = self._new_turn(person, request, reply, stream)
                if turn is None:
                    return None
                text = self._listen(person, reply, turn, stream)
            if text is not None:
                self._share(person)
            return "" if text and is_withdrawn(self._db, request.event) else text
        except ModelError as error:
            return say("message_kept", person.language, error=error, hint=hint_after(error, person.language))
        except (StoreError, SessionBusy):
            raise
        except HermesError as error:
            _log.exception("a turn in %s failed", person.route.key)
            return f"⚠️ {error}"

    def _is_record_only(self, talk: Conversation, request: Request) -> bool:
        """Whether a message is stored without a reply of its own: a remark to others, or one that the next continues."""
        router = self._services.router
        if router.is_remark(talk.key, request.event):
            return True
        following: Any = next(iter(talk.waiting), None)
        return self._inbox.continues(request, following) and not router.is_remark(talk.key, following.event)

    def _new_turn(
        self, person: Participant, request: Request, reply: StreamedReply, stream: _Stream | None = None
    ) -> Turn | None:
        """Start a turn with a message, whose reply is `stream`; None: it is only stored. A pending notice about a reset is
        shown before the reply, once.

        None when the gateway stops before the attachments were fetched.
        """
        event, route, answer = request.event, person.route, stream is not None
        notice = self._notice(route, event)
        if notice is None and answer:
            self._outbox.begin(reply)
        words = words_of(self._db, event, shared=route.shared)
        content = content_of(self._services, event, words)
        if content is None:
            return None
        masked = self._db.masked
        length = len(masked(words.strip())) if event.attachments else None
        source = SourceEvent(event.id, (event.text, masked(event.text)), length)

        if route.session_id != person.session_id:  # stored first: a process that resumes this must not make another one
            self._store.write(gateway_inbox.begin, request.inbox_id, person.session_id)

        def keep(session_id: str, what: str | list[Any], also: Also) -> int:
            message_id, part = self._store.append_user_message(
                request.inbox_id, route.key, session_id, what, source, notice=notice, with_it=also
            )
            self._services.index.touched()
            if part is not None:
                self._outbox.send(part)
            if answer and notice is not None:
                self._outbox.begin(reply)
            return message_id

        def with_reply(tx: Tx) -> None:
            assert stream is not None
            if stream.text and not stream.is_joined:
                stream.stored = self._outbox.finish_in(tx, reply, stream.text)
                person.agent.lease.release_in(tx)

        if stream is None:
            return request.stop.bind(person.agent.record_only(content, keep=keep))
        at_once = not is_own(event)  # a withdrawn handoff needs a last look at the turn's text
        turn = person.agent.turn(content, keep=keep, with_reply=with_reply if at_once else None)
        return request.stop.bind(turn)

    def _notice(self, route: Route, event: Event) -> PendingNotice | None:
        text = self._resets.pending_notice(route, event)
        if text is None:
            return None
        place, stored = self._outbox.destination(event.chat, event)
        return PendingNotice(place.connection, stored, text, self._outbox.new_nonce())

    def _listen(
        self, person: Participant, reply: StreamedReply, turn: Turn, stream: _Stream | None = None
    ) -> str | None:
        """Follow a turn; its reply, or None when it was interrupted because the gateway stops.

        "" when another message of the person came before anything was shown: its reply answers this one as well.
        """
        stream = stream or _Stream(reply)
        interrupted, final = False, ""
        for event in turn:
            if isinstance(event, Text):
                stream.add(event.text)
            elif isinstance(event, ToolStarted):
                stream.before_tool()
            elif isinstance(event, Followed):
                self._store.write(routes.follow, event.old_session_id, event.session_id)
                person.moved()
            elif isinstance(event, TurnNotice):
                _log.info("%s: %s", person.route.key, event.text)
                if isinstance(event, Restarted):
                    stream.restart()
            elif isinstance(event, Done):
                interrupted, final = event.interrupted, event.text
            person.begun()
        if stream.stored is not None:  # it is complete, also if it was interrupted a moment later
            reply.stored = stream.stored
            return stream.text
        if interrupted and self._services.stopping:
            return None
        text = stream.text or final.strip()
        if (interrupted or not text) and stream.is_joined:
            return ""
        if interrupted:
            return f"{text}\n\n{say('stopped', person.language)}".strip()
        return text or say("empty_reply", person.language)

    def _share(self, person: Participant) -> None:
        """Let a person who speaks in another person's session see it from then on.

        Its system prompt may hold facts for earlier participants only: the next turn writes a new one.
        """
        who = person.sender.id if person.sender is not None else None
        session_id = person.session_id
        if who is None or person.seen_by == (session_id, who):
            return
        user = (person.route.platform, who)
        if self._store.read(sessions.is_shown, session_id, user):
            person.seen_by = session_id, who
        elif (session := self._db.get_session(session_id)) is not None:
            if not person.is_owner and session["message_count"]:
                self._db.update_system_prompt(session["id"], None)
            self._db.share_session(session["id"], *user)

    # ------------------------------------------------------------------------------------------ commands

    def _command(self, host: ChatHost, request: Request, line: str) -> None:
        chat, name = request.event.chat, line.split()[0][:40]
        try:
            if request.begun:  # half done, or done without a reply: running it twice could do harm
                host.say(say("command_interrupted", host.language, command=name))
            elif request.refused:
                host.say(say("stop_not_yours", host.language))
            else:
                self._store.write(gateway_inbox.begin, request.inbox_id)
                self._run(host, line, name)
            if not host.answered:
                self._store.finish(request.inbox_id, chat.connection, as_json(chat))
        finally:
            host.release()
        self._services.index.touched()

    def _run(self, host: ChatHost, line: str, name: str) -> None:
        if host.route.shared:
            self._share(host)
        try:
            run_command(host, line)
        except Exception as error:  # report the failure to the person
            _log.exception("the command %s failed", name)
            host.say(say("command_failed", host.language, command=name, error=type(error).__name__))
