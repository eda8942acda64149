"""Asking the user before a tool does something: the rules, the question, and what its answer means.

A rule names a program and its sub-command ("git commit", "npm run *"), for one folder or everywhere; `permissions` in
config.yaml has those that allow and those that deny. An entry point answers a question with yes or no; the terminal's `Answer`
can also keep a rule, or give a reason. Where no user can be asked, the rules decide alone.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hermes.agent.tools.tool import waiting_for_user
from hermes.config.settings_schema import PermissionRule
from hermes.errors import HermesError, ToolDeclined

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Context

HERE: Final = "here"  # always, in this folder
EVERYWHERE: Final = "everywhere"
_REASON_CHARS: Final = 2_000
_SUB_COMMAND: Final = re.compile(r"[a-z][a-z0-9:_-]*")
# Programs whose words are files, not sub-commands: a rule names the program alone.
_FLAT: Final = frozenset(
    "rm mv cp mkdir rmdir touch chmod chown ln tee dd kill pkill curl wget pytest tar zip unzip gzip rsync mktemp".split()
)
_DEEP: Final = frozenset("aws az docker gcloud gh hermes npm pnpm yarn uv poetry podman bundle".split())
# Programs that run what their words say: a rule is for exactly these words.
_RUNNERS: Final = frozenset(
    "sh bash dash zsh ksh fish python python2 python3 node deno bun perl ruby php lua sudo doas su env xargs find fd ssh awk gawk"
    " mawk sed eval exec source . nohup timeout nice time watch parallel npx bunx uvx pipx command builtin trap setsid".split()
)


class Question(str):
    """A question. `rules` are what a lasting yes allows (none: it can't last); `detail` is shown above it (a diff)."""

    __slots__ = ("detail", "folder", "rules")
    rules: tuple[str, ...]
    folder: str
    detail: str

    def __new__(cls, text: str, *, rules: Sequence[str] = (), folder: str = "", detail: str = "") -> Question:
        made = super().__new__(cls, text)
        made.rules, made.folder, made.detail = tuple(dict.fromkeys(rules)), folder, detail
        return made


@dataclass(frozen=True, slots=True)
class Answer:
    """The user's answer; true for yes. `lasting` is HERE, EVERYWHERE or ""; `reason` is why not."""

    allowed: bool
    lasting: str = ""
    reason: str = ""
    unasked: bool = False  # no user could be asked

    def __bool__(self) -> bool:
        return self.allowed


NO_USER: Final = Answer(False, unasked=True)


def read_answer(line: str) -> Answer:
    """Read an answer: y, n, a (always here), e (everywhere); any other text is a no with its reason."""
    word = line.strip()
    folded = word.casefold()
    if folded in ("y", "yes"):
        return Answer(True)
    if folded in ("a", "always", "h", "here"):
        return Answer(True, HERE)
    if folded in ("e", "everywhere"):
        return Answer(True, EVERYWHERE)
    return Answer(False, reason="" if folded in ("", "n", "no") else word)


def permit(context: Context, question: Question, declined: str) -> None:
    """Return if the user says yes; else ToolDeclined with `declined` and the user's reason. A lasting yes becomes a rule."""
    with waiting_for_user():
        answer = context.confirm(question)
    if isinstance(answer, Answer) and answer.unasked:
        how = f"permissions.allow in config.yaml can allow it: {', '.join(question.rules)}" if question.rules else ""
        raise ToolDeclined(f"Refused, since no one can be asked here: {question} {how}".rstrip())
    if not answer:
        reason = answer.reason if isinstance(answer, Answer) else ""
        raise ToolDeclined(f"{declined} The user said: {reason[:_REASON_CHARS]}" if reason else declined)
    if isinstance(answer, Answer) and answer.lasting:
        for rule in question.rules:
            _keep(context, rule, question.folder if answer.lasting == HERE else None)


def _keep(context: Context, rule: str, folder: str | None) -> None:
    """Keep a rule in config.yaml; where that is not possible it lasts as long as the program."""
    from hermes.config.editing import change_list

    context.config.permissions.allow.append(rule if folder is None else PermissionRule(command=rule, folder=folder))
    try:
        change_list(["permissions", "allow"], add=rule if folder is None else {"command": rule, "folder": folder})
    except (HermesError, OSError):
        pass  # the yes itself counts; the question comes up again in the next program


def free_folder(folder: Path | None) -> Path | None:
    """The folder in which files are free; None for the home folder and everything above it."""
    if folder is None:
        return None
    root = Path(os.path.realpath(folder))
    home = Path(os.path.realpath(Path.home()))
    return None if home.is_relative_to(root) else root


def rule_folder(context: Context, folder: Path) -> str:
    """The folder that "always, in this folder" means: the working folder where the command runs in it, else its own."""
    root = context.root
    return str(root if root is not None and folder.is_relative_to(root) else folder)


# ------------------------------------------------------------------------------------------ rules


def rule_for(words: Sequence[str], *, exact: bool = False) -> str:
    """The rule that a lasting yes to a command makes: its program and sub-command, or these very words."""
    depth = _depth(words)
    runs = exact or any(word in _RUNNERS for word in words[:depth]) or words[0] in _RUNNERS
    if words[0].startswith("python") and list(words[1:2]) == ["-m"] and len(words) > 2:
        return shlex.join(words[:3])
    if runs or (depth == 1 and words[0] not in _FLAT):
        return shlex.join(words)
    return shlex.join(words[:depth])


def _depth(words: Sequence[str]) -> int:
    """How many words name the program and its sub-command."""
    most = 1 if words[0] in _FLAT else 3 if words[0] in _DEEP else 2
    depth = 1
    while depth < min(most, len(words)) and _SUB_COMMAND.fullmatch(words[depth]):
        depth += 1
    return 3 if list(words[1:2]) == ["-m"] else depth


def covers(rule: str, words: Sequence[str]) -> bool:
    """Whether a rule is for this command: the program and sub-command, a pattern, or exactly these words."""
    try:
        wanted = shlex.split(rule)
    except ValueError:
        return False
    if wanted == list(words) or not wanted:
        return bool(wanted)
    patterns = not set(rule) & set("'\"\\")
    more = patterns and wanted[-1:] == ["*"]
    if more:
        del wanted[-1]
    elif len(wanted) <= _depth(words):
        more = True
    if not (len(words) == len(wanted) or (more and len(words) > len(wanted))):
        return False
    return all(fnmatchcase(word, one) if patterns else word == one for word, one in zip(words, wanted, strict=False))


def has_rule(
    rules: Sequence[str | PermissionRule], folders: Sequence[Path], line: str, words: Sequence[str] | None
) -> bool:
    """Whether one of the rules is for this command, whichever of the folders it runs in.

    Without words, the command is not understood and a rule must be the line itself.
    """
    exactly = (line, shlex.join(words or ()))
    return any(
        rule in exactly or (words and covers(rule, words) and (where is None or _stays(where, folders, words)))
        for rule, where in _rules_in(rules, folders) if rule
    )  # fmt: skip


def may_hold(rules: Sequence[str | PermissionRule], folders: Sequence[Path], text: str) -> bool:
    """Whether a command may do what one of the rules is for: it contains the words of the rule in this order."""
    for rule, _ in _rules_in(rules, folders):
        pattern = r"\b.*?\s".join(map(re.escape, rule.removesuffix("*").split()))
        if re.search(rf"(?<![\w.-]){pattern}(?![\w-])", text, re.S):
            return True
    return False


def _rules_in(rules: Sequence[str | PermissionRule], folders: Sequence[Path]) -> Iterator[tuple[str, Path | None]]:
    """The rules that apply in all of these folders, each with its own."""
    for rule in rules:
        if isinstance(rule, str) or rule.folder is None:
            yield (rule if isinstance(rule, str) else rule.command).strip(), None
            continue
        where = Path(os.path.realpath(Path(rule.folder).expanduser()))
        if all(Path(os.path.realpath(folder)).is_relative_to(where) for folder in folders):
            yield rule.command.strip(), where


def _stays(where: Path, folders: Sequence[Path], words: Sequence[str]) -> bool:
    """Whether no word names a file outside of the folder that a rule is for."""
    named = [re.sub(r"^(?:-\w(?=[/.])|[\w-]+=)", "", word) for word in words[1:]]
    return all(
        Path(os.path.realpath(folder / name)).is_relative_to(where) for folder in folders for name in named
        if "/" in name or name == ".." or os.path.islink(folder / name)
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ showing


def visible(text: str, *, lines: bool = False) -> str:
    """The text with control characters and those that reorder text shown as their codes: nothing can hide on a screen.

    With `lines`, line ends stay.
    """
    hidden = ("Cc", "Cs", "Cf", "Zl", "Zp")
    return "".join(
        f"\\u{ord(sign):04x}"
        if unicodedata.category(sign) in hidden and sign != "\u200d" and not (lines and sign == "\n")
        else sign
        for sign in text.replace("\t", " ")
    )
