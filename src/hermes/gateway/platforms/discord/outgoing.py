"""A model's Markdown, rewritten as Discord shows it.

Discord understands most of it. What it does not, or takes for something else, is changed: tables, deep headings,
rules, pictures, `__bold__` (underlined there), `||` (hides text there), fences of `~~~` or more than three backticks.
Discord sees a fence anywhere in a line, so every ``` that is not one of a pair is taken apart. A text never grows over
the limit: where a change would do that, a plainer form is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms._shared import markup

LONGEST = 2000

_FENCE = re.compile(r"^(\s*(?:>\s?)*(?:[-*+]\s+|\d{1,9}[.)]\s+)?)(`{3,9}|~{3,9})[ \t]*([^`~]*)$")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+\-.#]+")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_DEEP_HEADING = re.compile(r"^(\s{0,3})#{4,6}[ \t]+(.*?)[ \t#]*$")
_RULE = re.compile(r"^\s{0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")
_TASK = re.compile(r"^(\s*[-*+][ \t]+)\[([ xX])\](?=[ \t])")
_PLUS_ITEM = re.compile(r"^(\s*)\+(?=[ \t])")
_PICTURE = re.compile(r"!\[([^\]\n]*)\]\(([^()\s]+)(?:[ \t]+[^()\n]*)?\)")
_BARE_LINK = re.compile(r"\[(https?://[^\]\s]+)\]\(\1/?\)")
_UNDERLINES = re.compile(r"(?<![\w\\])__(?=\S)([^_\n](?:.*?\S)?)__(?!\w)")
_TICKS = re.compile(r"`{3,}")
_PIPES = re.compile(r"\|{2,}")
_COLUMNS = re.compile(r"^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_WIDEST = 64  # columns a table may have and still be read side by side


def to_discord(text: str, longest: int = LONGEST) -> str:
    """The text in Discord's own markup, never longer than `longest` if `text` is not."""
    drafts: tuple[Callable[[], str], ...] = (
        lambda: _rendered(text, _styled, tables=True),
        lambda: _rendered(text, _styled),
        lambda: _rendered(text, _unfenced),
    )
    for draft in drafts:
        made = draft()
        if utf16_units(made) <= longest:
            return made
    return _unfenced(text)


def _rendered(text: str, line_as: Callable[[str], str], *, tables: bool = False) -> str:
    lines = text.split("\n")
    made: list[str] = []
    at = 0
    while at < len(lines):
        if opening := _FENCE.match(lines[at]):
            block, at = _fenced(lines, at, opening)
            made += block
        elif tables and (found := _table(lines, at)):
            block, at = found
            made += block
        else:
            made.append(line_as(lines[at]))
            at += 1
    return "\n".join(made)


# ------------------------------------------------------------------------------------------------ code


def _fenced(lines: list[str], at: int, opening: re.Match[str]) -> tuple[list[str], int]:
    """A block of code with fences Discord knows, and the index of the line after it; an open fence is closed."""
    before, mark, about = opening.groups()
    language = _LANGUAGE.match(about)
    block = [f"{before}```{language[0] if language else ''}"]
    for place in range(at + 1, len(lines)):
        bare = lines[place].lstrip("> \t").rstrip()
        if len(bare) >= len(mark) and set(bare) == {mark[0]}:
            start = lines[place][: len(lines[place]) - len(lines[place].lstrip("> \t"))]
            return [*block, f"{start}```"], place + 1
        block.append(_inside(lines[place]))
    if about.strip() and not (language and language[0] == about.strip()):  # perhaps no fence at all: lose no word
        block[:1] = [f"{before}```", about.rstrip()]
    if len(block) > 1 and not block[-1].strip():
        block.pop()
    return [*block, "```"], len(lines)


def _inside(text: str) -> str:
    """Text that can't end the block of code around it."""
    while "```" in text:
        text = text.replace("```", "``\u200b`")
    return text


def _unfenced(text: str) -> str:
    return text.replace("```", "'''")


# ------------------------------------------------------------------------------------------------ lines


def _styled(line: str) -> str:
    if _RULE.match(line):
        return "───"
    if heading := _DEEP_HEADING.match(line):
        words = heading[2].replace("**", "").strip()
        line = f"{heading[1]}**{words}**" if words else ""
    if line.startswith(">>> "):  # would make a quotation of all that follows
        line = "\\" + line
    line = _TASK.sub(lambda found: found[1] + ("☐" if found[2] == " " else "☑"), line)
    line = _PLUS_ITEM.sub(r"\1-", line)
    made, at = [], 0
    for span in _SPAN.finditer(line):
        made += [_words(line[at : span.start()]), _span(span)]
        at = span.end()
    return "".join([*made, _words(line[at:])])


def _span(span: re.Match[str]) -> str:
    mark, code = span[1], span[2]
    return f"``{_inside(code)}``" if len(mark) > 2 else f"{mark}{_inside(code)}{mark}"


def _words(text: str) -> str:
    """Text between pieces of code."""
    text = _PICTURE.sub(lambda found: f"[{found[1]}]({found[2]})" if found[1].strip() else found[2], text)
    text = _BARE_LINK.sub(r"\1", text)  # Discord shows no link whose words are an address
    text = _UNDERLINES.sub(_underlined, text)
    text = _PIPES.sub(lambda found: "\\|" * len(found[0]), text)
    return _TICKS.sub(lambda found: "\\`" * len(found[0]), text)


def _underlined(found: re.Match[str]) -> str:
    name = re.fullmatch(r"[a-z0-9_]+", found[1]) is not None  # __init__ is a name, __Note__ is bold
    return rf"\_\_{found[1]}\_\_" if name else f"**{found[1]}**"


# ------------------------------------------------------------------------------------------------ tables


def _table(lines: list[str], at: int) -> tuple[list[str], int] | None:
    """A table that begins here, in columns or (a wide one) as a list, and the index after it; None for no table."""
    if at + 1 >= len(lines) or "|" not in lines[at] or "|" not in lines[at + 1] or not _COLUMNS.match(lines[at + 1]):
        return None
    end = at + 2
    while end < len(lines) and "|" in lines[end] and not _FENCE.match(lines[end]):
        end += 1
    head = _cells(lines[at])
    rows = [_cells(line) for line in lines[at + 2 : end]]
    number = max(len(row) for row in [head, *rows])
    head, *rows = [row + [""] * (number - len(row)) for row in [head, *rows]]
    aligned = markup.columns([head, *rows], _WIDEST, "  ", "  ")
    if aligned is None and rows:
        return [_row_as_item(head, row) for row in rows], end
    aligned = aligned or markup.columns([head], 10**6, "  ", "  ") or ""
    return ["```", *map(_inside, aligned.split("\n")), "```"], end


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [_plain(cell) for cell in re.split(r"(?<!\\)\|", inner)]


def _plain(cell: str) -> str:
    cell = re.sub(r"\[([^\]]*)\]\(([^()\s]+)\)", r"\1 (\2)", cell.replace("\\|", "|"))
    return re.sub(r"\*\*|`|<br\s*/?>", lambda found: " " if found[0].startswith("<") else "", cell).strip()


def _row_as_item(head: list[str], row: list[str]) -> str:
    rest = [f"{name}: {cell}" if name else cell for name, cell in zip(head[1:], row[1:]) if cell]
    first = [f"**{row[0].replace('*', '')}**"] if row[0].replace("*", "").strip() else []
    return _styled("- " + " · ".join([*first, *rest]))
