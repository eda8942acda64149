"""A turn on the screen, as it happens, and Markdown as the terminal shows it.

On a terminal a reply is Markdown: a complete block is printed permanently (so the scrollback keeps it), the one being
written stands in a small region below that is redrawn a few times a second (not in a terminal that can't do that). In a pipe
it is the bare text.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text as Styled
from rich.theme import Theme

from hermes.agent.turn import (
    Done,
    EmptyReply,
    Event,
    Followed,
    Notice,
    Retrying,
    Text,
    Thought,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from hermes.texts import counted, harmless, one_line, shortened_line

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.markdown import Markdown
    from rich.syntax import ANSISyntaxTheme

REFRESH_SECONDS = 0.1
# characters of an unfinished block that are rendered each time; for a longer one its end is shown
_MARKDOWN_UP_TO = 8_000
_TAIL = 2_000
RUNNING_LINES = 6
FOLDED_LINES = 4  # lines of a finished command's output; /show shows all
DIFF_LINES = 40
DIFFS = frozenset(("write_file", "edit_file"))  # tools whose output is a diff
INDENT = "    "
_REST = 8  # pause between two searches for complete blocks: so many times as long as the last one took


class TerminalDisplay:
    """Shows a turn."""

    def feed(self, event: Event) -> None:
        """Show an event."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called regularly: redraw if it is time."""

    def typing(self, line: str, sent: bool) -> None:
        """Show the user's current input line; `sent`: a line was sent before it."""

    def pause(self) -> None:
        """Make room for a question."""

    def finish(self) -> None:
        """The turn is over, completed or not."""


def console(**settings: Any) -> Console:
    """The terminal as rich sees it; NO_COLOR and TERM=dumb are honoured by rich itself."""
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
        theme=Theme(STYLES),
        **settings,
    )


def display_for(screen: Console, empty_hint: str, *, reasoning: bool = False) -> TerminalDisplay:
    """The display that suits this output; `empty_hint` says what to do after an empty reply."""
    if screen.is_terminal:
        return LiveDisplay(screen, empty_hint, reasoning=reasoning)
    return PipeDisplay(screen.file, sys.stderr, empty_hint)


def _notice(event: Notice | Followed, empty_hint: str) -> str:
    if isinstance(event, Followed):
        return f"The conversation was compressed and continues as {event.session_id}; nothing was deleted."
    return f"{event.text} {empty_hint}".rstrip() if isinstance(event, EmptyReply) else event.text


def short_argument(arguments: dict[str, Any]) -> str:
    """A tool call's main argument, shortened: its first text, else all of it."""
    for name in ("command", "query", "path", "name", "text"):
        if isinstance(arguments.get(name), str):
            return shortened_line(arguments[name], 200)
    for value in arguments.values():
        if isinstance(value, str):
            return shortened_line(value, 200)
    return shortened_line(json.dumps(arguments, ensure_ascii=False, default=str), 200) if arguments else ""


def last_lines(text: str, count: int) -> list[str]:
    """The last non-empty end of an output, as plain lines."""
    lines = harmless(text).expandtabs(8).rstrip().split("\n")
    return lines[-count:] if count > 0 and lines != [""] else []


def folded(name: str, text: str) -> list[str]:
    """The lines that stand below a finished call, the note about the hidden ones included."""
    lines = harmless(text).expandtabs(8).rstrip().split("\n")
    if lines == [""]:
        return []
    if name in DIFFS:
        if len(lines) <= DIFF_LINES:
            return lines
        return [*lines[: DIFF_LINES - 1], f"… {counted(len(lines) - DIFF_LINES + 1, 'more line')}: /show"]
    if len(lines) <= FOLDED_LINES + 1:  # a note would take the room of the line it hides
        return lines
    return [f"… {counted(len(lines) - FOLDED_LINES, 'line')} above: /show", *lines[-FOLDED_LINES:]]


def styled_lines(name: str, lines: list[str], width: int) -> list[Styled]:
    """The lines indented, dim or, in a diff, in its colours; each on one line of the screen."""
    made = []
    for line in lines:
        one = Styled(INDENT + line, style=_style(name, line), no_wrap=True, overflow="ellipsis")
        one.truncate(width, overflow="ellipsis")
        made.append(one)
    return made


def _style(name: str, line: str) -> str:
    if name in DIFFS:
        if line.startswith("+") and not line.startswith("+++"):
            return "green"
        if line.startswith("-") and not line.startswith("---"):
            return "red"
        if line.startswith("@@"):
            return "bold dim"
    return "dim"


class PipeDisplay(TerminalDisplay):
    """Writes the bare text of the reply to one stream, everything else to another.

    A reply is written when it is complete: text that was written before a connection broke can't be withdrawn.
    """

    def __init__(self, out: IO[str], notes: IO[str], empty_hint: str = "") -> None:
        self._out, self._notes, self._empty_hint = out, notes, empty_hint
        self._reply: list[str] = []

    def feed(self, event: Event) -> None:
        if isinstance(event, Text):
            if event.restarted:
                self._reply.clear()
            self._reply.append(event.text)
        elif isinstance(event, ToolStarted | Done):
            if reply := "".join(self._reply):
                self._write(self._out, reply)
            self._reply.clear()
        elif isinstance(event, Notice | Followed):
            self._write(self._notes, harmless(_notice(event, self._empty_hint)))

    def _write(self, stream: IO[str], text: str) -> None:
        stream.write(text if text.endswith("\n") else f"{text}\n")
        stream.flush()


class _Redrawn:
    """A region of the screen, asked for at the moment of drawing.

    rich draws the region again below everything that is printed. Drawn from memory it would still hold the block that was
    just printed, and push as many lines off the screen.
    """

    def __init__(self, region: Callable[[], RenderableType]) -> None:
        self._region = region
        self._cells: list[int] = []  # the width of each line that was drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._region(), options, pad=False)
        self._cells = [Segment.get_line_length(line) for line in lines]
        yield Segments([segment for line in lines for segment in [*line, Segment.line()]])

    def wrapped(self, width: int) -> Control:
        """Erase the lines that a window made narrower has added to the region by wrapping it."""
        added = sum(max(0, (cells - 1) // width) for cells in self._cells)
        return Control(*[(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * added)


class LiveDisplay(TerminalDisplay):
    """Markdown in a terminal, block by block."""

    def __init__(self, screen: Console, empty_hint: str = "", *, reasoning: bool = False) -> None:
        self._screen, self._empty_hint = screen, empty_hint
        self._reasoning = reasoning  # whether it is shown whole
        self._thought, self._thinking_since = "", 0.0
        self._text = ""  # text that is not printed permanently yet
        self._seen_lines = 0
        self._settle_from = 0.0  # when to look for complete blocks again
        self._running: dict[str, ToolStarted] = {}  # in the order they were called
        self._finished: dict[str, ToolFinished] = {}  # the finished ones among them
        self._printed: dict[str, str] = {}  # what the running ones have printed last
        self._live: Live | None = None
        self._redrawn, self._width = _Redrawn(self._region), screen.width
        self._drawn = 0.0
        self._begun = time.monotonic()
        self._above = ""  # what was printed last: "text", "line", or nothing
        self._typed = ""  # the user's type-ahead
        self._retry_at, self._try = 0.0, ""  # when a failed call is repeated, and which try that is

    def feed(self, event: Event) -> None:
        if isinstance(event, Text):
            self._end_thought()
            self._text += harmless(event.text.replace("\r", ""))  # `\\r` and `\\n` may come in two pieces
            self._settle()
        elif isinstance(event, Thought):
            self._thinking_since = self._thinking_since if self._thought else time.monotonic()
            self._thought += harmless(event.text)
        elif isinstance(event, ToolStarted):
            self._flush()
            self._running[event.call_id] = event
        elif isinstance(event, ToolProgress):
            self._printed[event.call_id] = event.text
        elif isinstance(event, ToolFinished):
            self._flush()
            self._finished[event.call_id] = event
            self._print_finished()
        elif isinstance(event, Notice | Followed):
            self._flush()
            self._line(self._dim(_notice(event, self._empty_hint)))
            if isinstance(event, Retrying):
                self._retry_at, self._try = time.monotonic() + event.seconds, event.try_
        elif isinstance(event, Done):
            self._flush()
            self.pause()
            if event.interrupted:
                kept = "; the reply so far is kept" if event.text else ""
                self._line(self._dim(f"Stopped{kept}."))
            return
        self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._drawn < REFRESH_SECONDS or self._screen.is_dumb_terminal:
            return
        self._drawn = now
        if self._live is None:
            from rich.live import Live

            self._live = Live(
                self._redrawn, console=self._screen, transient=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
            )  # fmt: skip
            self._live.start()
        elif self._screen.width < self._width:
            self._screen.control(self._redrawn.wrapped(self._screen.width))
        self._width = self._screen.width
        self._live.refresh()

    def typing(self, line: str, sent: bool) -> None:
        shown = f"❯ {one_line(line)}" if line else "↵ queued" if sent else ""
        if shown != self._typed:
            self._typed, self._drawn = shown, 0.0
            self.tick()

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def finish(self) -> None:
        for call_id in [one for one in self._running if one not in self._finished]:
            del self._running[call_id]
        self._flush()
        self._print_finished()
        self.pause()

    # -------------------------------------------------------------------------------- printed permanently

    def _settle(self) -> None:
        """Print the blocks that can't change any more."""
        begun = time.monotonic()
        if begun < self._settle_from or self._text.count("\n") == self._seen_lines:
            return
        *whole, self._text = blocks(self._text)
        for block in whole:
            self._print(block)
        self._seen_lines = self._text.count("\n")
        # A very long block (a list of a thousand items) takes ever longer to parse: pause in between.
        now = time.monotonic()
        self._settle_from = now + (now - begun) * _REST

    def _end_thought(self) -> None:
        """The model has ended its reasoning: print it, or a line about it."""
        thought, self._thought = self._thought.strip(), ""
        if thought and self._reasoning:
            self._gap("text")
            for line in thought.split("\n"):
                self._screen.print(line, style="dim italic", overflow="fold")
            self._above = "text"
        elif thought:
            seconds = time.monotonic() - self._thinking_since
            self._line(self._dim(f"Thought for {counted(max(1, round(seconds)), 'second')} (/reasoning shows it)"))

    def _flush(self) -> None:
        self._end_thought()
        rest, self._text, self._seen_lines = self._text, "", 0
        for block in blocks(rest + "\n"):
            self._print(block)

    def _print(self, block: str) -> None:
        if block.strip():
            self._gap("text")
            self._screen.print(self._rendered(block), end="")
            self._above = "text"

    def _rendered(self, block: str, room: int | None = None) -> Segments:
        """A block (its last lines, if there is only so much room), without the blank lines rich puts around some kinds."""
        try:
            drawn = Styled(block[-_TAIL:]) if room is not None and len(block) > _MARKDOWN_UP_TO else markdown(block)
            lines = self._screen.render_lines(drawn, pad=False)
        except Exception:  # a text that breaks the renderer is shown as plain text
            lines = self._screen.render_lines(Styled(block), pad=False)
        blank = [not "".join(segment.text for segment in line).strip() for line in lines]
        first = blank.index(False) if False in blank else 0
        last = len(blank) - blank[::-1].index(False) if False in blank else 1
        shown = lines[first:last][-(room or len(lines)) :]
        return Segments([segment for line in shown for segment in [*line, Segment.line()]])

    def _gap(self, kind: str) -> None:
        """A blank line between a block and the text above it; lines of one kind stand together."""
        if self._above and not (self._above == kind == "line"):
            self._screen.print()

    def _line(self, line: RenderableType) -> None:
        self._gap("line")
        self._screen.print(line)
        self._above = "line"

    def _print_finished(self) -> None:
        """Print the finished calls in the order they were made: each waits for those before it."""
        for call_id, started in list(self._running.items()):
            if call_id not in self._finished:
                return
            del self._running[call_id]
            self._printed.pop(call_id, None)
            self._print_call(started.arguments, self._finished.pop(call_id))
        for event in self._finished.values():
            self._print_call({}, event)
        self._finished.clear()

    def _print_call(self, arguments: dict[str, Any], done: ToolFinished) -> None:
        self._line(self._tool_line(done.name, arguments, done))
        for line in styled_lines(done.name, folded(done.name, done.shown), self._screen.width):
            self._screen.print(line)

    def _dim(self, text: str) -> RenderableType:
        return Styled(shortened_line(text, 1000), style="dim")

    # -------------------------------------------------------------------------------- redrawn

    def _region(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._text.strip():
            parts.append(self._tail())
        # Of several calls that run side by side each gets fewer lines; the region must fit on the screen.
        room = (self._screen.height - 4) // max(1, len(self._running)) - 1
        for call_id, one in self._running.items():
            parts.append(self._tool_line(one.name, one.arguments, self._finished.get(call_id)))
            lines = last_lines(self._printed.get(call_id, ""), min(RUNNING_LINES, room))
            parts += styled_lines(one.name, lines, self._screen.width)
        if not parts:
            left = self._retry_at - time.monotonic()
            if self._reasoning and self._thought.strip():
                thought = Styled(self._thought[-_TAIL:].strip(), style="dim italic", overflow="fold")
                parts += thought.wrap(self._screen, self._screen.width)[-RUNNING_LINES:]
            what = "Thinking" if left <= 0 else f"Retrying in {math.ceil(left)} s (try {self._try})"
            parts.append(self._waiting(what))
        if self._typed:
            parts.append(self._input_line())
        return Group(*parts)

    def _input_line(self) -> RenderableType:
        """The end of the input line, on one line."""
        text = self._typed[-self._screen.width :]
        while cell_len(text) > self._screen.width:
            text = text[1:]
        return Styled(text, style="dim", no_wrap=True)

    def _tail(self) -> RenderableType:
        """The end of the block being written, as much as fits on the screen."""
        gap: list[RenderableType] = [Styled("")] if self._above else []
        return Group(*gap, self._rendered(self._text, max(1, self._screen.height - 4 - len(self._running))))

    def _tool_line(self, name: str, arguments: dict[str, Any], done: ToolFinished | None) -> RenderableType:
        line = Styled("  ", no_wrap=True, overflow="ellipsis")
        if done is None:
            line.append(self._spinner(), style="cyan")
        else:
            line.append("✓" if done.ok else "✗", style="green" if done.ok else "red")
        line.append(f" {harmless(name)}", style="bold")
        outcome = f"  {harmless(done.outcome)}" if done is not None and done.outcome else ""
        seconds = f"  {done.seconds:.1f}s" if done is not None else ""
        room = self._screen.width - line.cell_len - len(outcome) - len(seconds) - 2
        about = short_argument(arguments)
        if about and room > 3:
            shown = Styled(about, style="dim")
            shown.truncate(room, overflow="ellipsis")
            line.append("  ").append_text(shown)
        line.append(outcome, style="red")
        line.append(seconds, style="dim")
        line.truncate(self._screen.width, overflow="ellipsis")
        return line

    def _waiting(self, what: str) -> RenderableType:
        return Styled(f"{self._spinner()} {what}…", style="dim", no_wrap=True, overflow="ellipsis")

    def _spinner(self) -> str:
        return "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int((time.monotonic() - self._begun) / REFRESH_SECONDS) % 10]


# ------------------------------------------------------------------------------------------------ Markdown

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
            String: Style(color="magenta"),
            Generic.Inserted: Style(color="green"),
            **dict.fromkeys((Keyword, Name.Tag), Style(color="bright_blue")),
            **dict.fromkeys((Name.Function, Name.Class, Name.Decorator, Generic.Heading), Style(bold=True)),
            **dict.fromkeys((Number, Generic.Deleted, Error), Style(color="red")),
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
