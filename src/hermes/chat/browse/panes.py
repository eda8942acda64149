"""The session browser's two panes: the list, with the filter and the search that select its lines, and the preview.

Only visible lines are drawn, however many there are: textual's own lists take 10 to 20 times as long to fill
with 10,000 conversations, and a filter fills the list again at each key.

The preview has participants and times, then the conversation in plain text, shortened to a glance: of a long one the first
message and the end or, after a search, the messages around the match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import chain, islice
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hermes.commands.info_commands import message_count, tool_names
from hermes.store.text.index_text import fold, plain_parts
from hermes.texts import counted, harmless, one_line, unfinished
from hermes.times import ago

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow, SearchHit, SessionRow


@dataclass(slots=True)
class ListLine:
    """A conversation in the list."""

    id: str
    title: str
    preview: str
    source: str
    last_active: float | None
    pinned: bool = False
    compressed: bool = False  # it has several parts
    haystack: str = ""  # the text the filter searches, folded
    folded_title: str = ""
    snippet: str = ""  # for a search hit: the text around the match, with >>>marks<<<
    message_id: int | None = None  # for a search hit: the message that matched
    is_weak: bool = False  # for a search hit: it is only near what was asked
    more: int = 0  # for a search hit: further matches in this conversation

    def __post_init__(self) -> None:
        self.folded_title = fold(self.title)
        self.haystack = fold(f"{self.title}\n{self.preview}\n{self.source}")

    def renamed(self, title: str | None) -> None:
        """Set another title."""
        self.title = one_line(title)
        self.__post_init__()

    @property
    def name(self) -> str:
        """The title, else the beginning of the first message."""
        return self.title or self.preview or self.id


def line_of(row: SessionRow) -> ListLine:
    """A row of list_sessions_rich (or get_session) as a line."""
    return ListLine(
        id=row["id"],
        title=one_line(row.get("title")),
        preview=one_line(row.get("preview")),
        source=one_line(row.get("source")),
        last_active=row.get("last_active") or row.get("started_at"),
        pinned=row.get("pinned_at") is not None,
        compressed="compression" in (row.get("kind"), row.get("end_reason")),
    )


_ID = re.compile(r"[\w-]*\d{4,}[\w-]*|[\w-]*_[\w-]*|[0-9a-f-]{8,}")  # a word that may be meant as an id


def matching(lines: Sequence[ListLine], text: str) -> list[ListLine]:
    """The lines that contain every word of the text, ignoring case and accents; those with all words in the title first.

    Ids are compared only with a single word that looks like one: the letters of a name stand in many ids by chance.
    """
    words = fold(text).split()
    if not words:
        return list(lines)
    found = [line for line in lines if all(word in line.haystack for word in words)]
    titled = {line.id for line in found if all(word in line.folded_title for word in words)}
    found.sort(key=lambda line: line.id not in titled)  # stable: both parts keep the order of the list
    if len(words) == 1 and (_ID.fullmatch(words[0]) or any(line.id == text.strip() for line in lines)):
        word, known = text.strip().casefold(), {line.id for line in found}
        found += [line for line in lines if line.id not in known and word in line.id.casefold()]
    return found


_ROUNDS, _HITS = (
    5,
    200,
)  # searches for one list, and hits of each: a conversation with very many matches hides no other one


def found_inside(db: SessionDB, query: str) -> tuple[list[ListLine], bool]:
    """The conversations with a match, the best first, each with its best match; and whether there may be more."""
    from hermes.agent.history import search_rounds

    rounds = list(islice(search_rounds(db, query, _HITS), _ROUNDS))
    found: dict[str, list[SearchHit]] = {}
    for hit in chain.from_iterable(rounds):
        found.setdefault(hit["session_id"], []).append(hit)
    rows = db.get_sessions(list(found))
    lines = []
    for session_id, (hit, *others) in found.items():
        if session_id in rows:  # else it was deleted in between
            line = line_of(rows[session_id])
            line.snippet, line.message_id, line.more = one_line(hit["snippet"]), hit["id"], len(others)
            line.last_active, line.is_weak = hit["timestamp"], hit["confidence"] == "weak"
            lines.append(line)
    return lines, len(rounds) == _ROUNDS and len(rounds[-1]) == _HITS


def marked(text: str) -> Iterable[tuple[str, bool]]:
    """A snippet in pieces; True where it matched."""
    for number, piece in enumerate(re.split(r">>>(.*?)<<<", text)):
        if piece:
            yield piece, number % 2 == 1


_GAP = "  "
_WHEN, _SOURCE, _ID_CELLS = 10, 8, 24
_BOLD, _DIM, _PLAIN = Style(bold=True), Style(dim=True), Style()
_MATCH, _PIN, _HERE = Style(bold=True, color="yellow"), Style(color="yellow"), Style(reverse=True)


class SessionList(ScrollView, can_focus=False):
    """Lines with a cursor: time, source, title. Text of any width comes last and shifts no column."""

    DEFAULT_CSS = "SessionList { overflow-x: hidden; }"

    class Moved(Message):
        """The cursor is on another line (None: there are none)."""

        def __init__(self, line: ListLine | None) -> None:
            super().__init__()
            self.line = line

    class Chosen(Message):
        """A line was double-clicked."""

        def __init__(self, line: ListLine) -> None:
            super().__init__()
            self.line = line

    def __init__(self, zone: tzinfo | None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.zone = zone
        self.lines: Sequence[ListLine] = ()
        self.cursor = 0
        self.nothing = ""  # the text for an empty list

    @property
    def current(self) -> ListLine | None:
        """The line under the cursor."""
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    def show(self, lines: Sequence[ListLine], *, keep: str | None = None, nothing: str = "") -> None:
        """Show these lines, with the cursor on the session `keep` if it is among them, else on the first."""
        self.lines, self.nothing = lines, nothing
        self.cursor = 0
        if keep is not None:
            self.cursor = next((n for n, line in enumerate(lines) if line.id == keep), 0)
        self._measure()
        self._reveal()
        self.refresh()
        self.post_message(self.Moved(self.current))

    def move(self, to: int) -> None:
        """Put the cursor on this line, or the nearest one."""
        to = max(0, min(to, len(self.lines) - 1))
        if to == self.cursor or not self.lines:
            return
        self.cursor = to
        self._reveal()
        self.refresh()
        self.post_message(self.Moved(self.current))

    @property
    def page(self) -> int:
        """How many lines are visible."""
        return max(1, self.scrollable_content_region.height)

    def _measure(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self.lines))

    def _reveal(self) -> None:
        """Scroll until the cursor is visible."""
        top, page = self.scroll_offset.y, self.page
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + page:
            self.scroll_to(y=self.cursor - page + 1, animate=False)

    def on_resize(self) -> None:
        self._measure()
        self._reveal()

    def on_click(self, event: events.Click) -> None:
        number = event.y + self.scroll_offset.y
        if number >= len(self.lines):
            return
        self.move(number)
        if event.chain == 2:
            self.post_message(self.Chosen(self.lines[number]))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        number = y + self.scroll_offset.y
        base = self.rich_style
        if number < len(self.lines):
            pieces = drawn(self.lines[number], width, self.zone)
            if number == self.cursor:  # one bar of one colour; only bold text stays bold
                base += _HERE
                pieces = [(text, _BOLD if style.bold else _PLAIN) for text, style in pieces]
        elif not self.lines and (row := y - min(1, self.page - 1)) >= 0 and row < len(self._empty(width)):
            pieces = [(self._empty(width)[row], _DIM)]
        else:
            pieces = []
        if pieces and not self.lines:
            pieces = [(_GAP, _PLAIN), *pieces]
        return Strip(fitted(pieces, width, base, self.app.console), width)

    def _empty(self, width: int) -> list[str]:
        """The text of an empty list, in lines that fit."""
        room = max(1, width - 2 * len(_GAP))
        return [part.plain for part in Text(self.nothing).wrap(Console(width=room), room, overflow="fold")]


Piece = tuple[str, Style]


def drawn(line: ListLine, width: int, zone: tzinfo | None) -> list[Piece]:
    """The pieces of a line, not cut yet."""
    pieces: list[Piece] = [("★ " if line.pinned else "  ", _PIN)]
    if width >= 30:
        pieces.append((set_cell_size(ago(line.last_active, zone), _WHEN) + _GAP, _DIM))
    if width >= (80 if line.snippet else 56):  # the match needs the room more than the source
        pieces.append((set_cell_size(line.source, _SOURCE) + _GAP, _DIM))
    if width >= 110 and not line.snippet:
        pieces.append((set_cell_size(line.id, _ID_CELLS) + _GAP, _DIM))
    if line.snippet:
        return pieces + _matched(line, width - sum(cell_len(text) for text, _ in pieces))
    if line.title:
        pieces.append((line.title, _BOLD))
    if line.preview:
        pieces.append((_GAP + line.preview, _DIM) if line.title else (line.preview, _PLAIN))
    elif not line.title:
        pieces.append(("—", _DIM))
    return pieces


def _matched(line: ListLine, room: int) -> list[Piece]:
    """The title and the text around the match; the match itself is never cut off."""
    pieces: list[Piece] = []
    if line.title:
        title = line.title
        most = room * 2 // 5 if room < 60 else room // 3
        if cell_len(title) > most:
            title = set_cell_size(title, max(0, most - 1)).rstrip() + "…"
        pieces.append((title + _GAP, _BOLD))
        room -= cell_len(title) + len(_GAP)
    around = list(marked(line.snippet))
    if around and not around[0][1]:
        before = around[0][0]
        if cell_len(before) > room // 3:
            before = "…" + before[-max(1, room // 3) :]
        around[0] = (before, False)
    pieces += [(text, _MATCH if hit else _DIM) for text, hit in around]
    if line.more:
        pieces.append((f"{_GAP}(+{line.more})", _DIM))
    return pieces


def fitted(pieces: Sequence[Piece], width: int, base: Style, console: Console) -> list[Segment]:
    """Pieces as segments of exactly this width, with `…` where something was cut off."""
    text = Text(style=base, end="")
    for piece in pieces:
        text.append(*piece)
    text.truncate(width, overflow="ellipsis", pad=True)
    return list(text.render(console))


# ------------------------------------------------------------------------------------------------ the preview

SHOWN = 30  # messages at the end, or around a match
CHARACTERS = 600  # characters of one message
_WHO = {"user": ("● you", "bold yellow"), "assistant": ("◆ assistant", "bold green")}


@dataclass(slots=True)
class Preview:
    """The text of the pane, and the position of the match in it, if there is one."""

    text: Text
    match: int | None = None

    def top(self, width: int) -> int:
        """The line the pane should begin with."""
        if self.match is None or width < 1:
            return 0
        before = self.text.plain[: self.match].split("\n")
        return max(0, sum(max(1, -(-cell_len(line) // width)) for line in before) - 2)


def preview(db: SessionDB, line: ListLine, zone: tzinfo | None) -> Preview:
    """The conversation behind a line."""
    session = db.get_session(line.id)
    if session is None:
        return Preview(Text("This conversation was deleted."))
    messages = [message for message in db.get_messages(line.id) if _is_shown(message)]
    text = _head(db, session, zone)
    start, end = _window(messages, line.message_id)
    match = None
    if start > 0 and line.message_id is None:  # the first message
        opening = next((n for n, message in enumerate(messages[:start]) if message["role"] == "user"), None)
        if opening is not None:
            _message(text, messages[opening], False)
            start = max(start, opening + 1)
    if start > 0:
        text.append(f"… {counted(start, 'earlier message')} …\n\n", "dim")
    for message in messages[start:end]:
        hit = message["id"] == line.message_id
        if hit:
            match = len(text)
        _message(text, message, hit)
    if end < len(messages):
        text.append(f"… {counted(len(messages) - end, 'later message')} …\n", "dim")
    if not messages:
        text.append("No messages yet.", "dim")
    text.rstrip()
    return Preview(text, match)


def _is_shown(message: MessageRow) -> bool:
    """Whether the preview shows a message: those of people and models, and tool calls."""
    return message["role"] in _WHO and bool(message["content"] or message["tool_calls"])


def _window(messages: list[MessageRow], match: int | None) -> tuple[int, int]:
    if match is not None:
        at = next((n for n, message in enumerate(messages) if message["id"] >= match), len(messages) - 1)
        return max(0, at - SHOWN // 3), min(len(messages), at + SHOWN)
    return max(0, len(messages) - SHOWN), len(messages)


def _head(db: SessionDB, session: SessionRow, zone: tzinfo | None) -> Text:
    text = Text()
    text.append((one_line(session["title"]) or one_line(session["preview"]) or "No title") + "\n", "bold")
    facts = [one_line(session["source"]), ago(session["last_active"] or session["started_at"], zone)]
    if session["model"]:
        facts.append(one_line(session["model"]))
    facts.append(counted(message_count(db, session), "message"))
    tags = db.get_tags(session["id"])
    text.append(" · ".join(facts) + "\n", "dim")
    text.append(session["id"] + "\n", "dim")
    if tags:
        text.append(" ".join(f"#{one_line(tag)}" for tag in tags) + "\n", "cyan")
    text.append("\n")
    return text


def _message(text: Text, message: MessageRow, hit: bool) -> None:
    name, style = _WHO[message["role"]]
    text.append(name, style)
    if hit:
        text.append("  ← found here", "bold magenta")
    text.append("\n")
    content = message["content"]
    said = content if isinstance(content, str) else plain_parts(content) if content else ""
    body = harmless(said).expandtabs(4).strip()
    if len(body) > CHARACTERS:
        body = body[:CHARACTERS].rstrip() + " …"
    if body:
        text.append(body + "\n")
    if cut_off := unfinished(message):
        text.append(f"✂ {cut_off}\n", "dim")
    if calls := tool_names(message["tool_calls"]):
        text.append(f"[{counted(len(calls), 'tool call')}: {one_line(', '.join(dict.fromkeys(calls)))}]\n", "dim")
    text.append("\n")
