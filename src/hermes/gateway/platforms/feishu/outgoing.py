"""Replies as cards: Markdown in one element, without what would call people, show foreign pictures or break the card.

A card (JSON 2.0) is edited as often as needed, a text message 20 times at most: so all replies are cards.
https://open.feishu.cn/document/feishu-cards/card-json-v2-components/content-components/rich-text
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

LONGEST = 27_000  # of the 30 KB of a card's request, counted by `length`
TABLES = 5  # that one card may have
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
_TAG = re.compile(r"<(?=/?[A-Za-z])(?!https?://|mailto:)")
_PICTURE = re.compile(r"!(?=\[)")
_TABLE = re.compile(
    r"^[^\n]*\|[^\n]*\n[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*(?:\n[^\n]*\|[^\n]*)*", re.MULTILINE
)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def length(text: str) -> int:
    """The bytes of a text in a request, at most: a card is JSON inside JSON, a tag's < becomes an entity, tables become code."""
    more = 3 * (text.count('"') + text.count("\\")) + 8 * text.count("\n") + 6 * text.count("<")
    return len(text.encode("utf-8", "surrogatepass")) + more + 6 * len(_CONTROL.findall(text))


def shown(text: str) -> str:
    """Markdown for a card: tags of Feishu's own (`<at id=all>`) are shown as written, pictures become links."""
    parts = _CODE.split(text)
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = part.replace("<at", "<\u200bat")  # it is not documented that code is safe
        else:
            parts[number] = _PICTURE.sub("", _TAG.sub("&#60;", part))
    return _few_tables("".join(parts))


def _few_tables(text: str) -> str:
    """More tables than a card may have are shown as code."""
    if text.count("|") < 2 * TABLES:
        return text
    parts, tables = _CODE.split(text), 0

    def table(found: re.Match[str]) -> str:
        nonlocal tables
        tables += 1
        return found.group() if tables <= TABLES else f"```\n{found.group()}\n```"

    return "".join(part if number % 2 else _TABLE.sub(table, part) for number, part in enumerate(parts))


def card(text: str, buttons: Sequence[tuple[str, dict[str, Any]]] = (), *, plain: bool = False) -> str:
    """A card as the `content` of a message. `plain` shows the text as it is, for a card whose Markdown Feishu refuses."""
    body: dict[str, Any] = {"tag": "markdown", "content": shown(text)}
    if plain:
        body = {"tag": "div", "text": {"tag": "plain_text", "content": text}}
    pressed = [
        {
            "tag": "button",
            "text": {"tag": "plain_text", "content": label},
            "behaviors": [{"type": "callback", "value": value}],
        }
        for label, value in buttons
    ]
    content = {"schema": "2.0", "config": {"update_multi": True}, "body": {"elements": [body, *pressed]}}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
