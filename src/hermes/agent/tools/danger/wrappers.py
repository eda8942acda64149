"""The names and options of programs that start other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hermes.agent.tools.danger.shell_words import ShellWord

SHELLS: Final = frozenset("sh bash dash zsh ksh mksh ash rbash fish csh tcsh".split())
INTERPRETERS: Final = frozenset("python pypy perl ruby node nodejs php lua deno bun rscript".split())

# name → (options that take a value, words before the command, whether the rest is one script)
WRAPPERS: Final[dict[str, tuple[frozenset[str], int, bool]]] = {
    "nice": (frozenset({"-n", "--adjustment"}), 0, False),
    "nohup": (frozenset(), 0, False),
    "time": (frozenset({"-f", "-o", "--format", "--output"}), 0, False),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1, False),
    "gtimeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1, False),
    "exec": (frozenset({"-a"}), 0, False),
    "builtin": (frozenset(), 0, False),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0, False),
    "ionice": (frozenset({"-c", "-n", "-p", "-P", "-u", "--class", "--classdata"}), 0, False),
    "chrt": (frozenset({"-T", "-P", "-D"}), 1, False),
    "taskset": (frozenset(), 1, False),
    "setsid": (frozenset(), 0, False),
    "unbuffer": (frozenset(), 0, False),
    "caffeinate": (frozenset({"-t", "-w"}), 0, False),
    "strace": (frozenset("-e -o -p -s -E -a -u -I -O -S -P -b -X".split()), 0, False),
    "ltrace": (frozenset("-e -o -p -s -a -u -n -x -l -A -D -F".split()), 0, False),
    "chroot": (frozenset({"--userspec", "--groups"}), 1, False),
    "busybox": (frozenset(), 0, False),
    "toybox": (frozenset(), 0, False),
    "watch": (frozenset({"-n", "--interval", "-q", "--equexit"}), 0, True),
    "ssh": (frozenset("-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w".split()), 1, True),
}

# name → the verbs that a command follows; no verbs: it may be anywhere
RUNNERS: Final[dict[str, frozenset[str]]] = {
    "docker": frozenset({"exec", "run"}),
    "podman": frozenset({"exec", "run"}),
    "nerdctl": frozenset({"exec", "run"}),
    "docker-compose": frozenset({"exec", "run"}),
    "kubectl": frozenset({"exec", "run"}),
    "uv": frozenset({"run"}),
    "poetry": frozenset({"run"}),
    "pipenv": frozenset({"run"}),
    **dict.fromkeys(
        "systemd-run unshare nsenter firejail xvfb-run dbus-run-session entr rlwrap tmux screen script nix-shell direnv"
        " valgrind".split(),
        frozenset(),
    ),
}

XARGS_VALUES: Final = frozenset(
    "-a -d -E -I -J -L -n -P -R -s -S --arg-file --delimiter --max-lines --max-args --max-procs --max-chars"
    " --process-slot-var".split()
)
PARALLEL_VALUES: Final = frozenset(
    "-a -d -E -I -j -L -n -N -P -S --arg-file --colsep --delay --jobs --joblog --max-args --results --retries"
    " --sshlogin --timeout --workdir".split()
)


def behind_options(words: Sequence[ShellWord], values: frozenset[str]) -> list[ShellWord] | None:
    """The words behind a wrapper's options; None when an expansion is among the options."""
    rest = list(words)
    while rest:
        word = rest[0]
        text = word.text
        if word.leading and not word.quoted:
            return None
        if word.leading or not text.startswith("-") or text == "-":
            break
        del rest[0]
        if text == "--":
            break
        if text.startswith("--"):
            separate = text in values
        else:  # the last letter of a cluster takes the next word, unless one before it took the rest
            separate = "-" + text[-1] in values and not any("-" + letter in values for letter in text[1:-1])
        if separate:
            del rest[:1]
    return rest


# ----------------------------------------------------------------------------------------------------
# The options of a program's words, read the way GNU programs read them.


@dataclass(slots=True)
class Options:
    """`-x`, `--long` and their values apart from the operands."""

    given: list[tuple[str, ShellWord | None]] = field(default_factory=list)
    operands: list[ShellWord] = field(default_factory=list)
    unclear: bool = False  # an expansion stands where an option could stand

    def has(self, *names: str) -> bool:
        """Whether one of these is given; a long name also by its beginning, as programs accept it."""
        return any(_means(given, name) for given, _ in self.given for name in names)

    def exactly(self, *names: str) -> bool:
        """Whether one of these is given in full."""
        return any(given in names for given, _ in self.given)

    def value(self, *names: str) -> ShellWord | None:
        """The value of the last of these options."""
        return next(
            (value for given, value in reversed(self.given) if value and any(_means(given, n) for n in names)), None
        )


def _means(given: str, name: str) -> bool:
    if name.startswith("--"):
        return len(given) > 2 and name.startswith(given)
    return given == name


def split(words: Sequence[ShellWord], values: frozenset[str] = frozenset(), *, permuting: bool = True) -> Options:
    """Options and operands; `values` are the options that take one. Without `permuting` options end at an operand."""
    found = Options()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        text = word.text
        if word.leading and not word.quoted:
            found.unclear = True
        if text == "--" and word.known:
            found.operands += rest
            break
        if word.leading or not text.startswith("-") or text == "-":
            found.operands.append(word)
            if not permuting:
                found.operands += rest
                break
        elif text.startswith("--"):
            name, equals, value = text.partition("=")
            if equals:
                found.given.append((name, _part(word, value)))
            else:
                found.given.append((name, rest.pop(0) if name in values and rest else None))
        else:
            _cluster(found, word, values, rest)
    return found


def _cluster(found: Options, word: ShellWord, values: frozenset[str], rest: list[ShellWord]) -> None:
    """`-xvf file`: letters up to the one that takes a value."""
    for at in range(1, len(word.text)):
        name = "-" + word.text[at]
        if name in values:
            attached = word.text[at + 1 :]
            found.given.append((name, _part(word, attached) if attached else rest.pop(0) if rest else None))
            return
        found.given.append((name, None))


def _part(word: ShellWord, text: str) -> ShellWord:
    return ShellWord(text, known=word.known, open=word.open, glob=word.glob, quoted=word.quoted)
