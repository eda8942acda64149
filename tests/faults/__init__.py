"""Kill, fill, lock and damage: what the store promises when everything around it goes wrong.

Each test drives real processes (workers.py) over pipes and looks at what is left through the public calls. Sizes are
small here and larger with HERMES_TEST_SIZE=all; the random numbers of a run come from one printed seed, and
HERMES_FAULT_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.sizes import size as size  # tests of faults take it from here

from . import workers
from .workers import message, word

PATIENCE = 60.0  # a step that takes longer than this hangs
_SCRIPT = Path(workers.__file__)


def seeded(what: str) -> random.Random:
    """Random numbers that a failing run tells how to repeat."""
    seed = os.environ.get("HERMES_FAULT_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"HERMES_FAULT_SEED={seed}")
    return random.Random(f"{seed} {what}")


def need(possible: bool, reason: str) -> None:
    """Skip where the machine can't do it, unless everything has to be tested here."""
    if not possible:
        if os.environ.get("HERMES_TEST_REQUIRE") == "all":
            pytest.fail(f"everything is required to run here, but {reason}")
        pytest.skip(reason)


# ── other processes ──

Step = tuple[str, tuple[Any, ...], dict[str, Any]]


def step(name: str, *args: Any, **kw: Any) -> Step:
    """A call for another process: of a method of SessionDB, or of a do_ of workers.Stage."""
    return name, args, kw


class Refused(Exception):
    """A step raised in the other process."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['text']}\n{error['trace']}")
        self.kind: str = error["type"]
        self.kinds: list[str] = error["kinds"]
        self.text: str = error["text"]


class Process:
    """A worker at the other end of two pipes. Everything waited for has a limit, so nothing can hang a run."""

    def __init__(self, job: str, *, pass_fds: Sequence[int] = (), own_mounts: bool = False) -> None:
        command = [sys.executable, str(_SCRIPT), job]
        if own_mounts:
            command = ["unshare", "-m" if os.getuid() == 0 else "-rm", *command]
        path = os.pathsep.join(part for part in sys.path if part)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
            pass_fds=pass_fds, bufsize=0,
        )  # fmt: skip
        self._buffer = b""
        self.pid = self._process.pid

    def send(self, order: Any) -> None:
        assert self._process.stdin is not None
        data = json.dumps(order).encode() + b"\n"
        while data:
            data = data[self._process.stdin.write(data) or 0 :]

    def receive(self, seconds: float = PATIENCE) -> Any:
        assert self._process.stdout is not None
        handle, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                self.kill()
                pytest.fail(f"the other process did not answer within {seconds} s: it hangs")
            piece = os.read(handle, 1 << 20)
            if not piece:
                raise EOFError(f"the other process ended with {self._process.wait(120)}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stopped(self, seconds: float = PATIENCE) -> None:
        """Wait until it has stopped itself, or was stopped."""
        assert self._stops(seconds, lambda: False), "it did not stop"

    def stops(self, seconds: float = PATIENCE) -> bool:
        """Wait until it has stopped itself (True), or has answered without stopping (False)."""
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        return self._stops(seconds, lambda: bool(self._buffer or select.select([answers], [], [], 0)[0]))

    def _stops(self, seconds: float, has_ended: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is None:
            if has_ended():
                return False
            assert time.monotonic() < deadline, "it did not stop"
            time.sleep(0.002)
        return True

    def kill(self) -> int:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        return self.ended()

    def ended(self, seconds: float = PATIENCE) -> int:
        code = self._process.wait(seconds)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()
        elif self._process.stdin is not None and not self._process.stdin.closed:
            self.ended()


class Remote(Process):
    """A store in another process: `remote.append_message(…)` happens there, and what it raises is Refused here."""

    def __init__(
        self, path: Path | None = None, *, pass_fds: Sequence[int] = (), own_mounts: bool = False, **kw: Any
    ) -> None:
        super().__init__("stage", pass_fds=pass_fds, own_mounts=own_mounts)
        if path is not None:
            self.open(str(path), **kw)

    def begin(self, name: str, *args: Any, **kw: Any) -> None:
        """Start a step without waiting for it."""
        self.send([name, args, kw])

    def answer(self, seconds: float = PATIENCE) -> Any:
        """The result of the step that was begun."""
        reply = self.receive(seconds)
        if "error" in reply:
            raise Refused(reply["error"])
        return reply["ok"]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kw: Any) -> Any:
            self.begin(name, *args, **kw)
            return self.answer()

        return call


class Nursery(Process):
    """Runs scripts in children of their own, and kills each of them when asked to."""

    def __init__(self) -> None:
        super().__init__("nursery")

    def life(self, *steps: Step, die_at: int | None = None, seconds: float = PATIENCE) -> dict[str, Any]:
        """Run the steps in a fresh process, to die at its n-th input/output call: {"status", "replies"}."""
        self.send({"steps": steps, "die_at": die_at, "how": int(signal.SIGKILL), "seconds": seconds})
        return dict(self.receive(seconds + 30))

    def run(self, *steps: Step, seconds: float = PATIENCE) -> list[Any]:
        """Run the steps to the end; their results."""
        life = self.life(*steps, seconds=seconds)
        for reply in life["replies"]:
            if "error" in reply:
                raise Refused(reply["error"])
        assert life["status"] == 0, f"the child ended with {life['status']}"
        return [reply["ok"] for reply in life["replies"]]


def can_mount() -> bool:
    """Whether a process here may have file systems of its own."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    flag = "-m" if os.getuid() == 0 else "-rm"
    script = 'mount -t tmpfs -o size=64k faults "$1"'
    done = subprocess.run(["unshare", flag, "sh", "-c", script, "sh", "/mnt"], capture_output=True)
    return done.returncode == 0


class Acks:
    """The pipe on which writers tell what is safe: (id, session, tag, number) each."""

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        self._rest = b""
        self.all: list[tuple[int, str, str, int]] = []

    def wait_for(self, count: int, seconds: float = PATIENCE) -> None:
        """Until so many have come in all."""
        deadline = time.monotonic() + seconds
        while len(self.all) < count:
            in_time = self._take(max(0.0, deadline - time.monotonic()))
            assert in_time, f"only {len(self.all)} acknowledgements of {count}"

    def drain(self) -> None:
        """Read what is left in the pipe once the writers are gone."""
        while self._take(0.0):
            pass

    def _take(self, seconds: float) -> bool:
        if not select.select([self._read], [], [], seconds)[0]:
            return False
        *lines, self._rest = (self._rest + os.read(self._read, 1 << 16)).split(b"\n")
        for line in lines:
            number, session_id, tag, count = line.decode().split(" ")
            self.all.append((int(number), session_id, tag, int(count)))
        return True

    def __enter__(self) -> Acks:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        os.close(self.write_end)


# ── what must be there ──


def store(path: Path, **kw: Any) -> Any:
    """The store, opened in this process."""
    from hermes_state import SessionDB

    return SessionDB(db_path=path, **kw)


def contents(rows: Iterable[dict[str, Any]]) -> list[Any]:
    return [row["content"] for row in rows]


def assert_message(row: dict[str, Any], tag: str, number: int) -> None:
    """A stored message is exactly what its writer said."""
    wanted = message(tag, number)
    assert {name: row[name] for name in wanted} == wanted


def assert_kept(db: Any, acks: Iterable[tuple[int, str, str, int]]) -> None:
    """Every acknowledged message is there once, whole and in its writer's order, counted and found."""
    by_session: dict[str, list[dict[str, Any]]] = {}
    for message_id, session_id, tag, number in acks:
        if session_id not in by_session:
            by_session[session_id] = db.get_messages(session_id)
            row = db.get_session(session_id)
            assert row["message_count"] == len(by_session[session_id]) == db.message_count(session_id)
        at = [row for row in by_session[session_id] if row["id"] == message_id]
        assert len(at) == 1, f"message {message_id} ({tag} {number}) is there {len(at)} times"
        assert_message(at[0], tag, number)
    for session_id, rows in by_session.items():
        assert_in_order(rows, session_id)


def assert_in_order(rows: Sequence[dict[str, Any]], session_id: str) -> None:
    """No message twice, and those of each writer in the order it wrote them."""
    seen: dict[str, list[int]] = {}
    for row in rows:
        tag, number = row["content"].split(" ")[0][:-1].rsplit("n", 1)
        seen.setdefault(tag, []).append(int(number))
    for tag, numbers in seen.items():
        assert numbers == sorted(set(numbers)), f"{session_id}: {tag} wrote in order, but it reads {numbers}"


def assert_found(db: Any, acks: Iterable[tuple[int, str, str, int]]) -> None:
    """Each message is found by its own word, and nothing else is."""
    for message_id, _, tag, number in acks:
        hits = [hit["id"] for hit in db.search_messages(word(tag, number))]
        assert hits == [message_id], f"{word(tag, number)} is message {message_id}, search says {hits}"


def transcript_ids(folder: Path, session_id: str) -> Counter[int]:
    """How often each message has a line in a transcript; unreadable lines are passed over, as a reader would."""
    found: Counter[int] = Counter()
    for line in transcript(folder, session_id):
        if line.get("type") == "message":
            found[line["id"]] += 1
    return found


def transcript(folder: Path, session_id: str) -> Iterator[dict[str, Any]]:
    """The lines of a transcript that can be read."""
    path = folder / f"{session_id}.jsonl"
    if path.exists():
        for raw in path.read_bytes().split(b"\n"):
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def assert_transcripts_whole(db: Any) -> None:
    """Each message has exactly one readable line in the transcript of the session that owns it."""
    for row in db.list_sessions_rich(limit=10_000, include_children=True, project_compression_tips=False):
        own = [one["id"] for one in db.get_messages(row["id"]) if one["session_id"] == row["id"]]
        lines = transcript_ids(db.sessions_dir, row["id"])
        missing = [one for one in own if not lines[one]]
        doubled = {one: times for one, times in lines.items() if times > 1}
        assert not missing, f"{row['id']}: no line for {missing}"
        assert not doubled, f"{row['id']}: several lines for {doubled}"


def settled(db: Any) -> None:
    """Sound as it is, or after the store's own next clean-up, or else by repair: never with a rest."""
    if db.check():
        db.prune_sessions(older_than_days=100_000)
    if db.check():
        db.repair()
    assert db.check() == []


def clone(source: Path, target: Path) -> Path:
    """A copy of a store's folder to do harm to; its database file."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target / "state.db"


def exports(db: Any) -> dict[str, dict[str, Any]]:
    """Everything a store shows, by session."""
    return {one["id"]: one for one in db.iter_export()}
