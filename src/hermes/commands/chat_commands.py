"""Commands of chats alone: /insights and /save, which the terminal has as `hermes insights` and `hermes sessions export`,
/queue and /background, whose texts the gateway's inbox takes as messages to the agent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol, cast

from hermes.commands.registry import CHATS_ONLY, Host, command
from hermes.errors import InvalidInput
from hermes.texts import counted
from hermes.times import zone_of

if TYPE_CHECKING:
    from hermes.store.records.rows import InsightsTokens

_FORMATS = {"md": "text/markdown", "html": "text/html", "jsonl": "application/x-ndjson"}
_LONGEST_DAYS = 3650


class _TakesFiles(Protocol):
    def send_file(self, name: str, mime: str, data: bytes, caption: str) -> str | None: ...


@command("insights", "[days]", "show usage of the last days (30)", CHATS_ONLY)
def insights(host: Host, arguments: str) -> None:
    days = int(arguments) if arguments.isdecimal() else 30
    if (arguments and not arguments.isdecimal()) or not 1 <= days <= _LONGEST_DAYS:
        raise InvalidInput(f"expected a number of days from 1 to {_LONGEST_DAYS}, got {arguments!r}: `/insights 7`")
    found = host.db.insights(days, timezone=zone_of(host.config.timezone), whole_days=True, visible_to=host.user)
    if not found["sessions"]:
        host.say(f"Nothing in the last {counted(days, 'day')}.")
        return
    lines = [
        f"**The last {counted(days, 'day')}**: {counted(found['sessions'], 'session')}, "
        f"{counted(found['messages'], 'message')}, {counted(found['tool_calls'], 'tool call')}",
        f"- Tokens: {_tokens(found['tokens'])}",
    ]
    cost = found["cost"]
    if cost["usd"] is not None:
        unknown = counted(cost["unknown_sessions"], "session")
        without = f" ({unknown} without a known price)" if cost["unknown_sessions"] else ""
        lines.append(f"- Cost: ${cost['usd']:.2f}{without}")
    lines += [
        f"- {one['model'] or 'unknown model'}: {counted(one['sessions'], 'session')}, {_tokens(one['tokens'])} tokens"
        for one in found["by_model"][:5]
    ]
    if len(found["by_source"]) > 1:
        lines.append("- " + ", ".join(f"{one['source']} {one['sessions']:,}" for one in found["by_source"][:8]))
    host.say("\n".join(lines))


def _tokens(tokens: InsightsTokens) -> str:
    return f"{tokens['input'] + tokens['cache_read'] + tokens['cache_write']:,} in, {tokens['output']:,} out"


@command("queue", "TEXT", "ask after the current reply, or list what waits", CHATS_ONLY)
def queue(host: Host, arguments: str) -> None:
    host.say("Nothing is waiting. `/queue TEXT` asks it after the current reply, without stopping that reply.")


@command("background", "TEXT", "ask in a session of its own, while this one goes on", CHATS_ONLY)
def background(host: Host, arguments: str) -> None:
    raise InvalidInput("what do you want to ask? `/background TEXT` asks it in a session of its own")


@command("save", "[md | html | jsonl]", "send this conversation as a file", CHATS_ONLY)
def save(host: Host, arguments: str) -> None:
    wanted = arguments.strip().lower() or "md"
    if wanted not in _FORMATS:
        raise InvalidInput(f"expected one of {', '.join(_FORMATS)}, got {wanted!r}: `/save html`")
    session = host.db.export_session(host.session_id, visible_to=host.user)
    if session is None:
        raise InvalidInput("there is nothing to save yet: the session begins with your first message")
    from hermes.interop.formats import Export, writers, written

    title = session.get("title") or host.session_id
    export = Export(
        sessions=[session], title=str(title), zone=zone_of(host.config.timezone), attachments=host.db.read_attachment
    )
    data = b"".join(written(writers()[wanted], export))
    name = re.sub(r"[^\w.-]+", "-", str(title)).strip("-.")[:60] or host.session_id
    problem = cast(_TakesFiles, host).send_file(f"{name}.{wanted}", _FORMATS[wanted], data, "")
    host.say(problem or f"Here is this conversation: {name}.{wanted}")
