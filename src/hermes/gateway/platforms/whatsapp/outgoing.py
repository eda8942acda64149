"""Markdown as WhatsApp writes it: *bold*, _italic_, ~struck through~, `code`, ```blocks of code```.

WhatsApp has no escapes: a mark counts where a word begins or ends, on one line. Where it would not count, or would end too
early, it is left out, so that no stray marks are seen.
"""

from __future__ import annotations

import re

from hermes.gateway.platforms._shared import markup

LONGEST = 4096  # characters of a text
_LAYOUT = markup.Layout(bullet="- ", code_alone=True, tight_lists=True)
_MARKS = {markup.BOLD: "*", markup.ITALIC: "_", markup.STRIKE: "~", markup.CODE: "`"}
_PREFIX = re.compile(r"[> ]*")
_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SPACES = re.compile(r" *[\t\n]+ *| {4,}")


def formatted(markdown: str, longest: int = LONGEST) -> str:
    """The text to send; the Markdown itself where nothing visible would be left or it would become too long."""
    source = _UNSENDABLE.sub("\ufffd", markdown)
    marked = markup.marked(source, _LAYOUT)
    if not marked.text.strip():
        return source
    for text in (_written(marked), marked.text):
        if len(text) <= longest:
            return text
    return source


def one_line(markdown: str) -> str:
    """The text for a template's variable, which takes no line breaks, tabs or four spaces in a row."""
    text = markup.marked(_UNSENDABLE.sub("\ufffd", markdown), _LAYOUT).text or markdown
    return _SPACES.sub(" ", text).strip()


def _written(marked: markup.Marked) -> str:
    """The text with WhatsApp's marks around its spans."""
    text = marked.text
    opening: dict[int, list[tuple[int, int, str]]] = {}
    closing: dict[int, list[tuple[int, int, str]]] = {}
    for depth, span in enumerate(marked.spans):  # of two with the same place the outer one comes later
        for start, end, before, after in _pieces(text, span):
            opening.setdefault(start, []).append((-end, -depth, before))
            closing.setdefault(end, []).append((-start, depth, after))
    parts, last = [], 0
    for place in sorted({*opening, *closing}):
        parts.append(text[last:place])
        parts += [mark for _, _, mark in sorted(closing.get(place, ()))]  # what began last ends first
        parts += [mark for _, _, mark in sorted(opening.get(place, ()))]  # what ends last begins first
        last = place
    return "".join([*parts, text[last:]])


def _pieces(text: str, span: markup.Span) -> list[tuple[int, int, str, str]]:
    """The places for the marks of a span: around each of its lines, or around a block of code."""
    if span.kind == markup.PRE:
        inside = text[span.start : span.end]
        return [] if "```" in inside or not inside.strip() else [(span.start, span.end, "```\n", "\n```")]
    mark = _MARKS.get(span.kind)
    if mark is None:
        return []
    found, start = [], span.start
    for line in text[span.start : span.end].split("\n"):
        end = start + len(line)
        first = start if start == span.start else start + len(_PREFIX.match(line)[0])  # type: ignore[index]
        inside = text[first:end]
        first += len(inside) - len(inside.lstrip())
        last = first + len(inside.strip())
        if last > first and mark not in text[first:last] and _stands_alone(text, first, last):
            found.append((first, last, mark, mark))
        start = end + 1
    return found


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether no letter touches it from outside: only there WhatsApp reads a mark."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return not (before.isalnum() or before == "_" or after.isalnum() or after == "_")
