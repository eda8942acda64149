"""Markdown as Signal shows it: plain text, and ranges of it that are bold, italic, struck through or monospace."""

from __future__ import annotations

import re

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms._shared import markup

_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffc]")  # U+FFFC is where a mention would stand
_STYLES = {
    markup.BOLD: "BOLD",
    markup.ITALIC: "ITALIC",
    markup.STRIKE: "STRIKETHROUGH",
    markup.CODE: "MONOSPACE",
    markup.PRE: "MONOSPACE",
}
_LAYOUT = markup.Layout(tight_lists=True, table=None)


def styled(markdown: str) -> tuple[str, list[str]]:
    """The text to send and its styles, each "start:length:STYLE" in UTF-16 units, as Signal counts."""
    source = _UNSENDABLE.sub("\ufffd", markdown)
    marked = markup.marked(source, _LAYOUT)
    if not marked.text.strip() or utf16_units(marked.text) > max(utf16_units(source), 200):
        return source, []  # nothing would be left, or it would grow: then the Markdown itself
    return marked.text, [
        f"{start}:{length}:{_STYLES[span.kind]}" for span, start, length in marked.measured(utf16_units)
    ]
