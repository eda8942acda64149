"""The tools that run commands: terminal, in the conversation's folder, and process, for those in the background.

`cd` lasts, like in a terminal. Only commands that are known to be harmless run without a question (harmless.py), and those
that a rule allows (permission.py). A command that takes too long, or is interrupted, is ended with everything it started:
each has a process group of its own. One that runs when this program itself is killed (SIGKILL) goes on.

Background processes belong to the agent (`context.state`), survive turns, and are ended with it. A program can print
gigabytes: only the beginning and the end of its output are kept, with a note of the gap.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, cast

from msgspec import Meta, Struct

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
from hermes.agent.tools.tool import STOPPED, TIMED_OUT, Context, Reported, report, tool
from hermes.config.settings_schema import PermissionRule
from hermes.errors import ToolDeclined, ToolError
from hermes.texts import one_line, readable, shortened, without_middle

TIMEOUT_SECONDS: Final = 120.0
MAX_TIMEOUT_SECONDS: Final = 3600.0
REPORT_SECONDS: Final = 0.2  # seconds between two reports of a running command's output

FORBIDDEN = "Not run: permissions.deny in config.yaml forbids it. Do not try it another way."
DECLINED = "The user declined: the command was not run. Do not try it another way; ask what they want instead."


class _Command(Struct):
    command: Annotated[str, Meta(description="One or more lines for bash.", min_length=1)]
    timeout: Annotated[float, Meta(description="Seconds after which it is ended; 120 if not said.", ge=0)] = (
        TIMEOUT_SECONDS
    )
    background: Annotated[bool, Meta(description="Start it and go on; its output is read with process.")] = False
    workdir: Annotated[str, Meta(description="The folder for this command only.")] = ""


def _run_command(context: Context, arguments: _Command) -> str:
    command, workdir = arguments.command, arguments.workdir
    if "\0" in command:
        raise ToolError("a command can't contain null characters")
    folder = _folder(context, workdir)
    permission = question(context, command, folder, elsewhere=bool(workdir))
    if permission is not None:
        permit(context, permission, DECLINED)
    if arguments.background:
        number = background(context).start(command, folder)
        return (
            f"Started in the background as process {number}; the process tool reads its output, waits for it, ends it."
        )
    return _foreground(context, command, folder, min(arguments.timeout, MAX_TIMEOUT_SECONDS), follow=not workdir)


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


def _folder(context: Context, workdir: str) -> Path:
    folder = context.cwd / Path(workdir).expanduser()
    if os.path.isdir(folder):
        return folder
    hint = "give another workdir" if workdir else "give a workdir that exists"
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


terminal = tool(
    "terminal",
    "Run a shell command and get what it prints (standard output and errors together) and its exit status. Runs in"
    " the conversation's folder; cd lasts. There is no keyboard: programs that ask questions get no answer. For"
    " servers and long work use background, then the process tool. Commands that only read run at once; the user"
    " is asked about others, and about those that are not plain words, pipes, && and ;.",
    _Command,
    _run_command,
)


# ------------------------------------------------------------------------------------------ processes

GRACE_SECONDS: Final = 1.0  # seconds between SIGTERM and SIGKILL; an interrupted turn waits two
MAX_RUNNING: Final = 32
MAX_KEPT: Final = 64
MAX_WAIT_SECONDS: Final = 600.0


class Process:
    """A shell command that runs, or has run; its output is read continuously."""

    def __init__(self, command: str, cwd: Path, *, follow: bool = False) -> None:
        self.command = command
        self.cwd = cwd
        self.output = Output()
        self.ended = threading.Event()
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.killed = False
        self._empty = False  # no process is left in its group: the number may be reused since
        self._where: int | None = None
        script = command
        passed: tuple[int, ...] = ()
        if follow:
            self._where, writing = os.pipe()
            passed = (writing,)
            # On the first line, so that the line numbers in the shell's error messages are those of the command.
            script = f"trap 'command pwd -P >/dev/fd/{writing} 2>/dev/null' EXIT; {command}"
        try:
            self._popen = subprocess.Popen(
                [shell(), "-c", script],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
                pass_fds=passed,
            )
        except (OSError, ValueError) as error:
            self._close_where()
            raise ToolError(f"the command could not be started: {error}") from error
        finally:
            for descriptor in passed:
                os.close(descriptor)
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read, name=f"output of {self.pid}", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name=f"end of {self.pid}", daemon=True).start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        descriptor = self._popen.stdout.fileno()
        while data := os.read(descriptor, 65536):
            self.output.add(data)
        self._popen.stdout.close()

    def _wait(self) -> None:
        self._popen.wait()
        self._signal(0)
        self.ended_at = time.monotonic()
        # The last output may still be in the pipe; this does not wait for a child that keeps the pipe open.
        self._reader.join(0.5)
        self.ended.set()

    @property
    def status(self) -> int | None:
        """The exit status (negative: the signal that ended it); None while it runs."""
        return self._popen.returncode if self.ended.is_set() else None

    @property
    def seconds(self) -> float:
        return (self.ended_at or time.monotonic()) - self.started_at

    def folder(self) -> Path | None:
        """The shell's folder when it ended, if that was requested and reported."""
        if self._where is None:
            return None
        os.set_blocking(self._where, False)
        try:
            data = os.read(self._where, 65536)
        except BlockingIOError:
            data = b""
        finally:
            self._close_where()
        return Path(os.fsdecode(data.removesuffix(b"\n"))) if data else None

    def _close_where(self) -> None:
        if self._where is not None:
            os.close(self._where)
            self._where = None

    def kill(self) -> bool:
        """End the program and all it started: SIGTERM, then SIGKILL. Returns whether there was anything to end."""
        if not self._signal(signal.SIGTERM):
            return False
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            if not self._signal(0):
                break
            self.ended.wait(0.02) if not self.ended.is_set() else time.sleep(0.02)
        else:
            self._signal(signal.SIGKILL)
        self.ended.wait(GRACE_SECONDS)
        self._reader.join(0.5)
        return True

    def _signal(self, number: int) -> bool:
        """Signal the whole group; False when no process is left in it, and from then on always."""
        if self._empty:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            self._empty = True
            return False
        except PermissionError:  # another user's program in our group: it exists, and we can't end it
            return number == 0
        return True

    def state(self) -> str:
        """'running, 12 s' or 'exit status 0 after 3 s'."""
        if self.status is None:
            return f"running, {self.seconds:.0f} s"
        return f"{ending(self.status)} after {self.seconds:.0f} s"


def ending(status: int) -> str:
    """How a program ended, as text."""
    if status >= 0:
        return f"exit status {status}"
    return "ended by " + next((one.name for one in signal.Signals if one == -status), f"signal {-status}")


def shell() -> str:
    """The shell: bash if it is installed, else sh."""
    return shutil.which("bash") or "/bin/sh"


def environment() -> dict[str, str]:
    """The user's variables, and those that stop programs from waiting for input or drawing on the screen."""
    return {
        **os.environ,
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MANPAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
    }


class Background:
    """The background processes of one agent, by number."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.lock = threading.Lock()
        self._count = 0
        self._closed = False

    def start(self, command: str, cwd: Path) -> int:
        """Start a command in the background; returns its number."""
        with self.lock:
            if self._closed:
                raise ToolError("the conversation is over; nothing can be started any more")
            if sum(process.status is None for process in self.processes.values()) >= MAX_RUNNING:
                raise ToolError(f"{MAX_RUNNING} processes already run in the background; kill one first")
            if not self._count:
                atexit.register(self.close)  # unless this program is killed, nothing is left running
            self._count += 1
            self.processes[self._count] = Process(command, cwd)
            over = [number for number, old in self.processes.items() if old.status is not None]
            for number in over[: max(0, len(self.processes) - MAX_KEPT)]:
                del self.processes[number]
            return self._count

    def all(self) -> list[tuple[int, Process]]:
        """Every known process, by number."""
        with self.lock:
            return sorted(self.processes.items())

    def close(self) -> None:
        """End all processes at once."""
        atexit.unregister(self.close)
        with self.lock:
            self._closed = True
            processes, self.processes = list(self.processes.values()), {}
        threads = [threading.Thread(target=process.kill) for process in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def background(context: Context) -> Background:
    """The agent's background processes."""
    return cast(Background, context.state.setdefault("processes", Background()))


def running(context: Context) -> int:
    """How many background processes of the agent have not ended."""
    return sum(process.status is None for _, process in background(context).all())


class _ProcessCall(Struct):
    action: Literal["list", "read", "wait", "kill"]
    id: Annotated[int, Meta(description="The number terminal gave, for read, wait and kill.")] = 0
    offset: Annotated[int, Meta(description="Read from here; the last answer's next offset.", ge=0)] = 0
    timeout: Annotated[float, Meta(description="Seconds to wait at most; 60 if not said.", ge=0)] = 60.0


def _run_process(context: Context, arguments: _ProcessCall) -> str:
    every = background(context).all()
    if arguments.action == "list":
        lines = [f"{n}: {p.state()}: {shortened(one_line(p.command), 100)}" for n, p in every]
        return "\n".join(lines) or "No background processes."
    process = dict(every).get(arguments.id)
    if process is None:
        known = ", ".join(str(number) for number, _ in every) or "none"
        raise ToolError(f"there is no background process {arguments.id}; there are: {known}")
    if arguments.action == "wait":
        _wait(context, process, min(arguments.timeout, MAX_WAIT_SECONDS))
    elif arguments.action == "kill":
        running = process.status is None
        process.killed = process.kill() and running
    state = "killed; " * process.killed + process.state()
    text, following = process.output.since(arguments.offset, SHOWN_CHARS)
    text = text.rstrip("\n") or ("(nothing new)" if arguments.offset else "(no output)")
    command = shortened(one_line(process.command), 100)
    return f"process {arguments.id}: {state}: {command}\n{text}\n[next offset: {following}]"


def _wait(context: Context, process: Process, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not process.ended.wait(min(0.1, max(0.0, deadline - time.monotonic()))):
        if context.cancelled() or time.monotonic() >= deadline:
            return


process = tool(
    "process",
    "Look after commands started with terminal in the background: list them, read what one has printed (offset: only"
    " what came after it), wait for one to end, kill one.",
    _ProcessCall,
    _run_process,
)


FIRST_BYTES: Final = 200_000
LAST_BYTES: Final = 800_000
SHOWN_CHARS: Final = 40_000


class Output:
    """The bytes of one program; offsets count from its first byte. Safe to use from several threads."""

    def __init__(self, first: int = FIRST_BYTES, last: int = LAST_BYTES) -> None:
        self._lock = threading.Lock()
        self._first_limit, self._last_limit = first, last
        self._first = bytearray()
        self._last = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add output."""
        with self._lock:
            self.size += len(data)
            room = self._first_limit - len(self._first)
            if room > 0:
                self._first += data[:room]
                data = data[room:]
            self._last += data
            if len(self._last) > self._last_limit * 2:  # cut occasionally, not at every byte
                del self._last[: len(self._last) - self._last_limit]

    def end(self, size: int = 4_096) -> str:
        """The readable text of the last bytes, without a line whose beginning is missing."""
        with self._lock:
            data = bytes(self._last[-size:])
            if len(data) < size:
                data = bytes(self._first[-(size - len(data)) :]) + data
            cut = len(data) < self.size
        text = readable(data.decode("utf-8", "replace"))
        return text.partition("\n")[2] or text if cut else text

    def since(self, offset: int = 0, limit: int | None = None) -> tuple[str, int]:
        """The readable text from an offset on, and the next offset.

        Where a part was dropped, or exceeds a `limit` of characters, a note in the middle says so.
        """
        with self._lock:
            first = bytes(self._first[offset:]) if offset < len(self._first) else b""
            start = self.size - len(self._last)
            last = bytes(self._last[max(0, offset - start) :])
            gap = max(0, start - max(offset, len(self._first)))
            size = self.size
        if not gap:
            text = readable((first + last).decode("utf-8", "replace"))
            return (text if limit is None else without_middle(text, limit, first=1 / 3)), size
        head, tail = readable(first.decode("utf-8", "replace")), readable(last.decode("utf-8", "replace"))
        if limit is not None:
            gap += max(0, len(head) - limit // 3) + max(0, len(tail) - limit * 2 // 3)
            head, tail = head[: limit // 3], tail[-(limit * 2 // 3) :]
        return f"{head}\n[… about {gap:,} characters left out …]\n{tail}", size
