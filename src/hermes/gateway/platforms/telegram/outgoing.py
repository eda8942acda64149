"""Markdown as Telegram shows it: a text and its message entities, counted in UTF-16 units.

Where the formatted text would be too long, the Markdown text itself is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from telegram import MessageEntity

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms._shared import markup

LONGEST = 4096  # UTF-16 units of a message, without its entities
_KINDS = {
    markup.BOLD: MessageEntity.BOLD,
    markup.ITALIC: MessageEntity.ITALIC,
    markup.STRIKE: MessageEntity.STRIKETHROUGH,
    markup.CODE: MessageEntity.CODE,
    markup.PRE: MessageEntity.PRE,
    markup.QUOTE: MessageEntity.BLOCKQUOTE,
    markup.LINK: MessageEntity.TEXT_LINK,
}
_ALIGNED = markup.Layout(
    links=markup.is_web, quotes=True, code_alone=True, table=lambda rows: markup.columns(rows) or markup.cells(rows)
)
_BARE = replace(_ALIGNED, table=lambda rows: "\n".join("|".join(row) for row in rows))


class Formatted(NamedTuple):
    """An outgoing message: the text that people see, and its entities."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


def plain(text: str) -> Formatted:
    """A text as it is; halves of surrogate pairs, which JSON can't carry, are replaced."""
    return Formatted(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def formatted(text: str, longest: int = LONGEST) -> Formatted:
    """A Markdown text with its formatting; without, if that is too long or if nothing visible would be left."""
    whole = plain(text)
    for layout in (_ALIGNED, _BARE):  # aligned columns take more room than the bare cells
        marked = markup.marked(whole.text, layout)
        if marked.text.strip() and utf16_units(marked.text) <= longest:
            entities = [
                MessageEntity(_KINDS[span.kind], offset, length, url=span.url, language=span.language)
                for span, offset, length in marked.measured(utf16_units)
            ]
            return Formatted(marked.text, tuple(sorted(entities, key=lambda one: (one.offset, -one.length))))
    return whole
