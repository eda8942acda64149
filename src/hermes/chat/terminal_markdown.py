"""Markdown as the terminal shows it, and a growing text cut into blocks that can be printed one after the other."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.markdown import Markdown
    from rich.syntax import ANSISyntaxTheme


# Few terminals say whether their background is light. These of their own colours can be read on both; yellow, green, cyan and
# the bright ones can't on white, blue can't on black, and a background of our own is a dark box on a light screen.
STYLES = {
    "markdown.code": "magenta",
    "markdown.block_quote": "italic",
    "markdown.item.number": "bold",
    "markdown.link": "bright_blue",
    "markdown.link_url": "underline",
    "markdown.table.header": "bold",
    "markdown.table.border": "dim",
}


def markdown(text: str) -> RenderableType:
    """A text as rich draws Markdown, for a console with STYLES. Link addresses are shown."""
    return _reply_class()(text, hyperlinks=False)


@cache
def code_theme() -> ANSISyntaxTheme:
    """The colours of code."""
    from pygments.token import Comment, Error, Generic, Keyword, Name, Number, String, Token  # type: ignore[import-untyped]
    from rich.style import Style
    from rich.syntax import ANSISyntaxTheme

    return ANSISyntaxTheme(
        {
            Token: Style(),
            Comment: Style(dim=True, italic=True),
            Comment.Preproc: Style(),
            Keyword: Style(color="bright_blue"),
            Name.Tag: Style(color="bright_blue"),
            Name.Function: Style(bold=True),
            Name.Class: Style(bold=True),
            Name.Decorator: Style(bold=True),
            String: Style(color="magenta"),
            Number: Style(color="red"),
            Generic.Deleted: Style(color="red"),
            Generic.Inserted: Style(color="green"),
            Generic.Heading: Style(bold=True),
            Error: Style(color="red"),
        }
    )


@cache
def _reply_class() -> type[Markdown]:
    """rich's Markdown, closer together and from the left."""
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.syntax import Syntax
    from rich.text import Text as Styled

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=code_theme(), word_wrap=True, padding=(0, 2))

    class Title(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Styled(self.text.plain, style="bold underline" if self.tag == "h1" else "bold")

    class Reply(Markdown):
        elements = {**Markdown.elements, "heading_open": Title, "fence": Code, "code_block": Code}

    return Reply


def blocks(text: str) -> list[str]:
    """A growing Markdown text cut into its blocks. All but the last can no longer change their look.

    A block is complete when another one has begun after it, on a line that is complete itself.
    """
    from markdown_it import MarkdownIt

    lines = text[: text.rfind("\n") + 1]
    parser = MarkdownIt().enable("strikethrough").enable("table")
    starts = [token.map[0] for token in parser.parse(lines) if token.level == 0 and token.nesting >= 0 and token.map]
    places, line, place = [0], 0, 0
    for start in starts[1:]:
        while line < start:
            place, line = lines.index("\n", place) + 1, line + 1
        places.append(place)
    return [text[one:two] for one, two in pairwise([*places, len(text)])]
