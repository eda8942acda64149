"""Resets: when a conversation on a platform starts over (never, after a time of silence, each day at an hour, or both), and how.

The agent saves what matters, the session ends, and the next message starts a new one that links to it. No reset happens
during a turn (this is an item of its conversation), while a background process of it runs, or while a terminal holds
the session. A gateway that stops meanwhile changes nothing; the next one resets.

All times count from the user's last message, which the store has, so a restart changes nothing. Hours are in the
configured time zone: an hour that a clock change skips counts as the one after it, one that comes twice as the first.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.turn import Stop
from hermes.errors import Fenced, HermesError
from hermes.gateway.chats.participants import RESETS, Participant
from hermes.gateway.events import Chat, Event, from_json
from hermes.gateway.flow.inbox import Reset
from hermes.gateway.notices import language_of, say
from hermes.gateway.settings import repeat
from hermes.store.gateway import routes
from hermes.times import zone_of

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.config import Config
    from hermes.config.settings_schema import SessionReset
    from hermes.gateway.chats.participants import Services
    from hermes.gateway.connection import Holding
    from hermes.gateway.flow.turns import Turns
    from hermes.store.gateway.routes import Route
    from hermes.store.records.rows import SessionRow

IDLE, DAILY = RESETS
SAVING = ("memory", "skills")  # the tools of the last turn
_log = logging.getLogger("hermes.gateway")

FAREWELL = (
    "[From the gateway, not from the user: this conversation was quiet and is about to be closed; a new one begins with the"
    " next message. Save now, with your memory and skills tools, what will be worth knowing later: facts about the user,"
    " decisions, how something was done. Save nothing that is already saved. No one reads your answer: one word is enough.]"
)


def policy(config: Config, platform: str, chat_type: str) -> SessionReset:
    """The policy of a chat: that of its platform, else of its type, else the general one."""
    reset = config.session_reset
    chosen: dict[str, Any] = {}
    for layer in (reset.by_type.get(chat_type), reset.by_platform.get(platform)):
        if layer is not None:
            chosen |= {name: value for name, value in msgspec.structs.asdict(layer).items() if value is not None}
    return msgspec.structs.replace(reset, by_platform={}, by_type={}, **chosen)


def due(policy: SessionReset, last_user_at: float | None, now: float, zone: tzinfo | None) -> str | None:
    """Why a conversation is due for a reset now: "idle" or "daily"; None when it is not."""
    if last_user_at is None:
        return None
    if policy.mode in (IDLE, "both") and now - last_user_at >= policy.idle_minutes * 60:
        return IDLE
    if policy.mode in (DAILY, "both") and boundary(now, policy.at_hour, zone) > last_user_at:
        return DAILY
    return None


def boundary(now: float, hour: int, zone: tzinfo | None) -> float:
    """The last moment, up to now, at which the clock of a time zone (None: the machine's) showed that hour."""
    today = datetime.fromtimestamp(now, zone).date()
    for back in range(3):
        day = today - timedelta(days=back)
        moment = datetime(day.year, day.month, day.day, hour, tzinfo=zone).timestamp()
        if moment <= now:
            return moment
    raise AssertionError("a day without that hour three times in a row")


def notice(reason: str, policy: SessionReset, name: str, language: str | None = None) -> str:
    """The notice for the first message after a reset, with the command that resumes the old conversation."""
    if reason == IDLE:
        return say("reset_idle", language, span=_span(policy.idle_minutes, language), name=name)
    return say("reset_daily", language, hour=policy.at_hour, name=name)


def _span(minutes: float, language: str | None) -> str:
    if minutes >= 2880:
        return say("span_days", language, count=minutes / 1440)
    if minutes >= 120:
        return say("span_hours", language, count=minutes / 60)
    return say("span_minute" if minutes == 1 else "span_minutes", language, count=minutes)


class Resets:
    """Resets a gateway's conversations when they are due."""

    def __init__(self, services: Services, turns: Turns, holding: Holding) -> None:
        self._services, self._turns, self._holding = services, turns, holding
        self._zone = zone_of(services.config.timezone)

    async def run(self) -> None:
        """Reset quiet conversations; a conversation with a new message is checked when that is answered. Until cancelled."""
        await repeat(self._look, self._services.timings.reset_check, "could not look for conversations to reset")

    async def _look(self) -> None:
        for key, connection in await asyncio.to_thread(self._expired):
            fence = self._holding.fence(connection)
            if fence is not None and self._turns.get(key) is None:
                self._turns.add(key, Reset(fence))

    def _expired(self) -> list[tuple[str, str]]:
        """The keys whose conversation is due for a reset, each with its connection."""
        reset = self._services.config.session_reset
        modes = {reset.mode, *(one.mode for one in (*reset.by_platform.values(), *reset.by_type.values()))}
        if modes <= {"none", None}:
            return []
        bound = self._services.store.read(routes.bound, quiet_since=self._services.clock())
        return [(route.key, from_json(route.chat, Chat).connection) for route in bound if self._due(route) is not None]

    def _due(self, route: Route) -> str | None:
        which = policy(self._services.config, route.platform, route.chat_type)
        return due(which, route.last_user_at, self._services.clock(), self._zone)

    def reset_if_due(self, key: str, stop: Stop, route: Route | None = None) -> Route | None:
        """If a reset is due: let the agent save what matters, end the session, and have the next message start another.

        Returns the key's route (`route`, if given) when no reset was due and nothing was done.
        """
        route = route or self._services.store.read(routes.get, key)
        if route is None or route.session_id is None:
            return route
        reason = self._due(route)
        agent = self._services.agents.get(key)
        if reason is None or (agent is not None and agent.background_running()):
            return route
        self._reset(key, route, route.session_id, reason, agent, stop)
        return None

    def _reset(self, key: str, route: Route, session_id: str, reason: str, agent: Agent | None, stop: Stop) -> None:
        services, db = self._services, self._services.db
        old: str | None = db.get_compression_tip(session_id) if db.get_session(session_id) else None
        session = db.get_session(old) if old is not None else None
        ending = session is not None and session["ended_at"] is None
        if session is not None and ending:
            if agent is not None:
                agent.lease.release()  # our own lease may outlast its turn for a moment
            if db.is_live(session["id"]):
                return  # a terminal is using it
            person = Participant(services, None, route, None, session_id=session["id"])
            try:
                if not person.agent.hold() or person.agent.answering() is not None:
                    return  # another process was faster
                now = services.store.read(routes.get, key)
                if now is None or now.session_id != route.session_id:
                    return  # and has finished already
                old = self._save_what_matters(person, session, stop)
                if services.stopping:
                    return
                with (
                    person.agent.lease.fenced()
                ):  # if this process slept for long, another may be using the session by now
                    db.end_session(old, reason)
                    services.store.write(routes.release, key, previous=old, reason=reason)
            except Fenced as error:
                _log.warning("%s was not reset: %s", key, error)
                return
            finally:
                person.release()
        else:
            services.store.write(routes.release, key, previous=old, reason=reason)
        services.agents.drop(key)
        if old is not None and ending:
            services.ended(old, reason)
        services.index.touched()
        _log.info("%s was reset (%s)", key, reason)

    def _save_what_matters(self, person: Participant, session: SessionRow, stop: Stop) -> str:
        """Run one turn in which the agent saves what will matter later; the session it ended in (it may be compressed).

        A failure must not prevent the reset.
        """
        services = self._services
        if not services.agents.model.calls_tools or not session["message_count"]:
            return str(session["id"])
        try:
            agent = person.agent
            agent.tools = {name: tool for name, tool in agent.tools.items() if name in SAVING}
            for _ in stop.bind(agent.turn(FAREWELL)) if agent.tools else ():
                if services.stopping:
                    stop.want()
        except Fenced:
            raise
        except HermesError as error:
            _log.warning("nothing was saved from %s before its reset: %s", session["id"], error)
        except Exception:  # a faulty tool or model must not keep the conversation open for ever
            _log.exception("nothing was saved from %s before its reset", session["id"])
        return person.session_id

    def pending_notice(self, route: Route, event: Event) -> str | None:
        """The notice for the first message after a reset: that it happened, and how to resume the old conversation."""
        which = policy(self._services.config, route.platform, route.chat_type)
        if route.previous_id is None or route.reset_reason is None or not which.notify:
            return None
        old = self._services.db.get_session(route.previous_id)
        title, preview = (old["title"], old["preview"]) if old else (None, None)
        name = title if title and "`" not in title else route.previous_id
        return notice(route.reset_reason, which, name, language_of([event.words, preview], event.sender.language))
