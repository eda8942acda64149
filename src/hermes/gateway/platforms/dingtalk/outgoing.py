"""Texts as DingTalk shows them: its Markdown has no tables, ignores single line breaks, and fetches pictures.

A text without any markup is sent as text, which is shown as it is.
"""

from __future__ import annotations

import json
import re

from hermes.gateway.platforms._shared import markup

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_ROW = re.compile(r"^ {0,3}\|?.*\|")
_RULE = re.compile(r"^ {0,3}\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?)?\s*$")
_PICTURE = re.compile(r"!\[([^\]\n]{0,500})\]\(([^)\s]{0,2000})(?:\s[^)\n]{0,500})?\)")  # bounded: the text may be long
_CODE = re.compile(r"(`[^`\n]*`)")
_TITLE = 40  # characters of a message's title, which is shown in the list of chats
_PLAIN = markup.Layout(bullet="- ")


def length(text: str) -> int:
    """A text's length as it is sent: bytes in JSON, with two spaces at each line break and cell of a table."""
    added = 2 * (text.count("\n") + text.count("|"))
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2 + added


def is_plain(text: str) -> bool:
    """Whether a text has no markup to be shown."""
    return not markup.html(text)[1]


def title_of(text: str) -> str:
    """The first words of a text: what a notification shows."""
    words = " ".join((markup.marked(text, _PLAIN).text or text).split())
    return words if len(words) <= _TITLE else f"{words[: _TITLE - 1]}…"


def card(text: str) -> str:
    """The data of a card with a Markdown text, in JSON."""
    header = {"title": {"type": "text", "text": title_of(text)}}
    contents = [{"type": "markdown", "text": markdown(text), "id": "text"}]
    data = {"config": {"autoLayout": True, "enableForward": True}, "header": header, "contents": contents}
    return json.dumps(data, ensure_ascii=False)


def markdown(text: str) -> str:
    """A Markdown text in DingTalk's Markdown."""
    made: list[str] = []
    lines, place, in_code = text.split("\n"), 0, False
    while place < len(lines):
        line = lines[place]
        if _FENCE.match(line):
            in_code = not in_code
            made.append(line)
        elif in_code:
            made.append(line)
        elif place + 1 < len(lines) and _ROW.match(line) and _RULE.match(lines[place + 1]):
            end = place + 2
            while end < len(lines) and _ROW.match(lines[end]):
                end += 1
            made += [_row(one) for number, one in enumerate(lines[place:end]) if number != 1]
            place = end
            continue
        else:
            made.append(_without_pictures(line))
        place += 1
    return _broken(made)


def _row(line: str) -> str:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    return " | ".join(_without_pictures(cell.strip().replace("\\|", "|")) for cell in cells) + "  "


def _without_pictures(line: str) -> str:
    """A picture becomes a link: no client fetches it."""
    parts = _CODE.split(line)
    shown = (part if number % 2 else _PICTURE.sub(_link, part) for number, part in enumerate(parts))
    return "".join(shown)


def _link(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[2]})" if found[1] and found[2] else found[1] or found[2]


def _broken(lines: list[str]) -> str:
    """The lines with breaks that DingTalk shows; those of code stay."""
    made, in_code = [], False
    for number, line in enumerate(lines):
        fence = bool(_FENCE.match(line))
        in_code = in_code != fence
        following = lines[number + 1] if number + 1 < len(lines) else ""
        breaks = line.strip() and following.strip() and not in_code and not fence and not _FENCE.match(following)
        made.append(f"{line.rstrip()}  " if breaks else line.rstrip() if not in_code else line)
    return "\n".join(made)
