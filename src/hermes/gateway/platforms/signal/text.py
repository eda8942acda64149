"""Markdown as Signal shows it: plain text, and ranges of it that are bold, italic, struck through or monospace.

Ranges are counted in UTF-16 units, as Signal does. What Signal has no style for stays readable: lists get bullets, links
their address behind them, tables stay as they were written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from hermes.gateway.adapter import utf16_units

logging.getLogger("markdown_it").setLevel(logging.WARNING)  # a hundred lines a message

_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffc]")  # U+FFFC is where a mention would stand
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_MARKDOWN.validateLink = lambda url: True  # type: ignore[method-assign]
_STYLES = {"strong": "BOLD", "em": "ITALIC", "s": "STRIKETHROUGH"}


def styled(markdown: str) -> tuple[str, list[str]]:
    """The text to send and its styles, each "start:length:STYLE"."""
    source = _UNSENDABLE.sub("\ufffd", markdown)
    writer = _Writer(source)
    writer.blocks(_MARKDOWN.parse(source))
    text = "".join(writer.parts)
    if not text.strip() or utf16_units(text) > max(utf16_units(source), 200):
        return source, []  # nothing would be left, or it would grow: then as it was written
    return text, writer.styles


class _Writer:
    """Text and styles as they grow."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.parts: list[str] = []
        self.styles: list[str] = []
        self.length = 0
        self.prefixes: list[str] = []  # of the lines inside quotes and lists
        self.before: list[str] = []  # the prefixes of the block before
        self.lists: list[int | None] = []  # the next number, or None for bullets
        self.marker = ""  # a bullet or number that waits for its line
        self.tight = False  # the next block follows on the next line

    # ---------------------------------------------------------------------------------------------- pieces

    def put(self, text: str) -> None:
        """Text on the current line; line breaks get the prefix of the place."""
        if self.prefixes and "\n" in text:
            text = text.replace("\n", "\n" + "".join(self.prefixes))
        self.parts.append(text)
        self.length += utf16_units(text)

    def mark(self, start: int, style: str) -> None:
        """Everything since `start` has this style."""
        if self.length > start:
            self.styles.append(f"{start}:{self.length - start}:{style}")

    def begin_block(self) -> None:
        """A new paragraph, item, or block of code."""
        if self.parts:
            shared = [one for one, other in zip(self.prefixes, self.before, strict=False) if one == other]
            gap = "\n" if self.tight else "\n" + "".join(shared).rstrip() + "\n"
            self.parts.append(gap)
            self.length += len(gap)
        self.tight = False
        self.before = list(self.prefixes)
        prefix = "".join(self.prefixes)
        if self.marker:
            prefix = prefix[: len(prefix) - len(self.marker)] + self.marker
            self.marker = ""
        if prefix:
            self.parts.append(prefix)
            self.length += utf16_units(prefix)

    # ---------------------------------------------------------------------------------------------- blocks

    def blocks(self, tokens: Sequence[Token]) -> None:
        """The whole text."""
        skip_table = False
        bold_from = 0
        for token in tokens:
            kind = token.type
            if kind == "table_open":
                self.table(token)
                skip_table = True
            elif kind == "table_close":
                skip_table = False
            elif skip_table:
                continue
            elif kind in ("fence", "code_block"):
                self.begin_block()
                start = self.length
                self.put(token.content.rstrip("\n"))
                self.mark(start, "MONOSPACE")
            elif kind == "hr":
                self.begin_block()
                self.put("———")
            elif kind == "heading_open":
                self.begin_block()
                bold_from = self.length
            elif kind == "heading_close":
                self.mark(bold_from, "BOLD")
            elif kind == "paragraph_open":
                self.begin_block()
                self.tight = token.hidden
            elif kind == "inline":
                self.inline(token.children or [])
            else:
                self.nest(token)

    def nest(self, token: Token) -> None:
        """Quotes and lists open and close."""
        if token.type == "blockquote_open":
            self.prefixes.append("> ")
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            first = token.attrGet("start")
            number = int(first) if first is not None else 1
            self.lists.append(number if token.type == "ordered_list_open" else None)
        elif token.type == "list_item_open":
            number_now = self.lists[-1]
            self.marker = "• " if number_now is None else f"{number_now}. "
            if number_now is not None:
                self.lists[-1] = number_now + 1
            self.prefixes.append(" " * len(self.marker))
        elif token.type in ("list_item_close", "blockquote_close"):
            self.prefixes.pop()
            self.marker = ""
            self.tight = token.type == "list_item_close"
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            self.lists.pop()
            self.tight = bool(self.lists)

    def table(self, token: Token) -> None:
        """As it was written: in monospace its columns can be read."""
        self.begin_block()
        start = self.length
        first, last = token.map or (0, 0)
        self.put("\n".join(line.strip() for line in self.lines[first:last]).strip())
        self.mark(start, "MONOSPACE")

    # ---------------------------------------------------------------------------------------------- inside a line

    def inline(self, tokens: Sequence[Token]) -> None:
        """Words with their styles."""
        open_styles: list[int] = []
        links: list[tuple[str, int]] = []
        for token in tokens:
            if token.type == "link_open":
                links.append((str(token.attrGet("href") or ""), len(self.parts)))
            elif token.type == "link_close":
                address, place = links.pop()
                if "".join(self.parts[place:]) not in (address, address.removeprefix("mailto:")):
                    self.put(f" ({address})")
            elif token.type == "image":
                self.put(f"{token.content} ({token.attrGet('src')})" if token.content else str(token.attrGet("src")))
            elif token.type in ("softbreak", "hardbreak"):
                self.put("\n")
            elif token.type == "code_inline":
                start = self.length
                self.put(token.content)
                self.mark(start, "MONOSPACE")
            elif token.tag in _STYLES and token.nesting == 1:
                open_styles.append(self.length)
            elif token.tag in _STYLES and token.nesting == -1:
                self.mark(open_styles.pop(), _STYLES[token.tag])
            else:
                self.put(token.content)
