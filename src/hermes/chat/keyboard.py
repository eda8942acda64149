"""Type-ahead and signals of the terminal: keys typed during a reply are read, shown, and passed to the next prompt.

The keys are parsed by the prompt's own library, so that a line typed early is edited, completed and sent exactly like any
other. Handlers of Ctrl-C, and of the signals that end the program, are installed for a while and restored.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPress


_CURSOR_ON = "\x1b[?25h"
_PASTES_ON, _PASTES_OFF = "\x1b[?2004h", "\x1b[?2004l"  # bracketed paste: line breaks in a pasted text are no Enter


class Typing:
    """The keys typed while a turn runs. Only for a terminal on standard input and output."""

    def __init__(self) -> None:
        from prompt_toolkit.application.current import get_app_session

        self._input = get_app_session().input
        self._keys: list[KeyPress] = []
        self.line = ""  # the current input line
        self.sent: float | None = None  # when a non-empty line was ended with Enter
        self._seen = 0

    def begin(self) -> bool:
        """Switch bracketed paste on; returns whether the prompt has read a Ctrl-C behind the line that it sent."""
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
        from prompt_toolkit.keys import Keys

        self._tell(_PASTES_ON)
        ahead = get_typeahead(self._input)
        after = max((place for place, press in enumerate(ahead, 1) if press.key == Keys.ControlC), default=0)
        store_typeahead(self._input, ahead[after:])
        return after > 0

    def read(self) -> None:
        """Read the keys typed since."""
        # It is closed when the terminal is gone; a signal reports that, too.
        while not self._input.closed and select.select([self._input.fileno()], [], [], 0)[0]:
            self._keys += self._input.read_keys()
        self._follow()

    def _follow(self) -> None:
        """Update `line` and `sent` from the keys."""
        from prompt_toolkit.keys import Keys

        escaped = self._seen > 0 and self._keys[self._seen - 1].key == Keys.Escape
        for press in self._keys[self._seen :]:
            if press.key == Keys.Enter and not escaped:  # Alt-Enter is a new line
                if self.sent is None and self.line.strip():
                    self.sent = time.monotonic()
                self.line = ""
            elif press.key == Keys.ControlH:
                self.line = self.line[:-1]
            elif press.key in (Keys.ControlU, Keys.ControlW):
                self.line = "" if press.key == Keys.ControlU else self.line.rstrip().rpartition(" ")[0]
            elif press.key == Keys.BracketedPaste:
                self.line += press.data
            elif not isinstance(press.key, Keys):
                self.line += press.key
            escaped = press.key == Keys.Escape
        self._seen = len(self._keys)

    def unsend(self) -> None:
        """The user stopped everything: typed text stays on the line, but is not sent by itself."""
        from prompt_toolkit.key_binding import KeyPress
        from prompt_toolkit.keys import Keys

        self.read()
        while self._keys and self._keys[-1].key == Keys.Enter:
            self._keys.pop()
        self._keys[:] = [KeyPress(Keys.ControlJ, "\n") if press.key == Keys.Enter else press for press in self._keys]
        self.sent, self._seen = None, len(self._keys)

    def forget(self) -> None:
        """Drop keys typed before a question was shown: they are no answer to it."""
        import termios

        from prompt_toolkit.input.typeahead import clear_typeahead

        self.read()
        self._input.flush_keys()
        self._keys.clear()
        self.line, self.sent, self._seen = "", None, 0
        clear_typeahead(self._input)
        with suppress(OSError, termios.error):
            termios.tcflush(self._input.fileno(), termios.TCIFLUSH)

    def typed(self) -> str:
        """Take what was typed since the last prompt; nothing of it is left for the next one, or for the shell."""
        from prompt_toolkit.input.typeahead import get_typeahead

        self.read()
        return "".join(press.data for press in (*get_typeahead(self._input), *self._keys))

    def keep_early(self) -> None:
        """Keep lines typed before this program was ready: until then the terminal makes Enter a line break."""
        from prompt_toolkit.key_binding import KeyPress
        from prompt_toolkit.keys import Keys

        self.read()
        self._keys[:] = [KeyPress(Keys.Enter, "\r") if one.key == Keys.ControlJ else one for one in self._keys]
        self.end()

    def end(self) -> None:
        """End the turn: pass the keys to the next prompt."""
        from prompt_toolkit.input.typeahead import store_typeahead

        self.read()
        self._keys += self._input.flush_keys()
        self._tell(_PASTES_OFF)
        store_typeahead(self._input, self._keys)

    def _tell(self, command: str) -> None:
        with suppress(OSError):  # the terminal is gone
            sys.stdout.write(command)
            sys.stdout.flush()


@contextmanager
def quiet_keyboard(*, prompts: bool = True) -> Iterator[None]:
    """Don't echo keys. With `prompts`, those typed while no prompt is open are kept for the next one, Enter as Enter."""
    import termios

    descriptor = _keyboard()
    before = termios.tcgetattr(descriptor) if descriptor is not None else None
    if descriptor is None or before is None:
        yield
        return
    global _modes
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    if prompts:
        quiet[0], quiet[3] = quiet[0] & ~termios.ICRNL, quiet[3] & ~termios.ICANON
    try:
        _modes = descriptor, before, quiet
        _set(descriptor, quiet)
        if prompts and select.select([descriptor], [], [], 0)[0]:
            Typing().keep_early()
        yield
    finally:
        _modes = None
        _set(descriptor, before)


_modes: tuple[int, list[Any], list[Any]] | None = None  # the terminal, its settings outside and inside this program


@contextmanager
def shells_keyboard() -> Iterator[None]:
    """In this block the terminal is as the shell left it."""
    modes = _modes
    try:
        if modes is not None:
            sys.stdout.write(_PASTES_OFF + _CURSOR_ON)
            sys.stdout.flush()
            _set(modes[0], modes[1])
        yield
    finally:
        if modes is not None:
            _set(modes[0], modes[2])


def suspend() -> None:
    """Ctrl-Z: stop this process; returns when it continues."""
    with shells_keyboard():
        os.kill(os.getpid(), signal.SIGSTOP)


def _keyboard() -> int | None:
    """The terminal's descriptor, if standard input is one."""
    try:
        return sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    except (OSError, ValueError):
        return None


def _set(descriptor: int, settings: list[Any]) -> None:
    import termios

    with suppress(OSError, termios.error):  # the terminal is gone
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)


Handler = Callable[[int, Any], Any] | signal.Handlers
ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal is gone


class Terminated(BaseException):
    """A signal that ends the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def handled(wanted: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Send signals to these handlers; restore the previous ones afterwards."""
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: Any) -> NoReturn:
    raise Terminated(number)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, and a terminating signal raises Terminated."""
    with handled({signal.SIGINT: signal.default_int_handler, **dict.fromkeys(ENDING, _end)}):
        yield
