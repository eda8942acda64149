"""Judges every program in a command line, through its wrappers.

`sh -c`, `eval`, `env`, `xargs`, `find -exec` and their kind start another program; that one is judged as if it had
been written there. Where the program or its script can't be known beforehand, that is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hermes.agent.tools.danger.git_commands import git
from hermes.agent.tools.danger.programs import ALWAYS, CLIENTS, RULES, sql
from hermes.agent.tools.danger.shell import parse
from hermes.agent.tools.danger.shell_words import ASSIGNMENT, MAX_DEPTH, Redirect, ShellWord, Simple, Unparsable
from hermes.agent.tools.danger.working_folders import WorkingFolders
from hermes.agent.tools.danger.wrappers import (
    INTERPRETERS,
    PARALLEL_VALUES,
    RUNNERS,
    SHELLS,
    WRAPPERS,
    XARGS_VALUES,
    behind_options,
    split,
)
from hermes.texts import shortened

INPUT = '"$INPUT"'  # stands for the words that a program like xargs fills in


class Judge:
    """One verdict; follows a command line from left to right, since `cd` changes what comes after."""

    def __init__(self, place: WorkingFolders) -> None:
        self.place = place
        self.depth = 0
        self.special: dict[str, Callable[[Sequence[ShellWord], Simple | None], str | None]] = {
            "eval": self.eval,
            "trap": self.trap,
            "alias": self.alias,
            "source": self.source,
            ".": self.source,
            "cd": self.cd,
            "pushd": self.cd,
            "env": self.env,
            "command": self.command,
            "flock": self.flock,
            "xargs": self.xargs,
            "parallel": self.parallel,
            "find": self.find,
            "fd": self.fd,
            "fdfind": self.fd,
            "at": lambda words, command: self.fed_shell("at", command),
            "batch": lambda words, command: self.fed_shell("batch", command),
            "git": lambda words, command: git(words, lambda inner: self.words(inner, None)),
        }

    def script(self, text: str) -> str | None:
        """The first reason in a whole script."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unparsable("it nests too deep")
        for command in parse(text):
            if reason := self.simple(command):
                return reason
        self.depth -= 1
        return None

    def simple(self, command: Simple) -> str | None:
        for redirect in command.redirects:
            if reason := self.redirect(redirect):
                return reason
        return self.words(command.words, command) if command.words else None

    def redirect(self, redirect: Redirect) -> str | None:
        sign, target = redirect.operator, redirect.target
        if sign not in (">", ">|", "&>", ">&"):
            return None
        if sign == ">&" and (target.text == "-" or target.text.rstrip("-").isdigit()):
            return None
        lost = self.place.overwritten(target)
        return f"{sign} {lost}" if lost else None

    def words(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        """A program and its words; `command` is what they stand in, with its redirections and pipes."""
        if not words:
            return None
        head, arguments = words[0], words[1:]
        if head.text in ("[", "test"):
            return None
        if not head.known or head.glob:
            return f"which program {shortened(head.text, 40)} is can't be seen beforehand"
        name = head.text.rsplit("/", 1)[-1].lower()
        if [word.text for word in arguments] in (["--help"], ["--version"]):
            return None
        if name in ALWAYS:
            return ALWAYS[name]
        if name.startswith("mkfs."):
            return f"{name} erases a disk"
        if name in self.special:
            return self.special[name](arguments, command)
        return self.others(name, arguments, command)

    def others(self, name: str, arguments: Sequence[ShellWord], command: Simple | None) -> str | None:
        if name in SHELLS:
            return self.shell(name, arguments, command)
        if name in WRAPPERS:
            return self.wrapper(name, arguments, command)
        if name in CLIENTS:
            return sql(name, arguments, command, self.place)
        if name in RUNNERS:
            return self.runner(name, arguments, command)
        if name in RULES and (reason := RULES[name](arguments, self.place)):
            return reason
        if name.rstrip("0123456789.") in INTERPRETERS and command is not None and command.upstream is not None:
            return self.fed(name, arguments)
        return None

    # -- scripts in words ------------------------------------------------------------------------------------------

    def text(self, what: str, *words: ShellWord) -> str | None:
        """A script that is given as words."""
        if any(word.open or word.process for word in words):
            return f"what {what} would run can't be seen beforehand"
        return self.script(" ".join(word.text for word in words))

    def shell(self, name: str, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        given_script = from_input = False
        rest = list(words)
        while rest and (rest[0].leading or rest[0].text[:1] in ("-", "+")):
            word = rest.pop(0)
            text = word.text
            if word.leading:
                return f"what {name} would run can't be seen beforehand"
            if text in ("-", "--"):
                break
            if text.startswith("--"):
                given_script = given_script or text == "--command"
                if text in ("--rcfile", "--init-file"):
                    del rest[:1]
                continue
            given_script = given_script or (text[0] == "-" and "c" in text)
            from_input = from_input or (text[0] == "-" and "s" in text)
            del rest[: text.count("o") + text.count("O")]
        if given_script:
            return self.text(name, rest[0]) if rest else f"what {name} would run can't be seen beforehand"
        if from_input or not rest or rest[0].text in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
            return self.fed_shell(name, command)
        if rest[0].process:
            return f"{name} would run whatever comes in"
        return None

    def fed_shell(self, name: str, command: Simple | None) -> str | None:
        """A shell that reads its commands from somewhere: only a literal text can be judged."""
        inputs = [r for r in (command.redirects if command else ()) if r.operator.startswith("<")]
        if not inputs or inputs[-1].body is None:
            return f"{name} would run whatever comes in"
        if not inputs[-1].body_known:
            return f"what {name} would run can't be seen beforehand"
        return self.script(inputs[-1].body)

    def fed(self, name: str, words: Sequence[ShellWord]) -> str | None:
        """`… | python3 -`: the pipe is the program."""
        if all(word.text == "-" or (word.text.startswith("-") and word.text[1:2] not in "cme") for word in words):
            return f"{name} would run whatever comes in"
        return None

    def eval(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        rest = list(words)
        if rest and rest[0].text == "--":
            del rest[0]
        return self.text("eval", *rest)

    def trap(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        operands = split(words).operands
        return self.text("trap", operands[0]) if len(operands) > 1 and operands[0].text != "-" else None

    def alias(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        for word in words:
            name, equals, script = word.text.partition("=")
            if equals and (reason := self.text(f"the alias {name}", ShellWord(script, word.known, word.open))):
                return reason
        return None

    def source(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        if words and (words[0].process or words[0].text in ("/dev/stdin", "/dev/fd/0")):
            return "the shell would run whatever comes in"
        return None

    def cd(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        operands = split(words).operands
        self.place.move(operands[0] if operands else None)
        return None

    # -- programs that start programs ------------------------------------------------------------------------------

    def wrapper(self, name: str, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        values, positional, joined = WRAPPERS[name]
        rest = behind_options(words, values)
        if rest is None or any(word.leading and not word.quoted for word in rest[:positional]):
            return f"what {name} would run can't be seen beforehand"
        rest = rest[positional:]
        if rest and joined:
            return self.text(name, *rest)
        if name == "ssh" and command is not None and (command.upstream is not None or _has_input(command)):
            return self.fed_shell(name, command)
        return self.words(rest, command)

    def env(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        rest = list(words)
        while rest:
            word = rest[0]
            text = word.text
            if word.leading:
                return "what env would run can't be seen beforehand"
            if ASSIGNMENT.match(text):
                del rest[0]
            elif text.startswith(("--split-string=", "-S")) and text != "-S":
                text = text.removeprefix("--split-string=").removeprefix("-S")
                return self.text("env", ShellWord(text, word.known, word.open), *rest[1:])
            elif text in ("-S", "--split-string", "-vS"):
                return self.text("env", *rest[1:])
            elif text in ("-u", "--unset", "-C", "--chdir"):
                if text in ("-C", "--chdir") and len(rest) > 1:
                    self.place.move(rest[1])
                del rest[:2]
            elif text.startswith("-"):
                del rest[0]
                if text == "--":
                    break
            else:
                break
        while rest and not rest[0].leading and ASSIGNMENT.match(rest[0].text):
            del rest[0]
        return self.words(rest, command)

    def command(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        options = split(words, permuting=False)
        if options.has("-v", "-V"):
            return None
        return self.words(options.operands, command)

    def flock(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        rest = behind_options(words, frozenset({"-w", "-E", "--timeout", "--wait", "--conflict-exit-code"}))
        if rest is None:
            return "what flock would run can't be seen beforehand"
        if len(rest) > 2 and rest[1].text in ("-c", "--command"):
            return self.text("flock", rest[2])
        return self.words(rest[1:], command)

    def runner(self, name: str, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        """`docker exec box rm …`: options are too many to know, so any place could be where the command begins."""
        verbs = RUNNERS[name]
        start = next((at for at, word in enumerate(words) if word.text in verbs), -1) + 1 if verbs else 0
        if verbs and not start:
            return None
        for at in range(start, len(words)):
            head = words[at].text.rsplit("/", 1)[-1].lower()
            known = head in ALWAYS or head in RULES or head in SHELLS or head in WRAPPERS or head in self.special
            if known and head not in ("cd", ".") and (reason := self.words(words[at:], None)):
                return reason
            if not verbs and " " in words[at].text and (reason := self.text(name, words[at])):
                return reason
        return None

    def xargs(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        options = split(words, XARGS_VALUES, permuting=False)
        rest = options.operands
        if rest and rest[0].leading:
            return "what xargs would run can't be seen beforehand"
        mark = options.value("-I", "-J", "--replace")
        if mark is not None or options.exactly("-i", "--replace"):
            rest = [_filled(word, mark.text if mark else "{}") for word in rest]
        elif rest:
            rest = [*rest, ShellWord(INPUT, known=False)]
        return self.words(rest, None)

    def parallel(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        rest = behind_options(words, PARALLEL_VALUES)
        if rest is None:
            return "what parallel would run can't be seen beforehand"
        ends = [at for at, word in enumerate(rest) if word.text in (":::", "::::", ":::+")]
        rest = rest[: ends[0]] if ends else rest
        if not rest:
            return "parallel would run whatever comes in"
        return self.text("parallel", *(_filled(word, "{}") for word in rest), ShellWord(INPUT, known=False))

    def find(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        at = 0
        while at < len(words):
            text = words[at].text
            at += 1
            if text == "-delete":
                return "find -delete removes files"
            if text in ("-fprint", "-fprint0", "-fls", "-fprintf") and at < len(words):
                if lost := self.place.overwritten(words[at]):
                    return f"find {text} {lost}"
            elif text in ("-exec", "-execdir", "-ok", "-okdir"):
                start = at
                while at < len(words) and not _ends(words, at, start):
                    at += 1
                if reason := self.words([_filled(word, "{}") for word in words[start:at]], None):
                    return reason
        return None

    def fd(self, words: Sequence[ShellWord], command: Simple | None) -> str | None:
        for at, word in enumerate(words):
            if word.text in ("-x", "-X", "--exec", "--exec-batch"):
                inner = [_filled(part, "{}") for part in words[at + 1 :]]
                if reason := self.words([*inner, ShellWord(INPUT, known=False)], None):
                    return reason
        return None


def _has_input(command: Simple) -> bool:
    return any(redirect.operator.startswith("<") for redirect in command.redirects)


def _ends(words: Sequence[ShellWord], at: int, start: int) -> bool:
    return words[at].text == ";" or (words[at].text == "+" and at > start and words[at - 1].text == "{}")


def _filled(word: ShellWord, mark: str) -> ShellWord:
    """The word with the mark replaced by an unknown value."""
    if not mark or mark not in word.text:
        return word
    return ShellWord(word.text.replace(mark, INPUT), known=False, open=word.open, quoted=word.quoted)
