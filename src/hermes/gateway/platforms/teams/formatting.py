"""The model's Markdown as Teams shows it.

Teams shows no tables, joins lines, loads pictures from anywhere, and takes tags for HTML: tables become code, line breaks
hard ones, pictures links, and tags text.
"""

from __future__ import annotations

import re

from hermes.gateway.adapter import utf16_units

_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1(?!`)")
_PICTURE = re.compile(r"!\[([^\]\n]*)\]\(")
_REFERENCED_PICTURE = re.compile(r"!(?=\[)")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_DIVIDER = re.compile(r" {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_ADDRESS = re.compile(r"<(https?://[^\s<>]+)>")


def length(text: str) -> int:
    """A text's length as it is sent, in UTF-16 units: `for_teams` makes it longer by its line breaks and tags."""
    return utf16_units(text) + 2 * text.count("\n") + 3 * text.count("<")


def for_teams(text: str) -> str:
    """A Markdown text in the dialect of Teams."""
    lines, written, fence, place = text.split("\n"), [], "", 0
    while place < len(lines):
        line = lines[place]
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            written.append(line)
        elif mark:
            fence = mark[1]
            written.append(line)
        elif rows := _table(lines, place):
            written += ["```", *(row.strip() for row in lines[place : place + rows]), "```"]
            place += rows
            continue
        else:
            broken = place + 1 < len(lines) and line.strip() and lines[place + 1].strip()
            written.append(_inline(line).rstrip() + ("  " if broken and not line.startswith("#") else ""))
        place += 1
    return "\n".join(written)


def _table(lines: list[str], place: int) -> int:
    """How many lines a table takes that begins here; 0 if none does."""
    if "|" not in lines[place] or place + 1 >= len(lines):
        return 0
    if "|" not in lines[place + 1] or not _DIVIDER.fullmatch(lines[place + 1]):
        return 0
    end = place + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    return end - place


def _inline(line: str) -> str:
    """A line outside blocks of code; its code stays as it is."""
    written, last = [], 0
    for code in _CODE.finditer(line):
        written += [_words(line[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*written, _words(line[last:])])


def _words(text: str) -> str:
    text = _PICTURE.sub(lambda found: f"[{found[1] or 'image'}](", text)
    text = _REFERENCED_PICTURE.sub("", text)
    return _TAG.sub("&lt;", _ADDRESS.sub(r"\1", text))
