"""Commands that only show something: /help, /start, /status, /usage, /history, /sessions, /search, /why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.commands.registry import ALIASES, CHATS_ONLY, EDITOR, NOT_IN_EDITORS, TERMINAL, Host, command, known
from hermes.errors import InvalidInput
from hermes.texts import content_text, counted, harmless, one_line, shortened_line
from hermes.times import ago, clock, zone_of

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow, SessionRow

LISTED = 10
_CUT = 200
_CHANGES = 5  # changes of a file that /why shows


@command("help", "", "show this list")
def help_(host: Host, arguments: str) -> None:
    wanted = ALIASES.get(arguments.lstrip("/"), arguments.lstrip("/"))
    rows = known(host.where)
    if wanted:
        rows = [one for one in rows if one.name == wanted] or rows
    lines = _listed(host, {f"/{one.name} {one.arguments}".rstrip(): one.help for one in rows}, code=True)
    if host.where == TERMINAL and len(rows) > 1:
        lines += [
            "",
            "Alt-Enter: new line · Ctrl-C: stop a reply · Ctrl-D: leave",
            "@path: attach a file · Ctrl-O: the last tool output, as /show",
            "!command: run a shell command; the model sees its output.",
            "//text and !!text send text that begins with / or !.",
        ]
    elif len(rows) > 1:
        lines += ["", "`//text` sends text that begins with a slash."]
    host.say("\n".join(lines))


@command("start", "", "", CHATS_ONLY)
def start(host: Host, arguments: str) -> None:
    """The command that some platforms send when a user opens a chat for the first time."""
    host.say("Hello! I'm Hermes, and I remember what we talk about. Just send me a message.")
    help_(host, "")


@command("status", "", "show this session and its model")
def status(host: Host, arguments: str) -> None:
    row = host.db.get_session(host.session_id, visible_to=host.user)
    facts = {"Session": host.session_id if row else "not saved yet: it begins with your first message"}
    if row is None:
        if host.pending_title:
            facts["Title"] = f"{host.pending_title} (set with the first message)"
    else:
        facts["Title"] = row["title"] or "—"
        facts["Messages"] = f"{message_count(host.db, row):,}"
        facts["Started"] = clock(row["started_at"], zone_of(host.config.timezone))
        if row["parent_session_id"]:
            facts["Continues" if row["kind"] == "compression" else "Branch of"] = row["parent_session_id"]
        marks = [*(f"#{tag}" for tag in host.db.get_tags(host.session_id)), *(["pinned"] if row["pinned_at"] else [])]
        if marks:
            facts["Tags"] = " ".join(marks)
        if row["cwd"] and host.where == TERMINAL:
            facts["Folder"] = row["cwd"]
    chosen = host.model.name != host.default_model.name
    facts["Model"] = host.model.describe() + (" (chosen for this conversation)" if chosen else "")
    host.say("\n".join(_listed(host, facts)))


@command("usage", "", "show tokens and cost of this conversation")
def usage(host: Host, arguments: str) -> None:
    if host.db.get_session(host.session_id, visible_to=host.user) is None:
        host.say("Nothing was used yet.")
        return
    chain = host.db.get_compression_chain(host.session_id)
    helpers = [one for part in chain for one in host.db.get_subagents(part)]
    rows = [row for part in (*helpers, *chain) if (row := host.db.get_session(part, visible_to=host.user)) is not None]

    def total(name: str) -> int:
        counts: list[Any] = [dict(row)[name] or 0 for row in rows]
        return sum(counts)

    calls, cached, output = total("api_call_count"), total("cache_read_tokens"), total("output_tokens")
    sent = total("input_tokens") + cached + total("cache_write_tokens")
    facts = {"Model calls": f"{calls:,}"}
    if calls and not sent and not output:
        facts["Tokens"] = "unknown: the model does not report them"
    else:
        facts["Input"] = f"{sent:,} tokens" + (f", {cached:,} of them from the cache" if cached else "")
        facts["Output"] = f"{output:,} tokens"
    if thought := total("reasoning_tokens"):
        facts["Reasoning"] = f"{thought:,} tokens, part of the output"
    facts["Cost"] = _cost([row for row in rows if row["api_call_count"]] or rows, host.model.kind)
    if len(rows) > 1:
        parts = ["those it was compressed from"] if len(chain) > 1 else []
        parts += [counted(len(helpers), "sub-agent")] if helpers else []
        facts["Counted"] = f"{counted(len(rows), 'session')}: this one and {' and '.join(parts)}"
    host.say("\n".join(_listed(host, facts)))


def _cost(rows: Sequence[SessionRow], kind: str) -> str:
    """The cost of all sessions of one conversation: as reported, estimated, or unknown."""
    from hermes.agent.models.model import OWN

    real = [row["actual_cost_usd"] for row in rows]
    best = [row["estimated_cost_usd"] if cost is None else cost for row, cost in zip(rows, real, strict=True)]
    known = [cost for cost in best if cost is not None]
    source = next((row["cost_source"] for row in reversed(rows) if row["cost_source"]), None)
    partly = len(known) < len(rows) or any(row["cost_status"] == "unknown" for row in rows)
    if None not in real:
        reported = f" (as {source} reports)" if source and not partly and rows[-1]["cost_status"] == "actual" else ""
        return f"${sum(known):,.4f}{reported}"
    if source == OWN.source and not sum(known):
        return "none: the model runs on this machine"
    if known:
        by = f" by {source}" if source else ""
        return f"about ${sum(known):,.4f} (estimated{by}{'; some calls have no known price' if partly else ''})"
    if kind in ("embedded", "extractive") and not any(row["billing_base_url"] for row in rows):
        return "none: the model runs in this program"
    return "unknown: no price is known for this model"


def _listed(host: Host, facts: dict[str, str], *, code: bool = False) -> list[str]:
    """Names and values: in columns if the font is monospaced, else as a list."""
    if host.where == TERMINAL:
        width = max(map(len, facts))
        return [f"{name:<{width}}  {value}" for name, value in facts.items()]
    return [f"- `{name}` {value}" if code else f"- **{name}:** {value}" for name, value in facts.items()]


@command("history", "[n]", "show the last n exchanges (10) with message numbers")
def history(host: Host, arguments: str) -> None:
    number = whole_number(arguments, "/history", default=LISTED)
    rows = host.db.get_messages(host.session_id, visible_to=host.user)
    starts = [place for place, row in enumerate(rows) if row["role"] == "user"]
    if not rows:
        host.say("There are no messages yet.")
        return
    first = starts[-number] if len(starts) >= number else 0
    lines = [f"... {counted(first, 'earlier message')} ..."] if first else []
    lines += [line for row in rows[first:] if (line := _line(host, row))]
    host.say("\n".join(lines))


def _line(host: Host, row: MessageRow) -> str | None:
    """A message on one line: its number, sender and text."""
    number = f"{row['id']:>6} " if host.where == TERMINAL else f"- `{row['id']}`"
    text = shortened_line(content_text(row["content"]), _CUT)
    names = tool_names(row["tool_calls"])
    if row["role"] == "user":
        return f"{number} you: {text}"
    if row["role"] == "assistant":
        parts = [text] if text else []
        parts += [f"[{counted(len(names), 'tool call')}: {', '.join(dict.fromkeys(names))}]"] if names else []
        return f"{number} agent: {' '.join(parts)}"
    return None


def tool_names(calls: Any) -> list[str]:
    """The names of the tools a message calls, one a call."""
    if not isinstance(calls, list):
        return []
    named = [call.get("function") or call for call in calls if isinstance(call, dict)]
    return [harmless(str(one.get("name") or "?")) if isinstance(one, dict) else "?" for one in named]


def whole_number(words: str, name: str, *, default: int) -> int:
    """A count that the user typed; InvalidInput when it is not a number."""
    if not words:
        return default
    if not (words.isascii() and words.isdigit()) or len(words) > 9 or int(words) == 0:
        raise InvalidInput(f"expected a number from 1, got {words!r}; for example {name} 3")
    return int(words)


@command("sessions", "[words]", "list recent sessions, or search them", NOT_IN_EDITORS)
def sessions(host: Host, arguments: str) -> None:
    if arguments:
        host.say(_search(host, arguments))
        return
    rows = recent(host)
    if not rows:
        host.say("There are no sessions yet.")
        return
    host.say("\n".join(session_lines(host, rows)) + "\n\n/resume continues one of them.")


@command("search", "<words>", "find messages in all sessions")
def search(host: Host, arguments: str) -> None:
    if not arguments:
        raise InvalidInput("which words? For example /search parser error")
    host.say(_search(host, arguments))


@command("recall", "[off | on]", "show what was recalled for your last message, or switch recall off here")
def recall(host: Host, arguments: str) -> None:
    from hermes.agent.recall import last_recalled, recalled_text, switch_recall

    word = arguments.strip().lower()
    if word in ("off", "on"):
        host.say(switch_recall(host.agent, on=word == "on"))
    elif word:
        raise InvalidInput("`/recall` shows what was recalled; `/recall off` and `/recall on` switch it")
    elif found := last_recalled(host.agent):
        host.say(recalled_text(found))
    elif host.agent.model.kind == "extractive":
        host.say("This assistant answers with what it finds in earlier conversations; it is given nothing beside.")
    else:
        host.say("Nothing was recalled for your last message.")


@command("why", "<file[:line]>", "show which conversation changed a file or line, and why")
def why_(host: Host, arguments: str) -> None:
    from hermes.why import described, parsed, why

    if not arguments:
        raise InvalidInput("which file or line? /why src/app.py:42")
    is_local = host.user is None or host.is_owner
    row = host.db.get_session(host.session_id, visible_to=host.user)
    folder = Path.cwd() if host.where == TERMINAL or row is None or not row["cwd"] else Path(row["cwd"])
    path, lines = parsed(arguments, folder if is_local else None)
    answer = why(host.db, path, lines, limit=_CHANGES, visible_to=host.user, is_local=is_local)
    text = "\n".join(described(answer, zone_of(host.config.timezone)))
    host.say(harmless(text) if answer["changes"] else f"No conversation in the record changed {one_line(arguments)}.")


def recent(host: Host, limit: int = LISTED) -> list[SessionRow]:
    """The sessions a user may want to continue, the latest first."""
    return host.db.list_sessions_rich(
        limit=limit, order_by_last_active=True, include_archived=False, automated=False, visible_to=host.user
    )


def session_lines(host: Host, rows: Sequence[SessionRow]) -> list[str]:
    """A list of sessions: title or beginning, time, and id; in the terminal in columns."""
    width = max((len(row["id"]) for row in rows), default=0)
    return [
        _entry(host, row["id"], row["last_active"], shortened_line(row["title"] or row["preview"] or "—", 48), width)
        + ("  (this one)" if row["id"] == host.session_id else "")
        for row in rows
    ]


def _entry(host: Host, session_id: str, when: float | None, name: str, width: int = 0) -> str:
    moment = ago(when, zone_of(host.config.timezone))
    if host.where == TERMINAL:
        return f"{session_id:<{width}}  {moment:<10}  {name}"
    return f"- {name} · {moment} · `{session_id}`"


def _search(host: Host, words: str) -> str:
    from hermes.agent.history import NEAREST, hits_by_session

    found, _ = hits_by_session(host.db, words, LISTED, 50, visible_to=host.user)
    if not found:
        return f'No messages match "{shortened_line(words, 60)}".'
    lines = [NEAREST] if all(hit["confidence"] == "weak" for hits in found.values() for hit in hits) else []
    for session_id, (hit, *_) in list(found.items())[:LISTED]:
        lines.append(_entry(host, session_id, hit["timestamp"], shortened_line(hit["title"] or "—", 48)))
        lines.append("    " + shortened_line(hit["snippet"].replace(">>>", "").replace("<<<", ""), 160))
    continuing = (
        "" if host.where == EDITOR else "\n\n/resume with an id (or its first characters) continues one of them."
    )
    return "\n".join(lines) + continuing


def message_count(db: SessionDB, row: SessionRow) -> int:
    """How many messages a session shows, including those it carries over from another one."""
    return message_counts(db, [row])[0]


def message_counts(db: SessionDB, rows: Sequence[SessionRow]) -> list[int]:
    """How many messages each of these sessions shows, as `message_count` says."""
    children = [row["id"] for row in rows if row["kind"] in ("branch", "compression")]
    carried = db.carried_message_counts(children) if children else {}
    return [int(row["message_count"] or 0) + carried.get(row["id"], 0) for row in rows]


ONESHOT = "oneshot"  # end_reason of a session of one question (`hermes -q`); continued, it ends with another reason


def is_oneshot(row: Mapping[str, Any]) -> bool:
    """Whether a session is a single question (`hermes -q`) that was not continued."""
    return bool(row["end_reason"] == ONESHOT)
