"""Text as Home Assistant shows it: its own notifications know Markdown, those on phones and speakers don't."""

from __future__ import annotations

import re

from hermes.gateway.platforms import markup

_LAYOUT = markup.Layout(bullet="- ")
_HIDDEN = "\u200b"  # takes no room, and keeps two characters from meaning something together


def without_html(text: str) -> str:
    """Markdown for Home Assistant's own page, which would follow HTML in it and fetch pictures: neither is left."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "<" + _HIDDEN, _whole(text))
    return re.sub(r"!(?=\[)", "!" + _HIDDEN, text)


def plain(text: str) -> str:
    """Markdown as plain text: lists and code as they are, links with their addresses, no marks of emphasis."""
    return markup.marked(_whole(text), _LAYOUT).text


def _whole(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON can't carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
