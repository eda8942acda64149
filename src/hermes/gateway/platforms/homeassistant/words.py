"""Text as Home Assistant shows it: its own notifications know Markdown, those on phones and speakers don't."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_HIDDEN = "\u200b"  # takes no room, and keeps two signs from meaning something together


def harmless(text: str) -> str:
    """Markdown for Home Assistant's own page, which would follow HTML in it and fetch pictures: neither is left."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "<" + _HIDDEN, _whole(text))
    return re.sub(r"!(?=\[)", "!" + _HIDDEN, text)


def plain(text: str) -> str:
    """Markdown as plain text: lists and code as they are, links with their addresses, no marks of emphasis."""
    lines: list[str] = []
    lists: list[int | None] = []  # the number of the last item, or None where items have none
    cells: list[str] | None = None  # of the table's row we are in
    mark = ""
    for token in _MARKDOWN.parse(_whole(text)):
        if token.type in ("bullet_list_open", "ordered_list_open"):
            lists.append(int(token.attrs.get("start", 1)) - 1 if token.type.startswith("ordered") else None)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
            mark = "" if not lists else mark
            lines += [] if lists else [""]
        elif token.type == "list_item_open":
            number = lists[-1]
            lists[-1] = number = None if number is None else number + 1
            mark = "  " * (len(lists) - 1) + ("- " if number is None else f"{number}. ")
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            lines.append(" | ".join(cells or []))
            cells = None
        elif token.type == "inline" and cells is not None:
            cells.append(_inline(token))
        elif token.type == "inline":
            lines.append(mark + _inline(token))
            mark = " " * len(mark)
        elif token.type in ("fence", "code_block"):
            lines += [token.content.rstrip("\n"), ""]
        elif token.type == "table_close" or (token.type in ("paragraph_close", "heading_close") and not lists):
            lines.append("")
            mark = ""
    return "\n".join(lines).strip("\n")


def _inline(token: Token) -> str:
    shown: list[str] = []
    links: list[tuple[str, int]] = []
    for child in token.children or []:
        if child.type in ("softbreak", "hardbreak"):
            shown.append("\n")
        elif child.type == "link_open":
            links.append((str(child.attrs.get("href", "")), len(shown)))
        elif child.type == "link_close" and links:
            address, start = links.pop()
            if "".join(shown[start:]) != address:
                shown.append(f" ({address})")
        elif child.type == "image":
            shown.append(f"{child.content} ({child.attrs.get('src', '')})")
        else:
            shown.append(child.content)
    return "".join(shown)


def _whole(text: str) -> str:
    """Text without halves of characters, which can't be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")
