"""Slack's two formats: a model's Markdown becomes blocks, Slack's message text becomes readable text again.

Slack renders a model's Markdown itself, in blocks of the kind "markdown" (headings, lists, tables, code), so nothing is
translated here. What could ping people is made harmless with an invisible character. Where Slack refuses the blocks,
the same text goes out as plain sections, which Slack never interprets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hermes.gateway.events import Choice

INVISIBLE = "\u2060"  # between a sign and its name it keeps Slack from taking both for a mention
_PREVIEW = 3_900  # chat.update takes 4,000 characters of text; notifications and screen readers get these
_SECTION = 1_500  # a section takes 3,000; Slack does not document the unit

_SAYS = "says:"  # in the id of a button, before its number

_PINGS = re.compile(
    r"(<)(?=!(?:channel|here|everyone|group|subteam)|@[a-z0-9])|(?<![\w.])(@)(?=(?:channel|here|everyone)\b)",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"<([^<>]+)>")
_BANG = re.compile(r"!([^\s!/]+)(\s.*)?", re.DOTALL)

# ------------------------------------------------------------------------------------------------ out


def without_pings(text: str) -> str:
    """The text, with nothing in it that would ping people; it looks the same."""
    return _PINGS.sub(lambda found: found[0] + INVISIBLE, text)


def formatted(text: str) -> list[dict[str, Any]]:
    """Markdown as blocks that Slack renders."""
    return [{"type": "markdown", "text": without_pings(text)}]


def plain(text: str) -> list[dict[str, Any]]:
    """The bare text as blocks that Slack takes as they are."""
    return [
        {"type": "section", "text": {"type": "plain_text", "text": piece, "emoji": False}}
        for piece in _pieces(text)
        if piece.strip()
    ]


def buttons(choices: Sequence[Choice]) -> dict[str, Any]:
    """A block with buttons; their ids must differ, also of two that say the same."""
    return {
        "type": "actions",
        "elements": [
            {
                "type": "button",
                "text": {"type": "plain_text", "text": one.label[:75], "emoji": False},
                "action_id": f"{_SAYS}{number}",
                "value": one.says,
            }
            for number, one in enumerate(choices)
        ],
    }


class Pressed(NamedTuple):
    """A pressed button."""

    says: str
    user: str
    chat_id: str
    ts: str  # of the message it belongs to
    thread: str | None
    action_ts: str


def pressed(payload: Mapping[str, Any]) -> Pressed | None:
    """The button of ours that an interaction is about; None for every other interaction."""
    actions, container = payload.get("actions"), payload.get("container")
    user, message = payload.get("user"), payload.get("message")
    action = actions[0] if isinstance(actions, list) and actions and isinstance(actions[0], dict) else {}
    if payload.get("type") != "block_actions" or not isinstance(container, dict) or not isinstance(user, dict):
        return None
    says, chat_id, ts = action.get("value"), container.get("channel_id"), container.get("message_ts")
    if not str(action.get("action_id") or "").startswith(_SAYS) or not isinstance(says, str):
        return None
    if not user.get("id") or not chat_id or not ts:
        return None
    thread = container.get("thread_ts") or (message.get("thread_ts") if isinstance(message, dict) else None)
    return Pressed(
        says, str(user["id"]), str(chat_id), str(ts), str(thread) if thread and thread != ts else None,
        str(action.get("action_ts") or payload.get("trigger_id") or ""),
    )  # fmt: skip


def _pieces(text: str) -> Iterable[str]:
    """The text in parts, cut at ends of lines where there are some."""
    while len(text) > _SECTION:
        cut = text.rfind("\n", 0, _SECTION) + 1 or _SECTION
        yield text[:cut]
        text = text[cut:]
    yield text


def escaped(text: str) -> str:
    """The text escaped for fields in which Slack looks for links and mentions: it finds none."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def preview(text: str) -> str:
    """The beginning of a message for notifications, search and screen readers."""
    whole = escaped(without_pings(text))
    if len(whole) <= _PREVIEW:
        return whole
    cut = whole[: _PREVIEW - 1]
    amper = cut.rfind("&", -5)
    if amper >= 0 and ";" not in cut[amper:]:
        cut = cut[:amper]  # never half an "&amp;"
    return cut + "…"


# ------------------------------------------------------------------------------------------------ in


def mentioned(text: str) -> list[str]:
    """The ids of the people a Slack message mentions."""
    return [inner[1:].partition("|")[0] for inner in _BRACKETS.findall(text) if inner.startswith("@")]


def readable(text: str, us: str, names: Mapping[str, str]) -> str:
    """A Slack message as the person wrote it, without the mention of `us`. `names` has the names of the others."""
    if us:
        text = re.sub(rf"[ \t]*<@{re.escape(us)}(?:\|[^<>]*)?>[ \t]*", " ", text)
    text = _BRACKETS.sub(lambda found: _spelled(found[1], names), text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _spelled(inner: str, names: Mapping[str, str]) -> str:
    """The original text of what Slack put into angle brackets."""
    target, _, label = inner.partition("|")
    match target[:1]:
        case "@":
            return "@" + (names.get(target[1:]) or label or target[1:])
        case "#":
            return "#" + (label or target[1:])
        case "!":
            return label or "@" + target[1:].partition("^")[0]
    if not label or target == label:
        return target
    if target.endswith((label, label + "/")):  # "example.com" was typed, and Slack made a link of it
        return label
    return f"[{label}]({target})"


def shared(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages that a message forwards, as Slack puts them below it; not the previews of links."""
    return [one for one in message.get("attachments") or () if one.get("is_share") or one.get("is_msg_unfurl")]


def files(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files of a message and of those it forwards."""
    return [file for one in (message, *shared(message)) for file in one.get("files") or ()]


def command(text: str, known: Collection[str]) -> str:
    """`!title x` is `/title x`: Slack reserves texts that begin with a slash for apps. Other texts stay."""
    found = _BANG.fullmatch(text)
    return "/" + text[1:] if found is not None and found[1].casefold() in known else text


def slash(name: str, text: str, known: Collection[str]) -> str:
    """A native command as a line of text: `/hermes title x` is `/title x`, `/hermes how are you` is a message."""
    bare, text = name.lstrip("/"), text.strip()
    if bare.casefold() in known:
        return f"/{bare} {text}".rstrip()
    first = text.partition(" ")[0]
    if not text:
        return "/help"
    return "/" + text if first.casefold() in known else command(text, known)
