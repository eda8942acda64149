"""Texts as WeCom shows them. Bots have all of Markdown, apps bold letters, code and links."""

from __future__ import annotations

import re

from hermes.gateway.platforms._shared import markup

LONGEST_APP = 2048  # bytes
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]\n]{0,500})\]\(([^)\s]{0,2000})(?:\s[^)\n]{0,500})?\)")  # bounded: the text may be long
_AT = re.compile(r"<@(?=[^>\n]{0,100}>)")
_SIGNS = {markup.BOLD: "**", markup.CODE: "`"}
_LAYOUT = markup.Layout(bullet="- ", links=markup.is_web, code_alone=True)
_PLAIN = markup.Layout(bullet="- ")


def length(text: str) -> int:
    """A text's length in bytes as it is sent: cells of tables and mentions become longer."""
    return len(text.encode("utf-8", "surrogatepass")) + 2 * text.count("|") + 3 * text.count("<")


def bot_markdown(text: str) -> str:
    """Markdown for a bot: pictures become links, so that no client fetches them, and no user is mentioned."""
    parts = _CODE.split(text)
    return "".join(part if number % 2 else _quiet(part) for number, part in enumerate(parts))


def _quiet(text: str) -> str:
    return _AT.sub("<\u200b@", _PICTURE.sub(_link, text))


def _link(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[2]})" if found[1] and found[2] else found[1] or found[2]


def app_message(text: str, *, allow_markdown: bool) -> tuple[str, str]:
    """A text for an app: "text" or "markdown", and the content."""
    shown = markup.marked(text, _LAYOUT)
    styled = [span for span in shown.spans if span.kind in _SIGNS or span.kind == markup.LINK]
    if allow_markdown and styled:
        made = _written(shown.text, styled)
        if len(made.encode("utf-8", "surrogatepass")) <= LONGEST_APP:
            return "markdown", made
    plain = markup.marked(text, _PLAIN).text or text
    return "text", plain if len(plain.encode("utf-8", "surrogatepass")) <= LONGEST_APP else text


def _written(text: str, spans: list[markup.Span]) -> str:
    """The text with the signs of its spans; a span inside another one, or over several lines, has none."""
    made, place = [], 0
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        words = text[span.start : span.end]
        if span.start < place or "\n" in words:
            continue
        sign = _SIGNS.get(span.kind, "")
        marked = f"[{words}]({span.url})" if span.kind == markup.LINK else f"{sign}{words}{sign}"
        made += [text[place : span.start], marked]
        place = span.end
    return "".join([*made, text[place:]])
