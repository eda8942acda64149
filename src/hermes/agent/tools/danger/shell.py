"""A shell command line, parsed like a shell does: which programs would run, with which words and redirections.

The result is flat: every simple command anywhere in the text (in lists, pipelines, groups, loops, functions,
substitutions and here-documents) in one list. What a shell would not accept, or what nests too deep to be sure of,
raises Unparsable.
"""

from __future__ import annotations

import re
from typing import Final

from hermes.agent.tools.danger.shell_words import (
    ASSIGNMENT,
    METACHARACTERS,
    Redirect,
    ShellWord,
    Simple,
    Unparsable,
    WordReader,
)

MAX_LENGTH: Final = 100_000

_OPERATORS: Final = (";;&", "&&", "||", ";;", ";&", "|&", ";", "&", "|", "(", ")", "\n")
_JOINING: Final = ("&&", "||", "|", "|&")  # something has to follow
_REDIRECTIONS: Final = ("&>>", "<<<", "<<-", "&>", ">>", ">|", ">&", "<<", "<&", "<>", ">", "<")
_DESCRIPTOR: Final = re.compile(r"\d+(?=[<>])|\{[A-Za-z_]\w*\}(?=[<>])", re.A)
_CLOSERS: Final = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_OPENERS: Final = frozenset({"if", "while", "until", "for", "select", "case", "{", "[[", "!", "function", "coproc"})
_TIMED_GROUP: Final = re.compile(r"time[ \t]+(-p[ \t]+)?(?=[({!]|(if|while|until|for|case|select)\b)")
_DECLARING: Final = ("declare", "local", "export", "readonly", "typeset")


def parse(text: str) -> list[Simple]:
    """Every simple command in the text. Unparsable when it can't be read."""
    if len(text) > MAX_LENGTH:
        raise Unparsable("it is too long to be read")
    if "\0" in text:
        raise Unparsable("it contains a null character")
    reader = CommandReader(text)
    reader.read_list(frozenset())
    reader.read_pending()
    return reader.commands


class CommandReader(WordReader):
    """A recursive-descent reader of commands; they are collected in order."""

    def __init__(self, text: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self.pending: list[tuple[Redirect, bool]] = []  # here-documents whose text is still to come

    # -- what stands here ------------------------------------------------------------------------------------------

    def skip_blanks(self) -> None:
        while True:
            if self.peek() in (" ", "\t"):
                self.at += 1
            elif self.peek(2) == "\\\n":
                self.at += 2
            elif self.peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_lines(self) -> None:
        self.skip_blanks()
        while self.peek() == "\n":
            self.take("\n")
            self.skip_blanks()

    def operator(self) -> str:
        """The operator at this position, or "". Redirections are not operators."""
        if self.peek(2) == "&>":
            return ""
        return next((sign for sign in _OPERATORS if self.text.startswith(sign, self.at)), "")

    def take(self, sign: str) -> None:
        self.at += len(sign)
        if sign == "\n":
            self.read_pending()

    def keyword(self) -> str:
        """The bare word at this position (not consumed); "" if it is quoted or not a word."""
        end = self.at
        while end < len(self.text) and self.text[end] not in METACHARACTERS:
            if self.text[end] in "'\"\\$`":
                return ""
            end += 1
        return self.text[self.at : end]

    def expect(self, word: str) -> None:
        self.skip_lines()
        if self.keyword() != word:
            raise Unparsable(f"{word!r} is missing")
        self.at += len(word)

    # -- lists and compound commands -------------------------------------------------------------------------------

    def read_list(self, closers: frozenset[str]) -> str:
        """Commands up to one of the closers (which is consumed) or, without closers, to the end; returns the closer."""
        self.enter()
        upstream: list[Simple] | None = None
        joined = False
        while True:
            self.skip_lines()
            closer = self.operator() or self.keyword()
            if not joined and closer in closers:
                self.take(closer)
                break
            if self.at >= len(self.text):
                if joined or closers:
                    raise Unparsable("it breaks off")
                break
            if closer in _CLOSERS or (closer in _OPERATORS and closer != "("):
                raise Unparsable(f"there is a stray {closer!r}")
            start = len(self.commands)
            self.read_command(upstream)
            self.skip_blanks()
            sign = self.operator()
            joined = sign in _JOINING
            upstream = (upstream or []) + self.commands[start:] if sign in ("|", "|&") else None
            if joined or sign in (";", "&", "\n"):
                self.take(sign)
            elif sign not in closers and self.at < len(self.text):
                raise self.stray()
        self.depth -= 1
        return closer

    def read_command(self, upstream: list[Simple] | None) -> None:
        timed = _TIMED_GROUP.match(self.text, self.at)
        if timed:
            self.at = timed.end()
        word = self.keyword()
        if self.peek(2) == "((" and self.read_arithmetic():
            self.read_redirects()
        elif self.peek() == "(":
            self.at += 1
            self.read_list(frozenset({")"}))
            self.read_redirects()
        elif word in _OPENERS:
            self.at += len(word)
            self.skip_blanks()
            self.enter()
            if word in ("!", "coproc"):
                self.read_command(upstream)
            elif word == "function":
                self.read_word()
                self.read_function()
            else:
                self.read_compound(word)
                self.read_redirects()
            self.depth -= 1
        else:
            self.read_simple(upstream)

    def read_compound(self, word: str) -> None:
        if word == "{":
            self.read_list(frozenset({"}"}))
        elif word == "if":
            self.read_list(frozenset({"then"}))
            while (closer := self.read_list(frozenset({"elif", "else", "fi"}))) != "fi":
                if closer == "elif":
                    self.read_list(frozenset({"then"}))
        elif word in ("while", "until"):
            self.read_list(frozenset({"do"}))
            self.read_list(frozenset({"done"}))
        elif word == "case":
            self.read_case()
        elif word == "[[":
            self.read_test()
        else:
            self.read_for()

    def read_for(self) -> None:
        if self.peek(2) == "((":
            if not self.read_arithmetic():
                raise Unparsable("the '((' of a loop is never closed")
        else:
            self.read_word()
            self.skip_lines()
            if self.keyword() == "in":
                self.at += 2
                self.skip_blanks()
                while self.at < len(self.text) and not self.operator():
                    self.read_word()
                    self.skip_blanks()
        self.skip_blanks()
        if self.peek() == ";":
            self.at += 1
        self.expect("do")
        self.read_list(frozenset({"done"}))

    def read_case(self) -> None:
        self.read_word()
        self.expect("in")
        while True:
            self.skip_lines()
            if self.keyword() == "esac":
                self.at += 4
                return
            if self.peek() == "(":
                self.at += 1
            sign = "|"
            while sign == "|":
                self.skip_blanks()
                self.read_word()
                self.skip_blanks()
                sign = self.operator()
                self.take(sign)
            if sign != ")":
                raise Unparsable("a pattern of 'case' has no ')'")
            if self.read_list(frozenset({";;", ";&", ";;&", "esac"})) == "esac":
                return

    def read_test(self) -> None:
        """`[[ … ]]`: no redirections in there, only words and signs."""
        while True:
            self.skip_lines()
            if self.at >= len(self.text):
                raise Unparsable("'[[' is never closed")
            if self.keyword() == "]]":
                self.at += 2
                return
            if self.peek() in "|&;()<>":
                self.at += 1
            else:
                self.read_word()

    def read_function(self) -> None:
        """The rest of a function behind its name: `()`, perhaps, and a body that is judged as if it ran."""
        self.skip_blanks()
        if self.peek() == "(":
            self.at += 1
            self.skip_blanks()
            if self.peek() != ")":
                raise self.stray()
            self.at += 1
        self.skip_lines()
        self.enter()
        self.read_command(None)
        self.depth -= 1

    # -- simple commands and redirections --------------------------------------------------------------------------

    def read_simple(self, upstream: list[Simple] | None) -> None:
        command = Simple(upstream=upstream)
        index = len(self.commands)
        self.commands.append(command)
        start = self.at
        while True:
            self.skip_blanks()
            if self.read_redirect(command):
                continue
            sign = self.operator()
            if sign == "(" and len(command.words) == 1 and not command.assignments and not command.redirects:
                del self.commands[index]
                self.read_function()
                return
            if sign or self.at >= len(self.text):
                break
            assigning = not command.words and ASSIGNMENT.match(self.text, self.at)
            declaring = bool(command.words) and command.words[0].text in _DECLARING
            word = self.read_word(array=bool(assigning) or declaring)
            (command.assignments if assigning else command.words).append(word)
        if self.at == start:
            raise self.stray()

    def read_redirects(self) -> None:
        """The redirections behind a group: a separate command, without words."""
        command = Simple()
        self.skip_blanks()
        while self.read_redirect(command):
            self.skip_blanks()
        if command.redirects:
            self.commands.append(command)

    def read_redirect(self, command: Simple) -> bool:
        descriptor = _DESCRIPTOR.match(self.text, self.at)
        at = descriptor.end() if descriptor else self.at
        sign = next((sign for sign in _REDIRECTIONS if self.text.startswith(sign, at)), "")
        if not sign or self.text[at : at + 2] in ("<(", ">("):
            return False
        self.at = at + len(sign)
        self.skip_blanks()
        if self.at >= len(self.text) or self.operator():
            raise Unparsable(f"nothing follows {sign!r}")
        target = self.read_word()
        redirect = Redirect(sign, target)
        if sign == "<<<":
            redirect.body, redirect.body_known = target.text, target.known
        elif sign in ("<<", "<<-"):
            self.pending.append((redirect, target.quoted))
        command.redirects.append(redirect)
        return True

    def read_pending(self) -> None:
        """The texts of the here-documents begun in the line that ends here."""
        pending, self.pending = self.pending, []
        for redirect, literal in pending:
            lines = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, len(self.text))
                line = line.lstrip("\t") if redirect.operator == "<<-" else line
                if line == redirect.target.text:
                    break
                lines.append(line)
            redirect.body = "\n".join(lines)
            if not literal:
                inner = CommandReader(redirect.body, self.depth)
                word = ShellWord("")
                inner.read_quoted(word, "")
                redirect.body_known = word.known
                self.commands += inner.commands
