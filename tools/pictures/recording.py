"""A terminal that is looked at after every key, and what was seen as one animated SVG.

tmux shows the program, as it does for the tests; the SVG has each run of styled text once, with the time from which to
which it is visible. Nothing but CSS moves it, so it plays where a page embeds it as a picture, and a reader who asks
for less motion sees the last screen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style

from tests.support.screen import Screen

WIDTH, HEIGHT = 90, 18
KEY, LOOK = 0.045, 0.09  # seconds that a typed key and a moment of a reply are shown
COLUMN, LINE, EDGE, BAR = 8.4, 19, 16, 30  # pixels

# The sixteen colours of a terminal, on a dark and on a light ground, each readable there (4.5 : 1 and more).
_DARK = "#7d8590 #ff7b72 #7ee787 #e3b341 #79c0ff #d2a8ff #56d4dd #e6edf3".split()
_LIGHT = "#57606a #b3202c #116329 #7d4e00 #0550ae #6639ba #0b5c6b #24292f".split()


_CONSOLE = Console(width=WIDTH * 2, force_terminal=True, color_system="truecolor")


@dataclass(frozen=True)
class Frame:
    """A screen with the escape sequences of its colours, its cursor (column, row), and how long it is shown."""

    lines: tuple[str, ...]
    cursor: tuple[int, int] | None
    seconds: float

    def text(self) -> str:
        """The screen without colours."""
        return "\n".join(text.plain.rstrip() for text in AnsiDecoder().decode("\n".join(self.lines))).rstrip()


class Camera(Screen):
    """A terminal whose screens are kept as frames."""

    def __init__(self, command: list[str], **more: object) -> None:
        super().__init__(command, WIDTH, HEIGHT, **more)  # type: ignore[arg-type]
        self.frames: list[Frame] = []

    def look(self, seconds: float) -> None:
        """Keep what is on the screen now."""
        words = ["capture-pane", "-p", "-e", ";", "display-message", "-p", "#{cursor_flag} #{cursor_x} #{cursor_y}"]
        *lines, cursor = self._tmux(*words).rstrip("\n").split("\n")
        shown, column, row = map(int, cursor.split())
        self.frames.append(Frame(tuple(lines), (column, row) if shown else None, seconds))

    def keys(self, text: str) -> None:
        """Type a text key by key, and see each."""
        for letter in text:
            before = self.text()
            self.type(letter)
            end = time.monotonic() + 2
            while letter != " " and self.text() == before and time.monotonic() < end:
                time.sleep(0.005)
            self.look(KEY)
        self.look(0.4)

    def until_last_line(self, text: str, seconds: float = 60) -> None:
        """Look again and again until the last line of the screen is this text."""
        end = time.monotonic() + seconds
        while self.text().rpartition("\n")[2].strip() != text:
            assert time.monotonic() < end, f"the last line never was {text!r}; the screen:\n{self.text()}"
            self.look(LOOK)

    def clear(self, prompt: str) -> None:
        """Clear the screen, and wait until only the prompt is on it."""
        self.press("C-l")
        while self.text().strip() != prompt:
            time.sleep(0.02)

    def until_shown(self, text: str, seconds: float = 60) -> None:
        """Look again and again until this text is on the screen."""
        end = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < end, f"{text!r} did not come up; the screen:\n{self.text()}"
            self.look(LOOK)
            time.sleep(LOOK)

    def until_settled(self) -> None:
        """Wait until the screen has been the same for half a second."""
        seen, since = self.text(), time.monotonic()
        while time.monotonic() < since + 0.5:
            time.sleep(0.05)
            if (now := self.text()) != seen:
                seen, since = now, time.monotonic()

    def command(self, text: str, prompt: str, hold: float) -> None:
        """Type a command, wait for the prompt after it, and hold what it printed."""
        self.keys(text)
        first = len(self.frames)
        self.press("Enter")
        self.until_last_line(prompt)
        del self.frames[first:]  # how long it took here is not what the picture is about
        self.look(hold)


def _rows(lines: tuple[str, ...]) -> Iterator[list[tuple[int, str, Style]]]:
    """The parts of each line that are of one style, with the column they begin in."""
    for text in AnsiDecoder().decode("\n".join(lines)):  # one decoder: a style goes on in the next line
        column, parts = 0, []
        for segment in text.render(_CONSOLE):
            if segment.text.strip():
                lead = len(segment.text) - len(segment.text.lstrip(" "))
                parts.append((column + lead, segment.text.strip(), segment.style or Style()))
            column += cell_len(segment.text.rstrip("\n"))
        yield parts


def _class(style: Style) -> str:
    """The CSS classes of a style."""
    found = []
    number = style.color.number if style.color is not None else None
    if number is not None and number < 16:
        found.append(f"c{number % 8}")
    if style.dim:
        found.append("d")
    if style.bold:
        found.append("b")
    if style.italic:
        found.append("i")
    if style.underline:
        found.append("u")
    return " ".join(found)


def _drawn(number: int, parts: list[tuple[int, str, Style]]) -> str:
    """A line as SVG."""
    y = BAR + EDGE + LINE * number + 13
    texts = []
    for column, text, style in parts:
        name = f' class="{_class(style)}"' if _class(style) else ""
        width = f' textLength="{cell_len(text) * COLUMN:g}"' if cell_len(text) > 1 else ""
        texts.append(f'<text x="{EDGE + column * COLUMN:g}" y="{y}"{name}{width}>{escape(text, quote=False)}</text>')
    return "".join(texts)


def _spans(frames: list[Frame]) -> dict[tuple[float, float], list[str]]:
    """What is drawn, by the time from which to which it is visible."""
    begun: dict[str, float] = {}
    spans: dict[tuple[float, float], list[str]] = {}
    now = 0.0
    for frame in [*frames, Frame((), None, 0)]:
        drawn = {_drawn(number, parts) for number, parts in enumerate(_rows(frame.lines)) if parts}
        if frame.cursor is not None:
            x, y = EDGE + frame.cursor[0] * COLUMN, BAR + EDGE + LINE * frame.cursor[1]
            drawn.add(f'<rect class="k" x="{x:g}" y="{y}" width="{COLUMN}" height="{LINE - 2}"/>')
        for row in [row for row in begun if row not in drawn]:
            spans.setdefault((begun.pop(row), now), []).append(row)
        for row in drawn:
            begun.setdefault(row, now)
        now = round(now + frame.seconds, 3)
    return spans


def _colours(palette: list[str], ground: str, edge: str, ink: str) -> str:
    rules = "".join(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(palette))
    return f"{rules}.g{{fill:{ground};stroke:{edge}}}text,.k{{fill:{ink}}}"


def svg(frames: list[Frame], title: str) -> str:
    """The frames as an animated picture that starts over at its end. What stays for a second is its description."""
    description = "\n\n".join(frame.text() for frame in frames if frame.seconds >= 1)
    total = round(sum(frame.seconds for frame in frames), 3)
    width, height = round(EDGE * 2 + WIDTH * COLUMN), BAR + EDGE * 2 + LINE * HEIGHT
    rules, groups = [], []
    spans = sorted(_spans(frames).items())
    for number, ((begin, end), rows) in enumerate(spans):
        last = " l" if end == total else ""
        visible = f"{begin / total:.3%}{{visibility:visible}}"
        hidden = "" if end == total else f"{end / total:.3%}{{visibility:hidden}}"
        rules.append(f"@keyframes f{number}{{{visible}{hidden}}}")
        groups.append(f'<g class="f{last}" style="animation-name:f{number}">{"".join(sorted(rows))}</g>')
    dark = _colours(_DARK, "#0d1117", "#30363d", "#e6edf3")
    light = _colours(_LIGHT, "#ffffff", "#d0d7de", "#24292f")
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        ".b{font-weight:bold}.i{font-style:italic}.u{text-decoration:underline}.d{opacity:.75}.k{opacity:.6}"
        f".f{{visibility:hidden;animation:{total:g}s step-end infinite}}{''.join(rules)}"
        # colours come after the rules they override: text has a colour of its own
        f"{light}@media(prefers-color-scheme:dark){{{dark}}}"
        "@media(prefers-reduced-motion){.f{animation:none}.l{visibility:visible}}"
    ).replace("text,.k{", "text:not([class*=c]),.k{")
    dots = "".join(
        f'<circle class="c{colour}" cx="{EDGE + 6 + 18 * number}" cy="19" r="5"/>'
        for number, colour in enumerate((1, 3, 2))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-labelledby="t d"><title id="t">{escape(title)}</title><desc id="d">{escape(description, quote=False)}</desc>'
        f"<style>{style}</style>"
        f'<rect class="g" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>{dots}{"".join(groups)}</svg>\n'
    )
