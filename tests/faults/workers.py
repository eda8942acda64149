"""The processes of the fault tests: stores that are controlled over a pipe.

`stage` is one process with one store; each line on stdin is one step, each line on stdout its outcome, so a test reads
like a script while the store lives (and dies) elsewhere. `nursery` forks a fresh child for each script it is given and
can kill it right before or after its n-th input/output call: state on disk changes nowhere else, so going through n
goes through every moment a process can die at between two system calls.

The file stands alone: it is started by its path and needs nothing but the store.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import random
import resource
import runpy
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import warnings
from typing import Any

NOBODY = 65534
IO_CALLS = {
    "execute", "executemany", "wal_checkpoint", "step", "open", "write", "pwrite", "close", "fsync", "flock", "unlink",
    "replace", "rename", "mkdir", "rmdir", "link", "truncate", "ftruncate",
}  # fmt: skip
PR_SET_PDEATHSIG = 1


# ── what is written ──


def message(tag: str, number: int) -> dict[str, Any]:
    """The n-th message of a writer: always the same, and never like any other. Its first word is found by search."""
    dice = random.Random(f"{tag} {number}")
    first = word(tag, number)
    kind = dice.randrange(10)
    if tag.startswith("small"):
        return {"role": "user", "content": f"{first} hello"}
    if tag.startswith("words"):  # little to store, much to index
        body = " ".join(f"{dice.randrange(1 << 30):x}" for _ in range(20_000))
        return {"role": "user", "content": f"{first} {body}"}
    if kind == 0:
        body = "".join(chr(dice.randrange(0x4E00, 0x9FA0)) for _ in range(dice.randrange(1, 400)))
        return {"role": "user", "content": f"{first} {body}"}
    if kind == 1:  # over 2 KB of tool output: kept compressed
        body = " ".join(f"line{dice.randrange(500)}" for _ in range(dice.randrange(400, 1500)))
        return {"role": "tool", "content": f"{first} {body}", "tool_call_id": f"c{number}", "tool_name": "shell"}
    if kind == 2:
        calls = [{"id": f"c{number}", "type": "function", "function": {"name": "shell", "arguments": '{"a": "b"}'}}]
        return {"role": "assistant", "content": first, "tool_calls": calls}
    if kind == 3:
        body = " ".join(f"w{dice.randrange(10**6)}" for _ in range(dice.randrange(800, 2500)))
        return {"role": "assistant", "content": f"{first} {body}"}
    return {"role": ("user", "assistant")[number % 2], "content": f"{first} " + "some words " * dice.randrange(12)}


def word(tag: str, number: int) -> str:
    """The word that only this message has."""
    return f"{tag}n{number}q"


# ── dying on time ──


class Fate:
    """Ends (or stops) this process right before or after its n-th call that could touch a file."""

    def __init__(self, at: int | None, how: int) -> None:
        self.at, self.how, self.seen = at, how, 0

    def begin(self) -> None:
        sys.setprofile(self._event)

    def end(self) -> int:
        sys.setprofile(None)
        return self.seen

    def _event(self, frame: Any, event: str, called: Any) -> None:
        code = frame.f_code
        if event in ("call", "return"):
            if code.co_name != "wait" or "psycopg" not in code.co_filename:  # to a server and back
                return
        elif event not in ("c_call", "c_return") or called.__name__ not in IO_CALLS:
            return
        if code.co_filename == __file__:
            return  # the script's own pipe
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), self.how)


# ── the steps ──


class Stage:
    """One store and the steps that can be asked of it: any method of SessionDB, and those called do_ here."""

    def __init__(self) -> None:
        self.db: Any = None
        self.others: list[Any] = []
        self.said: list[str] = []
        self.fate = Fate(None, signal.SIGKILL)
        self._plain: sqlite3.Connection | None = None
        self._locked: list[int] = []

    def run(self, name: str, args: list[Any], kw: dict[str, Any]) -> Any:
        special = getattr(self, f"do_{name}", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = special(*args, **kw) if special else getattr(self.db, name)(*args, **kw)
            finally:
                self.said += [str(one.message) for one in caught if not issubclass(one.category, ResourceWarning)]
        return list(result) if name == "iter_export" else result

    # the store

    def do_open(self, path: str, **kw: Any) -> bool:
        from hermes_state import SessionDB

        self.db = SessionDB(db_path=path, **kw)
        return bool(self.db.read_only)

    def do_count(self, at: int | None = None, how: int = signal.SIGKILL) -> None:
        """From here on input/output calls are counted, and the `at`-th is the last (or the one to stop at)."""
        if at is not None:
            self.fate = Fate(at, how)
        self.fate.begin()

    def do_fenced(self, lease: str, token: int, call: str, *args: Any) -> Any:
        """A call that depends on a lease."""
        with self.db.fenced(lease, token):
            return getattr(self.db, call)(*args)

    def do_counted(self) -> int:
        return self.fate.end()

    def do_append(self, session_id: str, tag: str, first: int, count: int = 1) -> list[int]:
        ids = []
        for number in range(first, first + count):
            ids.append(self.db.append_message(session_id, **message(tag, number)))
        return ids

    def do_attempt(self, session_id: str, tag: str, first: int, most: int) -> dict[str, Any]:
        """Append until it fails: what was acknowledged, and the failure."""
        done = []
        for number in range(first, first + most):
            try:
                done.append([self.db.append_message(session_id, **message(tag, number)), number])
            except Exception as error:
                return {"done": done, "failed": number, "error": described(error)}
        return {"done": done, "failed": None, "error": None}

    def do_tried(self, name: str, *args: Any) -> dict[str, Any] | None:
        """Call a method; returns a description of the error it raised, or None."""
        try:
            getattr(self.db, name)(*args)
        except Exception as error:
            return described(error)
        return None

    def do_write_on(self, own: str, shared: str, tag: str, acks: int, most: int = 10**9) -> int:
        """Write to two sessions in turns, and tell the pipe `acks` of each message once it is safe."""
        dice = random.Random(tag)
        number = 0
        for number in range(most):
            session_id = shared if dice.random() < 0.4 else own
            message_id = self.db.append_message(session_id, **message(tag, number))
            os.write(acks, f"{message_id} {session_id} {tag} {number}\n".encode())
        return number

    def do_everything(self, queries: list[str]) -> dict[str, Any]:
        """All that can be read, by every road there is."""
        db = self.db
        exported = {one["id"]: one for one in db.iter_export()}
        listed = [row["id"] for row in db.list_sessions_rich(limit=10_000, include_children=True)]
        for session_id in exported:
            db.get_session(session_id)
            db.get_messages_as_conversation(session_id, include_ancestors=True)
        found = {query: sorted(hit["id"] for hit in db.search_messages(query, limit=500)) for query in queries}
        counts = [db.session_count(), db.message_count()]
        titles = [db.resolve_session_by_title(one["title"]) for one in exported.values() if one["title"]]
        return {"sessions": exported, "listed": listed, "found": found, "counts": counts, "titles": titles}

    def do_module(self, module: str, *argv: str) -> dict[str, Any]:
        """`python -m module argv…`, without the cost of another interpreter: {"code", "out"}."""
        out, before = io.StringIO(), sys.argv
        sys.argv = [module, *argv]
        code: Any = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else str(stop.code)
        finally:
            sys.argv = before
        return {"code": code, "out": out.getvalue()}

    # encryption

    def do_encrypt(self, path: str, key: str) -> None:
        from pathlib import Path

        from hermes.store import encryption, keys

        encryption.encrypt(Path(path), lambda: keys.by_file(Path(key)))

    def do_decrypt(self, path: str) -> None:
        from pathlib import Path

        from hermes.store import encryption

        encryption.decrypt(Path(path))

    def do_rekey(self, path: str, key: str) -> None:
        from pathlib import Path

        from hermes.store import encryption, keys

        encryption.rekey(Path(path), lambda: keys.by_file(Path(key)))

    # the surroundings

    def do_set(self, module: str, **values: Any) -> None:
        target = __import__(module, fromlist=["*"])
        for name, value in values.items():
            assert hasattr(target, name), f"{module} has no {name}"
            setattr(target, name, value)

    def do_warnings(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def do_load_all(self) -> None:
        """Import whatever the store and its commands may need later, while it can still be read."""
        import importlib
        import pkgutil

        for package in ("hermes.store", "hermes.config", "hermes.interop", "hermes.cli.sessions"):
            for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
                importlib.import_module(found.name)

    def do_rehearse(self) -> None:
        """Use a store once, so that libraries have loaded what they load on first use."""
        from pathlib import Path
        from tempfile import TemporaryDirectory

        from hermes_state import SessionDB

        with TemporaryDirectory() as folder, SessionDB(db_path=Path(folder) / "state.db") as db:
            db.create_session("talk", "cli")
            for number in range(20):
                db.append_message("talk", **message("rehearsal", number))
            db.search_messages("words")
            db.get_messages("talk")
            db.check()

    def do_become_nobody(self) -> int:
        """Root may write anywhere; nobody may not."""
        self.do_load_all()
        self.do_rehearse()
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return os.getuid()

    def do_mount(self, folder: str, *options: str) -> str:
        """A file system of our own (the process is in its own mount namespace); "" or what went wrong."""
        os.makedirs(folder, exist_ok=True)
        done = subprocess.run(["mount", *options, folder], capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def do_limit_file_size(self, size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def do_fill(self, path: str, leave: int = 0) -> int:
        """Fill the disk with a file, then leave so many bytes."""
        size = 0
        with open(path, "wb", buffering=0) as ballast:
            for step in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        size += ballast.write(b"x" * step)
            ballast.truncate(max(0, size - leave))
        return size

    def do_fail_syncs(self, number: int, numbers: list[int]) -> None:
        """From here on these syncs (counted from 0) fail with this errno, as a disk or a quota would have it."""
        real, counter = os.fdatasync, iter(range(1 << 30))

        def fdatasync(file: int) -> None:
            if next(counter) in numbers:
                raise OSError(number, os.strerror(number))
            real(file)

        os.fdatasync = fdatasync

    def do_os(self, name: str, *args: Any) -> None:
        getattr(os, name)(*args)

    def do_paths(self, folder: str) -> list[str]:
        return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)

    def do_read(self, path: str) -> str:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def do_hold(self, path: str) -> None:
        """Take the write lock as any other program would."""
        self._plain = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._plain.execute("BEGIN IMMEDIATE")

    def do_foreign(self, how: str, path: str, tag: str = "f") -> Any:
        """Use the file beside the store, in this very process, as a program does that knows nothing of it."""
        return Foreign(path, self.db).use(how, tag)

    def do_descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def do_look(self, path: str) -> int:
        """Begin to read and never end: this moment's view is kept, and no checkpoint can pass it."""
        self._plain = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._plain.execute("BEGIN")
        return int(self._plain.execute("SELECT count(*) FROM messages").fetchone()[0])

    def do_let_go(self) -> None:
        assert self._plain is not None
        self._plain.close()
        self._plain = None

    def do_lock_file(self, path: str) -> None:
        import fcntl

        self._locked.append(os.open(path, os.O_RDWR | os.O_CREAT))
        fcntl.flock(self._locked[-1], fcntl.LOCK_EX)

    def do_checkpointing(self, path: str) -> None:
        """Hold the lock (WAL_CKPT_LOCK of SQLite's wal.c) that a connection holds during a checkpoint."""
        import fcntl

        self._locked.append(os.open(f"{path}-shm", os.O_RDWR))
        fcntl.lockf(self._locked[-1], fcntl.LOCK_EX, 1, 121)

    def do_unlock_file(self) -> None:
        os.close(self._locked.pop())

    def do_pause(self, seconds: float) -> None:
        time.sleep(seconds)

    # threads

    def do_close_under_load(self, path: str, threads: int, seed: int) -> dict[str, Any]:
        """Two stores on one file, threads in every kind of call, and close() from the side."""
        return close_under_load(path, threads, seed)


class Foreign:
    """Other ways to use a store's file than the store's own; each gives the texts it has stored, if any."""

    def __init__(self, path: str, db: Any) -> None:
        self.path, self.db = path, db

    def use(self, how: str, tag: str) -> Any:
        return getattr(self, how)(tag)

    def select(self, tag: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as plain:
            plain.execute("SELECT count(*) FROM messages").fetchone()

    def bytes(self, tag: str) -> None:
        for end in ("", "-wal", "-shm"):
            with open(self.path + end, "rb") as file:
                file.read()

    def write(self, tag: str) -> list[str]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as plain, plain:
            plain.execute("INSERT OR IGNORE INTO sessions(id, source, started_at) VALUES('theirs', 'cli', 1)")
            plain.execute(
                "INSERT INTO messages(session_id, role, content, timestamp) VALUES('theirs', 'user', ?, 1)",
                (f"by sql {tag}",),
            )
        return [f"by sql {tag}"]

    def fork(self, tag: str) -> None:
        """A child that comes by a copy of the store, tries to use it and closes it."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.db.append_message("theirs", "user", "from the child")
            except Exception as error:
                code = 0 if type(error).__name__ == "StoreClosed" else 2
            self.db.close()
            self.db._engine._main.close()  # as when the child ends and everything in it is freed
            self.select(tag)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child could use its parent's store"


def close_under_load(path: str, threads: int, seed: int) -> dict[str, Any]:
    from hermes_state import SessionDB

    dice = random.Random(seed)
    stores = [SessionDB(db_path=path, durability="normal") for _ in range(2)]
    for number in range(threads):
        stores[0].ensure_session(f"t{number}", "cli")
    kept: list[tuple[int, str, str, int]] = []
    refused: list[tuple[str, str, int]] = []
    wrong: list[str] = []
    going = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        db, tag = stores[number % 2], f"t{number}s{seed}"
        going.wait(30)
        for turn in range(10_000):
            what = turn % 4
            try:
                if what < 2:
                    kept.append((db.append_message(f"t{number}", **message(tag, turn)), f"t{number}", tag, turn))
                elif what == 2:
                    db.search_messages("words", limit=5)
                else:
                    db.get_messages(f"t{number}")
                    db.list_sessions_rich(limit=3)
            except Exception as error:
                if type(error).__name__ != "StoreClosed":
                    wrong.append("".join(traceback.format_exception(error))[-1500:])
                elif what < 2:
                    refused.append((f"t{number}", tag, turn))
                return

    running = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    going.wait(30)
    deadline = time.monotonic() + 30
    while not kept and time.monotonic() < deadline:  # on a busy machine the first one takes its time
        time.sleep(0.001)
    for db in stores:
        time.sleep(dice.uniform(0.02, 0.15))
        db.close()
        db.close()
    for thread in running:
        thread.join(120)
    stuck = sum(thread.is_alive() for thread in running)
    return {"kept": kept, "refused": refused, "wrong": wrong, "stuck": stuck}


# ── the two ways to run it ──


def described(error: BaseException) -> dict[str, Any]:
    names = [kind.__name__ for kind in type(error).__mro__]
    trace = "".join(traceback.format_exception(error))
    maybe = bool(getattr(error, "maybe_stored", False))
    return {"type": names[0], "kinds": names, "text": str(error), "maybe_stored": maybe, "trace": trace[-3000:]}


def outcome(stage: Stage, step: list[Any]) -> bytes:
    name, args, kw = step
    try:
        reply: dict[str, Any] = {"ok": stage.run(name, args, kw)}
    except BaseException as error:
        reply = {"error": described(error)}
    return json.dumps(reply, default=str).encode() + b"\n"


def quiet_stdout() -> int:
    """The pipe to the test; whatever else is printed goes to stderr."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return pipe


def write_all(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def stage() -> None:
    pipe = quiet_stdout()
    here = Stage()
    for line in sys.stdin.buffer:
        write_all(pipe, outcome(here, json.loads(line)))


def nursery() -> None:
    pipe = quiet_stdout()
    Stage().do_load_all()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        write_all(pipe, json.dumps(raise_child(order)).encode() + b"\n")


def raise_child(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, run the script in the child, see how it ends: {"status": exit code, -signal or "hangs", "replies"}."""
    incoming, outgoing = os.pipe()
    child = os.fork()
    if child == 0:
        live_out(order, outgoing)
    os.close(outgoing)
    deadline, data, status = time.monotonic() + order["seconds"], b"", None
    while select.select([incoming], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(incoming, 1 << 20)
        if not piece:
            break
        data += piece
    else:
        status = "hangs"
        os.kill(child, signal.SIGKILL)
    os.close(incoming)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    replies = [json.loads(line) for line in data.split(b"\n")[:-1]]
    return {"status": code if status is None else status, "replies": replies}


def live_out(order: dict[str, Any], pipe: int) -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
    here = Stage()
    here.fate = Fate(order["die_at"], order["how"])
    for step in order["steps"]:
        reply = outcome(here, step)
        write_all(pipe, reply)
        if reply.startswith(b'{"error"'):
            break
    here.fate.end()
    os._exit(0)


if __name__ == "__main__":
    {"stage": stage, "nursery": nursery}[sys.argv[1]]()
