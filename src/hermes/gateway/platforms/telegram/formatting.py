"""Markdown as language models write it → a text and its marks, as Telegram wants them (message entities).

Marks lie beside the text and are not written into it, so nothing in a text can break out of them, and the text's
length is what it looks like. Where the formatted text would be too long, the text as it was written is sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from telegram import MessageEntity
from wcwidth import wcswidth

from hermes.gateway.adapter import utf16_units

LONGEST = 4096  # UTF-16 units of a message, without its marks
_WIDEST_TABLE = 60  # columns that a screen shows without folding the lines
_STYLES = {"strong": MessageEntity.BOLD, "em": MessageEntity.ITALIC, "s": MessageEntity.STRIKETHROUGH}
_BOX = re.compile(r"\[([ xX])\] +")
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w+#.-]{1,32}")


class Formatted(NamedTuple):
    """What is sent: the text that people see, and which parts of it look special."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["strikethrough", "table"]).disable(["html_inline", "html_block"])


def plain(text: str) -> Formatted:
    """A text as it is; halves of signs that no wire can carry are replaced."""
    return Formatted(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def formatted(text: str, longest: int = LONGEST) -> Formatted:
    """A Markdown text with its formatting; without, if that is too long or if nothing would be left to see."""
    whole = plain(text)
    tokens = _parser().parse(whole.text)
    for aligned in (True, False):  # columns side by side take more room than the bare cells
        writer = _Writer(aligned)
        writer.blocks(tokens)
        result = writer.result()
        if result.text.strip() and utf16_units(result.text) <= longest:
            return result
    return whole


class _Writer:
    """Goes over the tokens once, writing text and opening and closing marks as it goes."""

    def __init__(self, aligned: bool) -> None:
        self._aligned = aligned
        self._parts: list[str] = []
        self._units = 0
        self._marks: list[MessageEntity] = []
        self._styles: dict[str, int] = {}  # bold, italic, … that are open now, and since where
        self._depth: dict[str, int] = {}  # how often each was opened: the outermost counts
        self._line = 0  # of the source: where the last block ended
        self._lists: list[int | None] = []  # per level the next number, None for bullets
        self._marker = ""  # of the list item that begins with the next block
        self._quotes = 0
        self._quote_since: int | None = None
        self._link: tuple[int, int, str] | None = None  # since which unit, which part, to where

    def result(self) -> Formatted:
        text = "".join(self._parts).rstrip()
        units = utf16_units(text)
        marks = [
            MessageEntity(one.type, one.offset, min(one.length, units - one.offset), url=one.url, language=one.language)
            for one in sorted(self._marks, key=lambda one: (one.offset, -one.length))
            if one.offset < units
        ]
        return Formatted(text, tuple(marks))

    # ------------------------------------------------------------------------------------------------ blocks

    def blocks(self, tokens: Sequence[Token]) -> None:
        place = 0
        while place < len(tokens):
            token = tokens[place]
            if token.type == "table_open":
                end = next(i for i in range(place, len(tokens)) if tokens[i].type == "table_close")
                self._begin(token)
                self._table([one for one in tokens[place:end] if one.type in ("tr_open", "inline")])
                place = end
            elif token.type in ("paragraph_open", "heading_open"):
                self._begin(token)
                self._text_block(tokens[place + 1].children or [], heading=token.type == "heading_open")
                place += 2
            elif token.type in ("fence", "code_block"):
                self._begin(token)
                language = _LANGUAGE.match(token.info.strip())
                self._fixed(token.content.rstrip("\n"), language[0] if language else None)
            elif token.type == "hr":
                self._begin(token)
                self._write("———")
            else:
                self._around(token)
            place += 1

    def _around(self, token: Token) -> None:
        """What has blocks inside it: lists, their items, quotations."""
        if token.type == "bullet_list_open":
            self._lists.append(None)
        elif token.type == "ordered_list_open":
            start = token.attrGet("start")
            self._lists.append(1 if start is None else int(start))
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            self._lists.pop()
        elif token.type == "list_item_open":
            number = self._lists[-1]
            self._marker += "• " if number is None else f"{number}. "
            self._lists[-1] = None if number is None else number + 1
        elif token.type == "list_item_close":
            self._marker = ""
        elif token.type == "blockquote_open":
            self._quotes += 1
        elif token.type == "blockquote_close":
            self._quotes -= 1
            if not self._quotes and self._quote_since is not None:
                self._mark(MessageEntity.BLOCKQUOTE, self._quote_since)
                self._quote_since = None

    def _begin(self, token: Token) -> None:
        """Start a block as far below the last one as it is in the source."""
        start, end = token.map or (self._line, self._line)
        if self._parts:
            self._write("\n\n" if start > self._line else "\n")
        self._line = end
        if self._quotes and self._quote_since is None:
            self._quote_since = self._units
        if self._lists:
            levels = len(self._lists)
            self._write("  " * (levels - 1) + self._marker if self._marker else "  " * levels)
        self._marker = ""

    def _text_block(self, children: Sequence[Token], heading: bool) -> None:
        if heading:
            self._open(MessageEntity.BOLD)
        if self._lists and children and children[0].type == "text":
            box = _BOX.match(children[0].content)
            if box is not None:
                self._write("☐ " if box[1] == " " else "☑ ")
                children[0].content = children[0].content[box.end() :]
        self._inline(children)
        if heading:
            self._close(MessageEntity.BOLD)

    def _table(self, tokens: Sequence[Token]) -> None:
        rows: list[list[str]] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            else:
                rows[-1].append(_words(token.children or []))
        widths = [max(map(_columns, cells)) for cells in zip(*rows)]
        if self._aligned and sum(widths) + 3 * (len(widths) - 1) <= _WIDEST_TABLE:
            rule = "─┼─".join("─" * width for width in widths)
            lines = [
                " │ ".join(cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths)).rstrip()
                for row in rows
            ]
            self._fixed("\n".join([lines[0], rule, *lines[1:]]), None)
        else:
            between = " | " if self._aligned else "|"
            self._fixed("\n".join(between.join(row) for row in rows), None)

    # ------------------------------------------------------------------------------------------------ lines

    def _inline(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            kind, _, side = token.type.rpartition("_")
            if token.type in ("softbreak", "hardbreak"):
                self._write("\n" + "  " * len(self._lists))
            elif token.type == "code_inline":
                self._fixed_words(token.content)
            elif token.type == "link_open":
                self._link = (self._units, len(self._parts), str(token.attrGet("href") or ""))
            elif token.type == "link_close":
                self._end_link()
            elif token.type == "image":
                self._image(token)
            elif kind in _STYLES:
                (self._open if side == "open" else self._close)(_STYLES[kind])
            else:
                self._write(token.content)

    def _end_link(self) -> None:
        if self._link is None:
            return
        since, part, address = self._link
        self._link = None
        if _is_web(address):
            self._mark(MessageEntity.TEXT_LINK, since, url=address)
        else:
            self._write(_aside("".join(self._parts[part:]), address))

    def _image(self, token: Token) -> None:
        since, address = self._units, str(token.attrGet("src") or "")
        self._write(token.content or "image")
        if self._link is None and _is_web(address):
            self._mark(MessageEntity.TEXT_LINK, since, url=address)

    # ------------------------------------------------------------------------------------------------ marks

    def _write(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._units += utf16_units(text)

    def _mark(self, kind: str, since: int, **more: Any) -> None:
        if self._units > since:
            self._marks.append(MessageEntity(kind, since, self._units - since, **more))

    def _open(self, style: str) -> None:
        self._depth[style] = self._depth.get(style, 0) + 1
        self._styles.setdefault(style, self._units)

    def _close(self, style: str) -> None:
        self._depth[style] -= 1
        if not self._depth[style]:
            self._mark(style, self._styles.pop(style))

    def _fixed_words(self, text: str) -> None:
        """Code inside a line. A link may not hold it: there the words alone are written."""
        if self._link is not None:
            self._write(text)
        else:
            self._fixed(text, None, MessageEntity.CODE)

    def _fixed(self, text: str, language: str | None, kind: str = MessageEntity.PRE) -> None:
        """Code. Telegram allows no other mark to share its letters: styles end before it and go on after it."""
        for style, since in self._styles.items():
            self._mark(style, since)
        since = self._units
        self._write(text)
        self._mark(kind, since, **({"language": language} if language else {}))
        self._styles = dict.fromkeys(self._styles, self._units)


def _is_web(address: str) -> bool:
    """Whether Telegram shows it as a link. Its own tg:// addresses would call people by number: those are left out."""
    return address.lower().startswith(("http://", "https://"))


def _aside(words: str, address: str) -> str:
    """What follows the words of a link that Telegram can't show as one."""
    bare = address.partition(":")[2] if address.lower().startswith(("mailto:", "tel:")) else address
    if not bare or bare == words or bare.startswith("#") or address.lower().startswith("tg:"):
        return ""
    return f" ({bare})"


def _words(tokens: Sequence[Token]) -> str:
    """A cell of a table: words only, addresses beside them."""
    words: list[str] = []
    links: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            links.append((str(token.attrGet("href") or ""), len(words)))
        elif token.type == "link_close":
            address, since = links.pop()
            words.append(_aside("".join(words[since:]), address))
        elif token.type in ("softbreak", "hardbreak"):
            words.append(" ")
        else:
            words.append(token.content)
    return _BREAK.sub(" ", "".join(words)).strip()


def _columns(text: str) -> int:
    return max(wcswidth(text), 0) or len(text)
