"""Beginning anew: when a conversation's time is over, the agent saves what matters, the session ends, and the next
message starts another that links to it.

Not in the middle of a turn (this runs in the conversation's lane), not while a program of it runs in the background, and
not while a terminal holds the session. A gateway that stops meanwhile leaves things as they were for the next one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Stop
from hermes.errors import Fenced, HermesError
from hermes.gateway import resets
from hermes.gateway.host import Seat

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.gateway.runner import Gateway
    from hermes.store.gateway_db import Route

SAVING = ("memory", "skills")  # the tools of the last turn
_log = logging.getLogger("hermes.gateway")


def expired(gateway: Gateway) -> list[str]:
    """The keys whose conversation is to begin anew now, and where nothing happens just then."""
    reset = gateway.config.session_reset
    modes = {reset.mode, *(one.mode for one in (*reset.by_platform.values(), *reset.by_type.values()))}
    if modes <= {"none", None}:
        return []
    found = []
    for route in gateway.store.bound_routes(quiet_since=gateway.clock()):
        lane = gateway.lanes.get(route.key)
        if gateway.sharing is not None and not gateway.sharing.is_ours(route.key, route.platform):
            continue
        if _due(gateway, route) is not None and (lane is None or (lane.running is None and not lane.waiting)):
            found.append(route.key)
    return found


def _due(gateway: Gateway, route: Route) -> str | None:
    policy = resets.policy(gateway.config, route.platform, route.chat_type)
    return resets.due(policy, route.last_user_at, gateway.clock(), gateway.zone)


def begin_anew(gateway: Gateway, key: str, stop: Stop) -> Route | None:
    """If it is time: let the agent save what matters, end the session, and have the next message start another.

    The key's route, if it is not time and nothing was done.
    """
    route = gateway.store.route(key)
    if route is None or route.session_id is None:
        return route
    reason = _due(gateway, route)
    agent = gateway.agents.get(key)
    if reason is None or (agent is not None and agent.background_running()):
        return route
    _begin_anew(gateway, key, route, route.session_id, reason, agent, stop)
    return None


def _begin_anew(
    gateway: Gateway, key: str, route: Route, session_id: str, reason: str, agent: Agent | None, stop: Stop
) -> None:
    db = gateway.db
    old: str | None = db.get_compression_tip(session_id) if db.get_session(session_id) else None
    session = db.get_session(old) if old is not None else None
    ending = session is not None and session["ended_at"] is None
    if session is not None and ending:
        if agent is not None:
            agent.let_go()  # our own hold may last a moment longer than its turn
        if db.is_live(session["id"]):
            return  # it is being talked in at a terminal
        seat = Seat(gateway, None, route, None, session_id=session["id"])
        try:
            if not seat.agent.hold() or seat.agent.answering() is not None:
                return  # somebody was quicker
            now = gateway.store.route(key)
            if now is None or now.session_id != route.session_id:
                return  # and is through with it already
            old = _save_what_matters(gateway, seat, session, stop)
            if gateway.stopping:
                return
            with seat.agent.fenced():  # if we were stopped for long, somebody may be talking in it by now
                db.end_session(old, reason)
                gateway.store.let_go(key, previous=old, reason=reason)
        except Fenced as error:
            _log.warning("%s does not begin anew: %s", key, error)
            return
        finally:
            seat.let_go()
    else:
        gateway.store.let_go(key, previous=old, reason=reason)
    gateway.agents.drop(key)
    if old is not None and ending:
        gateway.ended(old, reason)
    gateway.touched()
    _log.info("%s begins anew (%s)", key, reason)


def _save_what_matters(gateway: Gateway, seat: Seat, session: dict[str, Any], stop: Stop) -> str:
    """One turn in which the agent may note what will matter later; the session it ended in (it may have been compressed).

    That it fails must not stop a reset.
    """
    if not gateway.agents.model.calls_tools or not session["message_count"]:
        return str(session["id"])
    try:
        agent = seat.agent
        agent.tools = {name: tool for name, tool in agent.tools.items() if name in SAVING}
        for _ in stop.bind(agent.turn(resets.FAREWELL)) if agent.tools else ():
            if gateway.stopping:
                stop.want()
    except Fenced:
        raise
    except HermesError as error:
        _log.warning("what matters of %s could not be saved before its reset: %s", session["id"], error)
    except Exception:  # a tool or model that misbehaves: the conversation must not stay for ever because of it
        _log.exception("what matters of %s could not be saved before its reset", session["id"])
    return seat.session_id


def told(gateway: Gateway, route: Route) -> str | None:
    """What the user is to hear with the first message after a reset: that it was one, and how the old one comes back."""
    policy = resets.policy(gateway.config, route.platform, route.chat_type)
    if route.previous_id is None or route.reset_reason is None or not policy.notify:
        return None
    title = gateway.db.get_session_title(route.previous_id)
    return resets.notice(route.reset_reason, policy, title if title and "`" not in title else route.previous_id)
