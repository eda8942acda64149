"""Markdown as language models write it, for platforms that have no Markdown of their own.

`marked` walks over the parsed text once and gives the visible text and its styled spans (message
entities, text styles); a `Layout` says what the platform can show. Spans lie beside the text, so that nothing in a text
can break out of them. `html` gives HTML made of a few harmless tags. Discord and Slack read Markdown themselves: their
dialects are rewritten by their own packages. The parser is loaded when the first text is rendered.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

BOLD, ITALIC, STRIKE, CODE, PRE, QUOTE, LINK = "bold", "italic", "strike", "code", "pre", "quote", "link"
RULE = "———"
_STYLES = {"strong": BOLD, "em": ITALIC, "s": STRIKE}
_TASK = re.compile(r"\[([ xX])\] +")
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w+#.-]{1,32}")
_HTML_LINKS = re.compile(r"(?:https?|ftp|mailto|magnet):", re.IGNORECASE)  # those the Matrix specification allows

Rows = Sequence[Sequence[str]]


class Span(NamedTuple):
    """A styled part of a text: `text[start:end]`, in characters."""

    kind: str
    start: int
    end: int
    url: str | None = None  # of a link
    language: str | None = None  # of a block of code


class Marked(NamedTuple):
    """A text as people see it, and its spans in the order of their ends."""

    text: str
    spans: tuple[Span, ...] = ()

    def measured(self, measure: Callable[[str], int]) -> list[tuple[Span, int, int]]:
        """Every span with its start and its length in the unit that the platform counts in."""
        places = sorted({place for span in self.spans for place in span[1:3]})
        units, total, last = {}, 0, 0
        for place in places:
            total += measure(self.text[last:place])
            units[place], last = total, place
        return [(span, units[span.start], units[span.end] - units[span.start]) for span in self.spans]


def columns(rows: Rows, widest: int = 60, between: str = " │ ", crossing: str = "─┼─") -> str | None:
    """A table with its columns side by side; None where a line would be wider than `widest`, so that screens fold it."""
    widths = [max(map(display_width, cells)) for cells in zip(*rows, strict=True)]
    if sum(widths) + len(between) * (len(widths) - 1) > widest:
        return None
    lines = [between.join(map(_padded, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], crossing.join("─" * width for width in widths), *lines[1:]])


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - display_width(cell))


def cells(rows: Rows) -> str:
    """A table with a line for each row."""
    return "\n".join(" | ".join(row) for row in rows)


def is_web(address: str) -> bool:
    """Whether an address is one of the web: other schemes can make a client call people or run programs."""
    return address.lower().startswith(("http://", "https://"))


_IN_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]\n]{0,500})\]\(([^)\s]{0,2000})(?:\s[^)\n]{0,500})?\)")  # bounded: the text may be long
_TABLE = re.compile(
    r"^[^\n]*\|[^\n]*\n[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*(?:\n[^\n]*\|[^\n]*)*", re.MULTILINE
)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """A Markdown text that stays Markdown, with this change outside its code."""
    parts = _IN_CODE.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def without_pictures(text: str) -> str:
    """Markdown in which pictures are links, so that no client fetches them."""
    return _PICTURE.sub(lambda one: f"[{one[1]}]({one[2]})" if one[1] and one[2] else one[1] or one[2], text)


def tables_as_code(text: str, most: int = 0) -> str:
    """Markdown in which the tables after the first `most` are blocks of code."""
    count = itertools.count(1)
    return outside_code(
        text, lambda part: _TABLE.sub(lambda one: one[0] if next(count) <= most else f"```\n{one[0]}\n```", part)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The formatting that a platform can show."""

    bullet: str = "• "
    links: Callable[[str], bool] = lambda address: False  # which addresses become spans; others follow the link's text
    quotes: bool = False  # quotations become spans; else their lines begin with "> "
    code_alone: bool = False  # no other style may share a letter with code; blocks of code are not indented
    tight_lists: bool = False  # no empty line between two items
    table: Callable[[Rows], str] | None = cells  # None: as it was written


def marked(text: str, layout: Layout) -> Marked:
    """A Markdown text as people see it. Its text is empty if nothing visible would be left."""
    walker = _Walker(text, layout)
    walker.blocks(_parser().parse(text))
    return walker.result()


@cache
def _parser(*, html: bool = False) -> MarkdownIt:
    from markdown_it import MarkdownIt

    logging.getLogger("markdown_it").setLevel(logging.WARNING)  # it writes a hundred lines for each message
    parser = MarkdownIt("commonmark", {"html": False, "breaks": html}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: bool(_HTML_LINKS.match(url)) if html else True  # type: ignore[method-assign]
    if html:
        parser.add_render_rule("image", _image_as_link)
    return parser


class _Walker:
    """Goes over the tokens once; writes text, and opens and closes spans as it goes."""

    def __init__(self, source: str, layout: Layout) -> None:
        self._source, self._layout = source, layout
        self._parts: list[str] = []
        self._length = 0
        self._spans: list[Span] = []
        self._styles: dict[str, int] = {}  # bold, italic, … that are open now, and since where
        self._depth: dict[str, int] = {}  # how often each was opened: the outermost counts
        self._line = 0  # of the source: where the last block ended
        self._lists: list[int | None] = []  # per level the next number, None for bullets
        self._prefixes: list[tuple[str, str]] = []  # of quotes and list items: for the next line, for those after it
        self._before: list[str] = []  # the prefixes of the block before
        self._next_item = False  # an item has ended, and its list has not
        self._quotes = 0
        self._quote_since: int | None = None
        self._links: list[tuple[int, int, str]] = []  # since which character, since which part, to where

    def result(self) -> Marked:
        text = "".join(self._parts).rstrip()
        spans = (span._replace(end=min(span.end, len(text))) for span in self._spans)
        return Marked(text, tuple(span for span in spans if span.start < span.end))

    # ------------------------------------------------------------------------------------------------ blocks

    def blocks(self, tokens: Sequence[Token]) -> None:
        place = 0
        while place < len(tokens):
            token = tokens[place]
            if token.type == "table_open":
                end = next(i for i in range(place, len(tokens)) if tokens[i].type == "table_close")
                self._begin(token)
                self._code(self._table(token, tokens[place:end]), PRE, None)
                place = end
            elif token.type in ("paragraph_open", "heading_open"):
                self._begin(token)
                self._text_block(tokens[place + 1].children or [], heading=token.type == "heading_open")
                place += 2
            elif token.type in ("fence", "code_block"):
                self._begin(token)
                language = _LANGUAGE.match(token.info.strip())
                self._code(token.content.rstrip("\n"), PRE, language[0] if language else None)
            elif token.type == "hr":
                self._begin(token)
                self._write(RULE)
            else:
                self._nest(token)
            place += 1

    def _nest(self, token: Token) -> None:
        """Lists, their items and quotations, which have blocks inside them."""
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                start = token.attrGet("start")
                number = 1 if start is None else int(start)
                self._lists.append(number if token.type == "ordered_list_open" else None)
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
                self._next_item = False
            case "list_item_open":
                number_now = self._lists[-1]
                marker = self._layout.bullet if number_now is None else f"{number_now}. "
                self._lists[-1] = None if number_now is None else number_now + 1
                self._prefixes.append((marker, " " * len(marker)))
            case "blockquote_open":
                self._quotes += 1
                self._prefixes.append(("", "") if self._layout.quotes else ("> ", "> "))
            case "list_item_close":
                self._prefixes.pop()
                self._next_item = True
            case "blockquote_close":
                self._prefixes.pop()
                self._quotes -= 1
                if not self._quotes and self._quote_since is not None:
                    self._mark(QUOTE, self._quote_since)
                    self._quote_since = None

    def _begin(self, token: Token) -> None:
        """Start a block as far below the last one as it is in the source."""
        start, end = token.map or (self._line, self._line)
        prefix = "".join(now for now, _ in self._prefixes)
        rest = [after for _, after in self._prefixes]
        if self._parts:
            tight = start <= self._line or (self._next_item and self._layout.tight_lists)
            shared = "".join(one for one, other in zip(rest, self._before, strict=False) if one == other)
            self._append("\n" if tight else f"\n{shared.rstrip()}\n")
        self._line, self._next_item, self._before = end, False, rest
        self._prefixes = [(after, after) for after in rest]
        if self._layout.quotes and self._quotes and self._quote_since is None:
            self._quote_since = self._length
        self._append(prefix)

    def _text_block(self, children: Sequence[Token], *, heading: bool) -> None:
        if heading:
            self._open(BOLD)
        if self._lists and children and (box := _TASK.match(children[0].content)) is not None:
            self._write("☐ " if box[1] == " " else "☑ ")
            children[0].content = children[0].content[box.end() :]
        self._inline(children)
        if heading:
            self._close(BOLD)

    def _table(self, opening: Token, tokens: Sequence[Token]) -> str:
        if self._layout.table is None:
            first, last = opening.map or (0, 0)
            return "\n".join(line.strip() for line in self._source.split("\n")[first:last]).strip()
        rows: list[list[str]] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(_cell(token.children or []))
        return self._layout.table(rows)

    # ------------------------------------------------------------------------------------------------ inside a line

    def _inline(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            kind, _, side = token.type.rpartition("_")
            if token.type in ("softbreak", "hardbreak"):
                self._write("\n")
            elif token.type == "code_inline":
                self._code(token.content, CODE, None)
            elif token.type == "link_open":
                self._links.append((self._length, len(self._parts), str(token.attrGet("href") or "")))
            elif token.type == "link_close":
                self._end_link(*self._links.pop())
            elif token.type == "image":
                since, part, address = self._length, len(self._parts), str(token.attrGet("src") or "")
                self._write(token.content or ("image" if self._layout.links(address) else address))
                if not self._links:
                    self._end_link(since, part, address)
            elif kind in _STYLES:
                (self._open if side == "open" else self._close)(_STYLES[kind])
            else:
                self._write(token.content)

    def _end_link(self, since: int, part: int, address: str) -> None:
        if self._layout.links(address):
            self._mark(LINK, since, url=address)
        else:
            self._write(_aside("".join(self._parts[part:]), address))

    # ------------------------------------------------------------------------------------------------ spans

    def _write(self, text: str) -> None:
        """Text on the current line; its line breaks get the prefix of the quotes and items they are in."""
        if self._prefixes and "\n" in text:
            text = text.replace("\n", "\n" + "".join(after for _, after in self._prefixes))
        self._append(text)

    def _append(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._length += len(text)

    def _mark(self, kind: str, since: int, **more: Any) -> None:
        if self._length > since:
            self._spans.append(Span(kind, since, self._length, **more))

    def _open(self, style: str) -> None:
        self._depth[style] = self._depth.get(style, 0) + 1
        self._styles.setdefault(style, self._length)

    def _close(self, style: str) -> None:
        self._depth[style] -= 1
        if not self._depth[style]:
            self._mark(style, self._styles.pop(style))

    def _code(self, text: str, kind: str, language: str | None) -> None:
        """Code. Where no style may share its letters, styles end before it and continue after it; a link has none."""
        alone = self._layout.code_alone
        if alone and self._links:
            return self._write(text)
        if alone:
            for style, since in self._styles.items():
                self._mark(style, since)
        since = self._length
        (self._append if alone and kind == PRE else self._write)(text)
        self._mark(kind, since, language=language)
        if alone:
            self._styles = dict.fromkeys(self._styles, self._length)
        return None


def _aside(words: str, address: str) -> str:
    """The address behind the text of a link that the platform can't show as one."""
    bare = address.partition(":")[2] if address.lower().startswith(("mailto:", "tel:")) else address
    if not bare or words in (bare, address) or bare.startswith("#") or address.lower().startswith("tg:"):
        return ""
    return f" ({bare})"


def _cell(tokens: Sequence[Token]) -> str:
    """A cell of a table: words alone, with addresses behind them."""
    words: list[str] = []
    links: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            links.append((str(token.attrGet("href") or ""), len(words)))
        elif token.type == "link_close":
            address, since = links.pop()
            words.append(_aside("".join(words[since:]), address))
        else:
            words.append(" " if token.type in ("softbreak", "hardbreak") else token.content)
    return _BREAK.sub(" ", "".join(words)).strip()


def display_width(text: str) -> int:
    """The columns that a text takes in a monospace font."""
    from wcwidth import wcswidth

    return max(wcswidth(text), 0) or len(text)


# ------------------------------------------------------------------------------------------------ HTML


def html(text: str, *, styles: bool = True) -> tuple[str, bool]:
    """A Markdown text as HTML, and whether that shows more than the text itself does.

    HTML in the text is shown, not used; images become links, so that no client fetches anything. `styles`: the alignment
    of a table's cells is kept.
    """
    parser = _parser(html=True)
    tokens = parser.parse(text)
    for token in tokens:
        if not styles:
            token.attrs.pop("style", None)
        for child in token.children or []:
            if child.type == "link_open" and not child.attrs.get("href"):
                child.attrs.pop("href", None)  # an empty address is not shown to validateLink
    plain = [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"] and all(
        child.type in ("text", "softbreak") for child in tokens[1].children or []
    )
    return str(parser.renderer.render(tokens, parser.options, {})).strip(), not plain


def _image_as_link(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    from markdown_it.common.utils import escapeHtml

    token = tokens[index]
    address = str(token.attrGet("src") or "")
    words = escapeHtml(renderer.renderInlineAsText(token.children or [], options, env) or address)
    return f'<a href="{escapeHtml(address)}">{words}</a>' if address else words
