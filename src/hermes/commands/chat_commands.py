"""Commands of chats: /queue; and /handoff, which moves a conversation to the chat of /sethome.

The gateway's inbox takes the text of /queue as a message to the agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.commands.registry import CHATS_ONLY, EDITOR, TERMINAL, Host, command
from hermes.errors import InvalidInput

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB


@command("queue", "TEXT", "ask after the current reply, or list what waits", CHATS_ONLY)
def queue(host: Host, arguments: str) -> None:
    host.say("Nothing is waiting. `/queue TEXT` asks it after the current reply, without stopping that reply.")


# Seconds without a heartbeat before a handoff fails: of a gateway that should claim it, or that has claimed it.
PATIENCE = 60.0
LONGEST = 600.0
_LOOK = 0.25
NOT_CLAIMED = "no gateway took it over"
WITHDRAWN = "it was withdrawn"
LATER = "The gateway is being restarted; the handoff continues if it is back within two minutes."


def _platforms(host: Host) -> list[str]:
    return host.config.enabled_platforms


@command("handoff", "<platform>", "continue this conversation on a chat platform", complete=_platforms)
def handoff(host: Host, arguments: str) -> None:
    platform = arguments.strip().casefold()
    if not host.is_owner:
        raise InvalidInput("only the owner of this assistant can hand a conversation over")
    if not platform:
        raise InvalidInput(f"to which platform? {_offered(host)}")
    if (why := host.config.why_answers_only(platform)) is not None:
        raise InvalidInput(why)
    if platform not in _platforms(host):
        raise InvalidInput(f"{platform} is not switched on. {_offered(host)}")
    if platform == host.platform:
        raise InvalidInput(f"this conversation is already on {platform}")
    if not has_home(host.db, host.config, platform):
        raise InvalidInput(f"{platform} has no home chat yet: send /sethome in the chat where handoffs should arrive")
    session_id = host.session_id
    if host.db.get_session(session_id) is None:
        raise InvalidInput("there is nothing to hand over yet: the session begins with your first message")
    if host.agent.busy:
        raise InvalidInput("a reply is being written; wait for it, or stop it, then try again")
    if not host.agent.hold():
        raise InvalidInput("another program has this conversation open; hand it over from there, or close it there")
    if not host.db.request_handoff(session_id, platform):
        raise InvalidInput("a handoff of this conversation is already in progress")
    try:
        host.agent.lease.release()
        host.say(f"Handing over to {platform}…")
        problem = wait(host.db, session_id, stopped=lambda: bool(getattr(host, "stopping", False)))
    except BaseException as error:  # Ctrl-C, a closed terminal: no gateway may carry it out from here on
        host.db.fail_handoff(session_id, WITHDRAWN)
        state = host.db.get_handoff_state(session_id)
        problem = f"{WITHDRAWN}."
        if state is not None and state["state"] == "completed":  # at this very moment
            problem = None
            host.leave(ending=False)
        if not isinstance(error, KeyboardInterrupt):
            raise
    if problem == LATER:
        host.say(problem)
        return
    if problem is not None:
        if host.where == TERMINAL:
            host.agent.hold()
        host.say(f"The handoff did not work: {problem}\nThis conversation is unchanged; continue here, or try again.")
        return
    name = host.db.get_session_title(host.db.get_compression_tip(session_id)) or session_id
    done = f"↻ Handoff complete. The session is now active on {platform}."
    if host.where == TERMINAL:
        host.say(f"{done}\nResume it on this CLI later with:\n\n  /resume {name}\n")
    elif host.where == EDITOR:
        host.say(f"{done}\nIt can still be continued here; load it again to see what was said there.")
    else:
        host.say(f"{done}\nYour next message here begins a new session; `/resume {name}` returns to this one.")
    host.leave(ending=False)


def _offered(host: Host) -> str:
    names = [name for name in _platforms(host) if name != host.platform and not host.config.why_answers_only(name)]
    if not names:
        return "No chat platform is set up; run `hermes gateway setup`."
    return "Available: " + ", ".join(names)


def has_home(db: SessionDB, config: Config, platform: str) -> bool:
    """Whether a platform has a chat where handoffs arrive."""
    from hermes.store.gateway import approvals
    from hermes.store.gateway.gateway_db import GatewayDB

    configured = bool(config.platform_section(platform).get("home_channel"))
    return configured or GatewayDB(db).read(approvals.home, platform) is not None


def wait(db: SessionDB, session_id: str, *, stopped: Callable[[], bool] = lambda: False) -> str | None:
    """Wait until a handoff is completed; None, or the problem. A request not claimed within a minute is cancelled.

    LATER when `stopped()` turns true meanwhile.
    """
    begun, limit = time.monotonic(), PATIENCE
    while not stopped():
        state = db.get_handoff_state(session_id)
        waited = time.monotonic() - begun
        if state is None or state["state"] in (None, "failed"):
            return (state["error"] if state is not None else None) or NOT_CLAIMED
        if state["state"] == "completed":
            return None
        if state["state"] == "pending" and waited > limit and db.withdraw_handoff(session_id, NOT_CLAIMED):
            return f"{NOT_CLAIMED} within {limit:.0f} seconds. Is it running? See `hermes gateway status`."
        left = db.handoff_seconds_left(session_id)
        if waited > LONGEST or (left is not None and left < -limit):
            why = "the gateway did not finish it" if waited > LONGEST else "the gateway ended during the handoff"
            db.fail_handoff(session_id, why)
            return f"{why}."
        time.sleep(_LOOK)
    return LATER


@command("sethome", "", "send handoffs and deliveries to this chat", CHATS_ONLY)
def sethome(host: Host, arguments: str) -> None:
    if not host.is_owner:
        platform = host.platform.partition("/")[0]
        who = f"{platform}:{host.user[1]}" if host.user else platform
        raise InvalidInput(f"only the owner can do that. If that is you, put `owner: [{who}]` into config.yaml")
    from hermes.store.gateway import approvals
    from hermes.store.gateway.gateway_db import GatewayDB

    if (why := host.config.why_answers_only(host.platform)) is not None:
        raise InvalidInput(why)
    place = host.place
    if place is None:
        raise InvalidInput("this is not a chat")
    GatewayDB(host.db).write(approvals.set_home, host.platform, place, host.platform)
    host.say(f"This is the home chat now: `/handoff {host.platform}` in the terminal moves a conversation here.")
