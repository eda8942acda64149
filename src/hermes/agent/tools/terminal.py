"""The terminal tool: a command runs in the conversation's folder, and its output is returned.

`cd` lasts, like in a terminal. Only commands that are known to be harmless run without a question (harmless.py), and those
that a rule allows (permission.py). A command that takes too long, or is interrupted, is ended with everything it started.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from hermes.agent.tools.harmless import Doubt, NotUnderstood, Place, read_command_line, why_ask
from hermes.agent.tools.permission import (
    Question,
    free_folder,
    has_rule,
    may_hold,
    permit,
    rule_folder,
    rule_for,
    visible,
)
from hermes.agent.tools.processes import SHOWN_CHARS, Process, background, ending
from hermes.agent.tools.tool import (
    STOPPED,
    TIMED_OUT,
    Context,
    Reported,
    Tool,
    argument,
    flag_argument,
    number_argument,
    parameters,
    report,
    text_argument,
)
from hermes.config.settings_schema import PermissionRule
from hermes.errors import ToolDeclined, ToolError

TIMEOUT_SECONDS: Final = 120.0
MAX_TIMEOUT_SECONDS: Final = 3600.0
REPORT_SECONDS: Final = 0.2  # seconds between two reports of a running command's output

FORBIDDEN = "Not run: permissions.deny in config.yaml forbids it. Do not try it another way."
DECLINED = "The user declined: the command was not run. Do not try it another way; ask what they want instead."


def _run(context: Context, arguments: dict[str, Any]) -> str:
    command = text_argument(arguments, "command")
    if "\0" in command:
        raise ToolError("a command can't contain null characters")
    timeout = number_argument(arguments, "timeout", TIMEOUT_SECONDS, 0.1, MAX_TIMEOUT_SECONDS)
    in_background = flag_argument(arguments, "background")
    elsewhere = arguments.get("workdir")
    folder = _folder(context, None if elsewhere is None else text_argument(arguments, "workdir"))
    permission = question(context, command, folder, elsewhere=elsewhere is not None)
    if permission is not None:
        permit(context, permission, DECLINED)
    if in_background:
        number = background(context).start(command, folder)
        return (
            f"Started in the background as process {number}; the process tool reads its output, waits for it, ends it."
        )
    return _foreground(context, command, folder, timeout, follow=elsewhere is None)


class _Part(NamedTuple):
    """One command of a line (no words: the line is not understood), why the user is asked about it, and where it may run."""

    words: list[str] | None
    doubt: Doubt | None
    folders: list[Path]

    def has(self, rules: list[str | PermissionRule], line: str) -> bool:
        return has_rule(rules, self.folders, line, self.words)


def question(context: Context, command: str, folder: Path, *, elsewhere: bool = False) -> Question | None:
    """The question before a command runs; None when it needs none. ToolDeclined when a rule forbids the command."""
    line, rules, approval = command.strip(), context.config.permissions, context.config.terminal.approval
    parts = _parts(context, command, folder)
    for part in parts:
        text = line if part.words is None else shlex.join(part.words)
        if part.has(rules.deny, line) or (part.doubt and may_hold(rules.deny, part.folders, text)):
            raise ToolDeclined(FORBIDDEN)
    if approval == "all":
        parts = [part._replace(doubt=part.doubt or Doubt("every command is asked about")) for part in parts]
    doubtful = [
        (part.words, part.doubt) for part in parts
        if part.doubt and not (part._replace(words=None) if part.doubt.line else part).has(rules.allow, line)
    ]  # fmt: skip
    if not doubtful or approval == "never":
        return None
    exactly = any(words is None or doubt.line for words, doubt in doubtful)
    kept = [line] if exactly else [rule_for(words, exact=doubt.exact) for words, doubt in doubtful if words]
    if "${" in line:
        kept = []  # config.yaml would fill in the variable
    where = f" in {visible(str(folder))}" if elsewhere else ""
    why = "; ".join(dict.fromkeys(doubt.reason for _, doubt in doubtful))
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))  # in a chat nothing of it is read as Markdown
    if "\n" in line:
        fence = max(fence, "```")
        text = f"Run this{where}? ({visible(why)})\n{fence}\n{visible(line, lines=True)}\n{fence}"
    else:
        pad = " " if "`" in line else ""
        text = f"Run {fence}{pad}{visible(line)}{pad}{fence}{where}? ({visible(why)})"
    return Question(text, rules=kept, folder=rule_folder(context, folder))


def _parts(context: Context, command: str, folder: Path) -> list[_Part]:
    name = os.environ.get("PWD", "")  # `cd ..` leads up from the name by which the folder was entered
    also = [Path(name)] if os.path.isabs(name) and os.path.realpath(name) == str(folder) else []
    place = Place([folder, *also], free_folder(context.root), Path(os.path.realpath(context.home)))
    try:
        commands = read_command_line(command)
    except NotUnderstood as why:
        return [_Part(None, Doubt(f"{why}; what that does can't be known beforehand", line=True), [folder])]
    return [_Part(one.texts, why_ask(one, place), list(place.folders)) for one in commands]


def _folder(context: Context, workdir: str | None) -> Path:
    folder = context.cwd if workdir is None else context.cwd / Path(workdir).expanduser()
    if os.path.isdir(folder):
        return folder
    hint = "give another workdir" if workdir is not None else "give a workdir that exists"
    raise ToolError(f"the folder {folder} does not exist; {hint}")


def _foreground(context: Context, command: str, folder: Path, timeout: float, *, follow: bool) -> str:
    if context.cancelled():
        raise ToolError("interrupted before it started")
    process = Process(command, folder, follow=follow)
    notes = []
    outcome = ""  # how it ended, when it did not succeed
    deadline = time.monotonic() + timeout
    seen = 0  # bytes of its output when it was last reported
    reported = time.monotonic()
    try:
        while not process.ended.wait(0.05):
            if process.output.size != seen and time.monotonic() - reported >= REPORT_SECONDS:
                seen, reported = process.output.size, time.monotonic()
                report(process.output.end())
            if context.cancelled():
                notes.append("interrupted by the user; the command and what it had started were ended")
                outcome = STOPPED
                break
            if time.monotonic() >= deadline:
                notes.append(
                    f"not finished after {timeout:g} s; the command and what it had started were ended"
                    " (a longer timeout, or background, lets it run)"
                )
                outcome = TIMED_OUT
                break
    finally:  # also on an error here: nothing may be left running
        left = process.kill()
        there = process.folder()
    if not notes:
        status = process.status if process.status is not None else -9
        notes.append(ending(status))
        outcome = "" if status == 0 else f"exit {status}" if status > 0 else ending(status)
        if left:
            notes.append("what it left running was ended; use background for that")
    if there is not None and there != folder and there.is_dir():
        context.cwd = there
        notes.append(f"now in {there}")
    printed = process.output.since(limit=SHOWN_CHARS)[0].rstrip("\n")
    text = f"{printed or '(no output)'}\n[{'; '.join(notes)}]"
    return Reported(text, outcome=outcome, shown=printed)


terminal = Tool(
    name="terminal",
    description=(
        "Run a shell command and get what it prints (standard output and errors together) and its exit status. Runs in"
        " the conversation's folder; cd lasts. There is no keyboard: programs that ask questions get no answer. For"
        " servers and long work use background, then the process tool. Commands that only read run at once; the user"
        " is asked about others, and about those that are not plain words, pipes, && and ;."
    ),
    parameters=parameters(
        "command",
        command="One or more lines for bash.",
        timeout=argument("number", "Seconds after which it is ended; 120 if not said."),
        background=argument("boolean", "Start it and go on; its output is read with process."),
        workdir="The folder for this command only.",
    ),
    run=_run,
)
