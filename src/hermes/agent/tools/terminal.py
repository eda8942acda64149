"""The terminal tool: a command runs in the conversation's folder, and its output is returned.

`cd` lasts, like in a terminal. Commands that could destroy something need confirmation (danger/). A command that takes too
long, or is interrupted, is ended with everything it started.
"""

from __future__ import annotations

import time
import unicodedata
from pathlib import Path
from typing import Any, Final

from hermes.agent.tools.danger import is_destructive
from hermes.agent.tools.output import SHOWN_CHARS
from hermes.agent.tools.permission import Question, permit
from hermes.agent.tools.processes import Process, background, ending
from hermes.agent.tools.running import report
from hermes.agent.tools.tool import STOPPED, TIMED_OUT, Context, Reported, Tool
from hermes.agent.tools.tool_arguments import flag_argument, number_argument, text_argument
from hermes.errors import ToolError

TIMEOUT_SECONDS: Final = 120.0
MAX_TIMEOUT_SECONDS: Final = 3600.0
ASKED_CHARS: Final = 1000
REPORT_SECONDS: Final = 0.2  # between two reports of what a running command prints

DECLINED = "The user declined: the command was not run. Do not try it another way; ask what they want instead."


def _run(context: Context, arguments: dict[str, Any]) -> str:
    command = text_argument(arguments, "command")
    if "\0" in command:
        raise ToolError("a command can't contain null characters")
    timeout = number_argument(arguments, "timeout", TIMEOUT_SECONDS, 0.1, MAX_TIMEOUT_SECONDS)
    in_background = flag_argument(arguments, "background")
    elsewhere = arguments.get("workdir")
    folder = _folder(context, None if elsewhere is None else text_argument(arguments, "workdir"))
    reason = why_to_ask(context.config.terminal.confirm, command, folder)
    if reason is not None:
        permit(context, question(command, reason, folder, elsewhere=elsewhere is not None), DECLINED)
    if in_background:
        number = background(context).start(command, folder)
        return (
            f"Started in the background as process {number}; the process tool reads its output, waits for it, ends it."
        )
    return _foreground(context, command, folder, timeout, follow=elsewhere is None)


def why_to_ask(confirm: str, command: str, folder: Path) -> str | None:
    """The reason to ask the user first, by the configuration; None when the command may run."""
    if confirm == "never":
        return None
    reason = is_destructive(command, folder)
    return reason or ("every command needs confirmation" if confirm == "always" else None)


def question(command: str, reason: str, folder: Path | None = None, *, elsewhere: bool = True) -> Question:
    """One line: what will run and why the user is asked. Nothing in a command can hide a part of it on the screen."""
    shown = command.strip()
    if len(shown) > ASKED_CHARS:
        left_out = len(shown) - ASKED_CHARS
        shown = f"{shown[: ASKED_CHARS // 2]} […{left_out:,} characters…] {shown[-(ASKED_CHARS // 2) :]}"
    where = f" in {visible(str(folder))}" if folder is not None and elsewhere else ""
    text = f"Run `{visible(shown)}`{where}? ({visible(reason)})"
    return Question(text, kind="commands", rule=command.strip(), folder=str(folder or ""))


def visible(text: str) -> str:
    """Line ends as ⏎; control characters and those that reorder text as their codes."""
    shown = []
    for sign in text:
        if sign == "\n":
            shown.append(" ⏎ ")
        elif sign == "\t":
            shown.append(" ")
        elif unicodedata.category(sign) in ("Cc", "Cs", "Cf", "Zl", "Zp") and sign != "\u200d":
            shown.append(f"\\u{ord(sign):04x}")
        else:
            shown.append(sign)
    return "".join(shown)


def _folder(context: Context, workdir: str | None) -> Path:
    folder = context.cwd if workdir is None else context.cwd / Path(workdir).expanduser()
    try:
        if folder.is_dir():
            return folder
    except (OSError, ValueError):
        pass
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
        " servers and long work use background, then the process tool. The user may be asked before commands that"
        " could destroy something."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "One or more lines for bash."},
            "timeout": {"type": "number", "description": "Seconds after which it is ended; 120 if not said."},
            "background": {"type": "boolean", "description": "Start it and go on; its output is read with process."},
            "workdir": {"type": "string", "description": "The folder for this command only."},
        },
        "required": ["command"],
    },
    run=_run,
)
