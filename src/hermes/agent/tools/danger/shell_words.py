"""The words of a shell command line: quotes removed, expansions found but not expanded.

A word records how far its text is known, so that the judge can distinguish `rm` from `$CMD`. Commands inside a
word (`$(…)`, backticks, `<(…)`) are read as well and join the list of commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

MAX_DEPTH: Final = 40  # of groups and substitutions within each other
METACHARACTERS: Final = "|&;()<> \t\n"
ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")

_ORDINARY: Final = re.compile(r"""[^|&;()<> \t\n\\'"$`]+""")
_IN_QUOTES: Final = re.compile(r"""[^\\$`"]+""")
_NAME: Final = re.compile(r"[A-Za-z_]\w*|.", re.A | re.S)


class Unparsable(Exception):
    """The text is not a command line, or not one that can be read with certainty; says why."""


@dataclass(slots=True)
class ShellWord:
    """One word after quotes are removed; expansions stand in `text` as they were written."""

    text: str
    known: bool = True  # what the program gets is exactly `text`
    open: bool = False  # an expansion could turn it into anything
    leading: bool = False  # it begins with an expansion: it could be an option
    glob: bool = False  # file name patterns, not quoted
    quoted: bool = False
    process: bool = False  # <(…) or >(…)
    tilde: bool = False


@dataclass(slots=True)
class Redirect:
    """`>`, `<<` and their kind; the text of a here-document or here-string is in `body`."""

    operator: str
    target: ShellWord
    body: str | None = None
    body_known: bool = True


@dataclass(slots=True)
class Simple:
    """A program and its words (or only redirections, or only assignments)."""

    words: list[ShellWord] = field(default_factory=list)
    assignments: list[ShellWord] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    upstream: list[Simple] | None = None  # what is piped into it; None when nothing is


class WordReader:
    """Reads words from a text; the commands found inside them are collected in `commands`."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self.depth = depth
        self.commands: list[Simple] = []
        self.not_arithmetic: set[int] = set()  # where `((` turned out to be two parentheses; never tried twice

    def read_list(self, closers: frozenset[str]) -> str:
        """Commands up to one of the closers."""
        raise NotImplementedError

    def read_pending(self) -> None:
        """The texts of here-documents begun before."""
        raise NotImplementedError

    def skip_lines(self) -> None:
        """Blanks, comments and line ends."""
        raise NotImplementedError

    def peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unparsable("it nests too deep")

    def stray(self) -> Unparsable:
        return Unparsable(f"there is a stray {self.peek()!r}" if self.peek() else "it breaks off")

    def read_word(self, *, array: bool = False) -> ShellWord:
        """The word that begins here; with `array`, `name=(…)` is one as well."""
        word = ShellWord("")
        start = self.at
        bare = ""  # what was not quoted: there braces and patterns count
        while self.at < len(self.text):
            sign = self.text[self.at]
            if self.at == start and self.peek(2) in ("<(", ">("):
                self.read_process(word)
            elif sign == "(" and array and ASSIGNMENT.fullmatch(word.text):
                self.read_array(word)
            elif ordinary := _ORDINARY.match(self.text, self.at):
                word.tilde = word.tilde or (self.at == start and sign == "~")
                self.at = ordinary.end()
                bare += ordinary[0]
                word.text += ordinary[0]
            elif sign in METACHARACTERS:
                break
            elif sign == "\\":
                if self.peek(2) != "\\\n":
                    word.text += self.text[self.at + 1 : self.at + 2]
                    word.quoted = True
                self.at += 2
            elif sign == "'":
                self.read_single(word)
            elif sign == '"':
                word.quoted = True
                self.at += 1
                self.read_quoted(word, '"')
            elif sign == "$":
                self.read_dollar(word, quoted=False)
            else:
                self.read_backticks(word)
        self.at = min(self.at, len(self.text))
        if self.at == start:
            raise self.stray()
        word.glob = any(sign in bare for sign in "*?[")
        if _has_braces(bare):
            word.known = False
            word.leading = word.leading or self.text[start] == "{"
        return word

    def read_single(self, word: ShellWord) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Unparsable("a quote is never closed")
        word.text += self.text[self.at + 1 : end]
        word.quoted = True
        self.at = end + 1

    def read_quoted(self, word: ShellWord, end: str) -> None:
        """Text in which only `$`, backticks and some backslashes count, up to `end` (or the end of the text)."""
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == end:
                self.at += 1
                return
            if sign == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following != "\n":
                    word.text += following if following and following in '$`"\\' else sign + following
                self.at += 2
            elif sign == "$":
                self.read_dollar(word, quoted=True)
            elif sign == "`":
                self.read_backticks(word)
            else:
                ordinary = _IN_QUOTES.match(self.text, self.at)
                stop = ordinary.end() if ordinary else self.at + 1
                word.text += self.text[self.at : stop]
                self.at = stop
        self.at = min(self.at, len(self.text))
        if end:
            raise Unparsable("a quote is never closed")

    def unknown(self, word: ShellWord, start: int, *, number: bool = False) -> None:
        """From `start` to here was an expansion; one that gives a number can do no harm."""
        word.leading = word.leading or (not word.text and not number)
        word.known = False
        word.open = word.open or not number
        word.text += "0" if number else self.text[start : self.at]

    def read_dollar(self, word: ShellWord, *, quoted: bool) -> None:
        start = self.at
        following = self.text[self.at + 1 : self.at + 2]
        if following == "(":
            self.read_substitution(word)
        elif following == "{":
            self.at += 2
            self.enter()
            self.read_parameter()
            self.depth -= 1
            self.unknown(word, start)
        elif following == "[":
            self.at += 2
            self.skip_arithmetic("[", "]")
            if self.peek() != "]":
                raise Unparsable("a '$[' is never closed")
            self.at += 1
            self.unknown(word, start, number=True)
        elif following == "'" and not quoted:
            text, self.at = ansi_c(self.text, self.at + 2)
            if self.at < 0:
                raise Unparsable("a quote is never closed")
            word.text += text
            word.quoted = True
        elif following == '"' and not quoted:
            self.at += 1
        elif following and following in "?#$!":
            self.at += 2
            self.unknown(word, start, number=True)
        elif following and (following in "@*-_" or (following.isascii() and following.isalnum())):
            name = _NAME.match(self.text, self.at + 1)
            self.at = name.end() if name else self.at + 2
            self.unknown(word, start)
        else:
            word.text += "$"
            self.at += 1

    def read_substitution(self, word: ShellWord) -> None:
        start = self.at
        self.at += 1
        if self.peek(2) == "((" and self.read_arithmetic():
            self.unknown(word, start, number=True)
            return
        self.at += 1
        self.read_list(frozenset({")"}))
        self.unknown(word, start)

    def read_arithmetic(self) -> bool:
        """`((…))`; False (and nothing consumed) when these are two groups."""
        start, known = self.at, len(self.commands)
        if start in self.not_arithmetic:
            return False
        self.at += 2
        self.skip_arithmetic("(", ")")
        if self.peek(2) == "))":
            self.at += 2
            return True
        self.not_arithmetic.add(start)
        self.at = start
        del self.commands[known:]
        return False

    def skip_arithmetic(self, opening: str, closing: str) -> None:
        """Up to the sign that closes an arithmetic expression; substitutions within it count."""
        self.enter()
        depth = 0
        word = ShellWord("")
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "$":
                self.read_dollar(word, quoted=True)
                continue
            if sign == "`":
                self.read_backticks(word)
                continue
            if sign == opening:
                depth += 1
            elif sign == closing:
                if depth == 0:
                    break
                depth -= 1
            self.at += 1
        self.depth -= 1

    def read_parameter(self) -> None:
        """`${…}` up to its brace; quotes and substitutions within it count."""
        inner = ShellWord("")
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "}":
                self.at += 1
                return
            if sign == "\\":
                self.at += 2
            elif sign == "'":
                self.read_single(inner)
            elif sign == '"':
                self.at += 1
                self.read_quoted(inner, '"')
            elif sign == "$":
                self.read_dollar(inner, quoted=False)
            elif sign == "`":
                self.read_backticks(inner)
            else:
                self.at += 1
        raise Unparsable("a '${' is never closed")

    def read_backticks(self, word: ShellWord) -> None:
        start = self.at
        self.at += 1
        script = []
        while self.peek() != "`":
            if self.at >= len(self.text):
                raise Unparsable("a backtick is never closed")
            if self.peek() == "\\" and self.text[self.at + 1 : self.at + 2] in ("`", "\\", "$"):
                self.at += 1
            script.append(self.peek())
            self.at += 1
        self.at += 1
        inner = type(self)("".join(script), self.depth)
        inner.read_list(frozenset())
        inner.read_pending()
        self.commands += inner.commands
        self.unknown(word, start)

    def read_process(self, word: ShellWord) -> None:
        start = self.at
        self.at += 2
        self.read_list(frozenset({")"}))
        self.unknown(word, start)
        word.process = True
        word.leading = False  # always a file name

    def read_array(self, word: ShellWord) -> None:
        self.at += 1
        while True:
            self.skip_lines()
            if self.peek() == ")":
                self.at += 1
                break
            if self.at >= len(self.text):
                raise Unparsable("a list of values is never closed")
            self.read_word()
        word.known = False


def _has_braces(bare: str) -> bool:
    """Whether `{a,b}` or `{1..3}` is in a word: it becomes several."""
    opening = bare.find("{")
    if opening < 0:
        return False
    signs = [at for at in (bare.find(",", opening), bare.find("..", opening)) if at > 0]
    return bool(signs) and bare.find("}", min(signs)) > 0


# ----------------------------------------------------------------------------------------------------
# The escapes of `$'…'`: a quoted text in which `\n`, `\x41` and their kind mean characters.

_SIMPLE = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_NUMBER = re.compile(r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})")


def ansi_c(text: str, at: int) -> tuple[str, int]:
    """The text from `at` (behind the opening quote) to its closing quote, decoded, and where it ends; -1: never."""
    said = ""
    while at < len(text):
        sign = text[at]
        if sign == "'":
            return said, at + 1
        if sign != "\\":
            said += sign
            at += 1
            continue
        following = text[at + 1 : at + 2]
        number = _NUMBER.match(text, at + 1)
        if number:
            value = int(number[4], 8) & 0xFF if number[4] else int(number[1] or number[2] or number[3], 16)
            said += chr(value) if value <= 0x10FFFF else "\ufffd"
            at = number.end()
        elif following == "c":
            control = text[at + 2 : at + 3]
            said += chr(ord(control) & 0x1F) if control else ""
            at += 3
        else:
            said += _SIMPLE.get(following, "\\" + following)
            at += 2
    return said, -1
