"""Reading a command line: words and quotes, pipes, && || ; and redirections. Anything else is NotUnderstood.

A command runs without a question only if what is read here is exactly what bash runs. So there are no expansions, groups,
loops, functions, here-documents or jobs: a line with one of them is asked about, and nothing is guessed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final

_PIECES: Final = re.compile(
    r"(?P<blank>[ \t]+)|(?P<joined>\\\n)|(?P<operator>&&|\|\||;(?![;&])|\|(?![&|])|\n)"
    r"|(?P<copied>[12]?>&[12](?=[ \t\n;|&]|\Z))|(?P<redirect>[12]?>>?(?![>|&(])|<(?![<>&(]))"
    r"|'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\$`]|\\[\s\S]|\$(?=[\" |)]))*)\"|\\(?P<escaped>[^\n])"
    r"|(?P<sign>#)|(?P<plain>[\w./:@%+,=^!-]+)|(?P<literal>\[(?=[ \t])|\](?=[ \t\n;|&]|\Z)|\{[\w/-]*\})"
    r"|(?P<glob>[*?])|(?P<tilde>~)"
)
_ESCAPED: Final = re.compile(r'\\([$`"\\\n])')
_RESERVED: Final = frozenset(
    "! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while".split()
)


class NotUnderstood(ValueError):
    """The line has more in it than simple commands; the text says what."""


@dataclass(slots=True)
class Word:
    """A word after its quotes were removed. `glob`: it has a `*` or `?` outside of them."""

    text: str = ""
    glob: bool = False
    quoted: str = ""  # the part that stood in quotes, or after a backslash


@dataclass(slots=True)
class SimpleCommand:
    """A program and its arguments, and the files it is redirected from and to."""

    words: list[Word] = field(default_factory=list)
    reads: list[Word] = field(default_factory=list)
    writes: list[Word] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


def read_command_line(line: str) -> list[SimpleCommand]:
    """The simple commands of a line, in their order; NotUnderstood when it has anything else in it."""
    if any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in line):
        raise NotUnderstood("it has a character in it that is no text")
    reader = _Reader()
    at = 0
    while at < len(line):
        found = _PIECES.match(line, at)
        if found is None:
            raise NotUnderstood(f"it uses {line[at]}" if line[at].isprintable() else "it has a control character in it")
        at = found.end()
        if found.lastgroup == "sign" and reader.word is None:  # a comment, up to the end of the line
            at = line.find("\n", at) if "\n" in line[at:] else len(line)
        else:
            reader.take(str(found.lastgroup), found[0], found[str(found.lastgroup)], line[at : at + 1])
    reader.end_command("\n")
    if reader.awaits:
        raise NotUnderstood(f"it ends with {reader.awaits}")
    return reader.commands


class _Reader:
    """Puts pieces together to words, and words to commands."""

    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.word: Word | None = None
        self.awaits = ""  # the operator that needs a command behind it
        self._command = SimpleCommand()
        self._into: list[Word] | None = None  # where the next word goes: a redirection's file

    def take(self, kind: str, whole: str, text: str, following: str) -> None:
        if kind == "blank":
            self._end_word()
        elif kind == "operator":
            self.end_command(whole)
        elif kind in ("copied", "redirect"):
            if self.word is not None and whole[0].isdigit():
                raise NotUnderstood(f"it uses {whole} inside a word")  # the digit belongs to the word
            self._end_word()
            if self._into is not None:
                raise NotUnderstood(f"it uses {whole} without a file")
            if kind == "redirect":
                self._into = self._command.reads if whole == "<" else self._command.writes
        elif kind != "joined":
            self._add(kind, text, following)

    def _add(self, kind: str, text: str, following: str) -> None:
        if kind == "tilde" and self.word is None and following in ("", "/", *" \t\n;|&<>"):
            text, kind = os.path.expanduser("~"), "single"
        elif kind == "tilde" and (self.word is None or self.word.text[-1:] in ("", "=", ":")):
            raise NotUnderstood("it uses ~")
        word = self.word = self.word or Word()
        if kind == "double":
            text = _ESCAPED.sub(lambda found: found[1].strip("\n"), text)
        word.text += text
        if kind in ("single", "double", "escaped"):
            word.quoted += text
        word.glob = word.glob or kind == "glob"

    def _end_word(self) -> None:
        word, self.word = self.word, None
        if word is None:
            return
        if word.glob and re.search(r"[*?\[\\]", word.quoted):
            raise NotUnderstood("it uses * beside quotes")
        if self._into is not None:
            if word.glob:
                raise NotUnderstood("it uses * in the name of a redirection's file")
            self._into.append(word)
            self._into = None
            return
        if not self._command.words and (word.glob or word.text in _RESERVED):
            raise NotUnderstood(f"it uses {word.text}")
        self._command.words.append(word)

    def end_command(self, operator: str) -> None:
        self._end_word()
        if self._into is not None:
            raise NotUnderstood("it uses a redirection without a file")
        command, self._command = self._command, SimpleCommand()
        if command.words:
            self.commands.append(command)
            self.awaits = operator if operator in ("&&", "||", "|") else ""
        elif operator != "\n" or command.reads or command.writes:
            raise NotUnderstood("it has a part without a program")
