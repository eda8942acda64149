"""`hermes` as a process that is forked instead of started: its libraries are loaded once a test process, not once a run.

    Forked([sys.executable, "-m", "hermes.cli.main", "sessions", "list"], env=…, stdout=…)   # as subprocess.Popen

Each run is a process of its own with its own arguments, variables, folder, standard streams and end; only what Python
would load from disk is there already. Where loading matters a program is started from the beginning: other variables for the
interpreter or the loader, a function before the start, measured lines.

When the test process ends, in whatever way, so do its forked programs and all that they started. A forked program forks no
others: a script that starts programs where it is imported, and that hides a library, would start itself for ever.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# what the commands load, the libraries of a turn included
_LOADED = (
    "aiohttp", "anyio.streams.tls", "click", "genai_prices.data", "h2.connection", "hermes.agent.models.endpoint",
    "hermes.agent.loop", "hermes.agent.models.choice", "hermes.agent.summary", "hermes.agent.session_search",
    "hermes.agent.titler", "hermes.chat.oneshot", "hermes.chat.repl", "hermes.cli.chat", "hermes.cli.sessions", "hermes.cli.streams",
    "hermes.cli.sessions.listing", "hermes.config.reading", "hermes.gateway.runner", "hermes.store.gateway.gateway_db",
    "hermes.store.api.configured", "hermes.store.search", "hermes_state", "httpcore", "httpcore2", "httpx", "markdown_it",
    "prompt_toolkit", "psycopg", "pydantic", "rich.console", "rich.markdown", "rich.table",
    "truststore", "yaml",
)  # fmt: skip
# what some commands load besides; kept from the first run of such a command
_LOADED_FOR = {
    ("acp",): ("hermes.serve.acp_server",),
    ("mcp",): ("hermes.serve.mcp",),
    ("web",): ("uvicorn", "hermes.serve.web.app"),
    ("sessions", "browse"): ("hermes.chat.browse.screen",),
}
# what the interpreter reads at its start: where these differ, a program is started
_OF_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "GLIBC", "COVERAGE_", "OPENSSL_", "SSL_")
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_SET_IN_A_FORK = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


def forks() -> bool:
    """Whether programs are forked in this run."""
    measured = any(name.startswith("COVERAGE_") for name in os.environ)
    return sys.platform.startswith("linux") and not measured


class Forked(subprocess.Popen[Any]):
    """A Popen of `python -m module words…`. What can't be forked is started."""

    _outcome: int | None = None  # the pipe that brings the wait status

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, *rest: Any) -> None:  # fmt: skip
        # startupinfo, creationflags, shell, three pairs of pipe ends, restore_signals, gid, gids, uid, umask, session, group
        ends, start_new_session = rest[3:9], rest[14]
        plain = preexec_fn is None and executable is None and not pass_fds and not rest[2]
        plain = plain and rest[10:14] == (None, None, None, -1) and rest[15] == -1
        variables = dict(os.environ if env is None else env)
        if not (plain and args[:2] == [sys.executable, "-m"] and _server.serves(variables)):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)  # type: ignore[misc]
            return
        job = {"module": args[2], "words": args[3:], "folder": str(cwd or os.getcwd()), "env": variables}
        job["session"] = start_new_session
        given = (ends[0], ends[3], ends[5])  # what the child reads and writes; -1 is this process's own
        self._outcome, told = os.pipe()
        try:
            self.pid = _server.fork(job, [own if end == -1 else end for own, end in enumerate(given)], told)
        finally:
            os.close(told)
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        self._child_created = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Wait for its end; when a test has failed, there is nothing to wait for."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._outcome is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._outcome], [], [], 0)[0]:
            return 0, 0
        said = os.read(self._outcome, 4)
        os.close(self._outcome)
        return self.pid, struct.unpack("=i", said)[0] if said else signal.SIGKILL

    def _internal_poll(self, _deadstate: int | None = None, *rest: Any) -> int | None:
        if self._outcome is None:
            return super()._internal_poll(_deadstate, *rest)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None and (answer := self._try_wait(os.WNOHANG))[0]:
                    self._handle_exitstatus(answer[1])  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def fork_on_terminal(
    words: Sequence[str], variables: dict[str, str], folder: Path | None, terminal: int
) -> tuple[int, int] | None:
    """Fork `python -m module words…` as the leader of a session on this terminal; None: it can't be forked.

    Gives its process id and the pipe that brings its wait status ("=i").
    """
    if list(words[:2]) != [sys.executable, "-m"] or not _server.serves(variables):
        return None
    job: dict[str, Any] = {"module": words[2], "words": list(words[3:]), "folder": str(folder or os.getcwd())}
    job |= {"env": variables, "session": True, "terminal": True}
    ended, told = os.pipe()
    try:
        return _server.fork(job, [terminal] * 3, told), ended
    finally:
        os.close(told)


class _Server:
    """The process that forks, at the other end of a socket. It is started when it is first needed, and ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._env: dict[str, str] = {}

    def serves(self, variables: dict[str, str]) -> bool:
        """Whether a program with these variables can be forked."""
        if not forks() or _hides_a_library(variables):
            return False
        with self._lock:
            if self._socket is None:
                self._env = _of_the_start(variables)
                self._start(variables)
            return self._env == _of_the_start(variables)

    def _start(self, variables: dict[str, str]) -> None:
        if _is_forked():
            raise RuntimeError(
                f"{sys.argv[0]} starts programs, but runs in a forked one: a file of its name hides a library?"
            )
        self._socket, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, env=variables, cwd="/",
            )  # fmt: skip
        atexit.register(self._end, process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert self._socket is not None
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)

    def fork(self, job: dict[str, Any], streams: list[int], told: int) -> int:
        """Start this with these standard streams; its wait status will come through `told`. Gives its process id."""
        assert self._socket is not None
        data = json.dumps(job).encode("utf-8", "surrogateescape")
        with self._lock:
            socket.send_fds(self._socket, [struct.pack("=I", len(data))], [*streams, told])
            self._socket.sendall(data)
            answer = self._socket.recv(4, socket.MSG_WAITALL)
        (number,) = struct.unpack("=i", answer)
        if number < 0:
            raise OSError(-number, os.strerror(-number), job["folder"])
        return int(number)


def _is_forked() -> bool:
    """Whether a process that forks is among the ancestors of this one."""
    pid = os.getpid()
    while pid > 1:
        try:
            if os.fsencode(__file__) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            break
    return False


def _of_the_start(variables: dict[str, str]) -> dict[str, str]:
    return {
        name: text for name, text in variables.items() if name.startswith(_OF_THE_START) and name not in _SET_IN_A_FORK
    }


def _hides_a_library(variables: dict[str, str]) -> bool:
    """Whether PYTHONPATH has another module in place of an installed one, which would be loaded already in a fork."""
    for part in variables.get("PYTHONPATH", "").split(os.pathsep):
        if part and part not in sys.path and Path(part).is_dir():
            names = {entry.name.partition(".")[0] for entry in Path(part).iterdir()}
            if any(name.isidentifier() and find_spec(name) is not None for name in names):
                return True
    return False


_server = _Server()


# ── the process that forks ──


def _forking(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each job that comes. Gives the job in the forked process, and nothing when there are no more."""
    waiting: dict[int, int] = {}
    control, own = ctypes.CDLL(None).prctl, os.getpid()
    control(_SET_CHILD_SUBREAPER, 1)  # what outlives its parent becomes a child of this one
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([channel, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 512)
            _tell(waiting)
        if channel in ready:
            start, handles, _, _ = socket.recv_fds(channel, 4, 4)
            if not start:
                _end_children()
                return None
            job = json.loads(_exactly(channel, struct.unpack("=I", start)[0]).decode("utf-8", "surrogateescape"))
            told = handles.pop()
            if not Path(job["folder"]).is_dir():
                number = -2  # ENOENT
            elif _load_for(job["words"]) and (number := os.fork()) == 0:
                control(_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != own:  # it had ended before
                    os._exit(1)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for handle in (wake, woken, told, *waiting.values()):
                    os.close(handle)
                channel.close()
                return {**job, "streams": handles}
            for handle in handles:
                os.close(handle)
            if number > 0:
                waiting[number] = told
            else:
                os.close(told)
            channel.sendall(struct.pack("=i", number))


def _load_for(words: list[str]) -> bool:
    """Load what this command needs besides, once."""
    for start in (tuple(words[:2]), tuple(words[:1])):
        if start in _LOADED_FOR:
            names = _LOADED_FOR.pop(start)
            for name in names:
                with suppress(ImportError):
                    import_module(name)
            import gc

            gc.freeze()
            break
    return True


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += channel.recv(count - len(data))
    return data


def _tell(waiting: dict[int, int]) -> None:
    """Pass on how children have ended."""
    while True:
        try:
            number, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there are none
            return
        if not number:
            return
        told = waiting.pop(number, -1)
        if told < 0:  # a program that another one left behind
            continue
        with suppress(OSError):
            os.write(told, struct.pack("=i", status))
        os.close(told)


def _end_children() -> None:
    """Kill every process below this one: the children of those that are killed become this one's."""
    with suppress(ChildProcessError):
        while True:
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.wait()


def _settle(job: dict[str, Any]) -> None:
    """Become the process that was asked for."""
    if job["session"]:
        os.setsid()
    for number, handle in enumerate(job["streams"]):
        os.dup2(handle, number)
    for handle in job["streams"]:
        os.close(handle)
    if job.get("terminal"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for one in (signal.SIGHUP, signal.SIGQUIT):  # ignored where the tests were started by nohup: it would never end
            signal.signal(one, signal.SIG_DFL)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    time.tzset()
    sys.argv = [job["module"], *job["words"]]
    before = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [job["folder"], *before, *(part for part in sys.path if part not in before)]
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = _stream(0, "surrogateescape", False)
    sys.stdout = sys.__stdout__ = _stream(1, "surrogateescape", unbuffered)
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace", unbuffered)


def _stream(number: int, errors: str, unbuffered: bool) -> Any:
    """A standard stream as Python makes it at its start."""
    raw = io.FileIO(number, "wb" if number else "rb", closefd=False)
    raw.name = f"<{('stdin', 'stdout', 'stderr')[number]}>"
    buffer: Any = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
    lines = number == 2 or (number == 1 and raw.isatty())
    made = io.TextIOWrapper(
        buffer, "utf-8", errors, newline=None if number == 0 else "\n", line_buffering=lines, write_through=unbuffered
    )
    made.mode = "w" if number else "r"
    return made


def _main() -> None:
    import gc
    import runpy

    channel = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = sys.path[1:]  # not the folder of this file
    for name in _LOADED:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    job = _forking(channel)
    if job is not None:
        _settle(job)
        status = 0
        try:
            runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            if not isinstance(leaving.code, int | None):
                raise
            status = leaving.code or 0
        _leave(status)


def _leave(status: int) -> None:
    """End as Python does, without taking every module apart (which would copy all that is shared with the other forks)."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _main()
