"""`hermes sessions show`: the conversation, rendered; and --follow on a session another process writes."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import seeds, start_python
from tests.support.program import ended, in_terminal, run, start
from tests.support.waiting import PATIENCE

PARSER = "20250612_091500_a1b2c3"


@pytest.fixture
def home(hermes_home: Path) -> Path:
    seeds.people(hermes_home)
    return hermes_home


def test_calls_are_one_line_each_and_results_short_unless_full(home: Path) -> None:
    short = run("sessions", "show", PARSER, home=home).out
    assert "⚙ terminal(command=pytest tests/parser -q --durations=3, timeout=60)" in short
    assert "↳ terminal: 41 passed in 12.80s (+3 lines)" in short
    assert "test_deep" not in short and "Answer briefly" not in short
    full = run("sessions", "show", "--full", PARSER, home=home).out
    assert "2.2s test_deep" in full and "Answer briefly" in full


def test_last_leaves_out_what_came_before_and_says_how_much(home: Path) -> None:
    out = run("sessions", "show", PARSER, "--last", "1", home=home).out
    assert "6 earlier messages" in out and "--legacy-parser" in out and "Findings" not in out
    assert run("sessions", "show", PARSER, "--limit", "1", home=home).out == out


def test_json_is_the_exported_session(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        wanted = db.export_session(PARSER)
    assert json.loads(run("sessions", "show", PARSER, "--json", home=home).out) == wanted
    cut = json.loads(run("sessions", "show", PARSER, "--json", "--last", "2", home=home).out)
    assert wanted is not None and cut["messages"] == wanted["messages"][-2:]


def test_lineage_is_noted_on_both_sides(hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("first", "cli")
        db.set_session_title("first", "design")
        ids = [db.append_message("first", "user", f"message {n}") for n in range(4)]
        db.compress_session("first", "second", summary="what was said", head_until=ids[0], tail_from=ids[3])
        db.append_message("second", "user", "and on")
    before = run("sessions", "show", "first", home=hermes_home).out
    assert "compressed; continues as second" in before
    after = run("sessions", "show", "second", home=hermes_home).out
    assert "continues first" in after
    assert after.index("carried over from first") < after.index("message 0") < after.index("what was said")
    assert after.index("message 3") < after.index("and on") and "message 1" not in after


def test_on_a_terminal_markdown_is_rendered_and_in_a_pipe_it_stays(home: Path) -> None:
    assert "**recursive descent**" in run("sessions", "show", PARSER, home=home).out
    status, seen = in_terminal("sessions", "show", PARSER, home=home)
    assert status == 0 and "recursive descent" in seen and "**" not in seen and "\x1b[33;1m● user" in seen
    _, plain = in_terminal("sessions", "show", PARSER, home=home, env={"NO_COLOR": "1"})
    assert not re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", plain), "no colour"


# ── following ──


class Followed:
    """`hermes sessions show --follow`, read line by line."""

    def __init__(self, home: Path, *words: str) -> None:
        self.process = start("sessions", "show", "--follow", *words, home=home)
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def wait_for(self, text: str) -> str:
        """The line with this text; fails after a while."""
        seen = []
        with suppress(queue.Empty):
            while text not in (line := self.lines.get(timeout=PATIENCE)):
                seen.append(line)
            return line
        raise AssertionError(f"{text!r} never came; {''.join(seen)}")

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        self._reader.join()
        return ended(self.process), errors


WRITER = """
import sys
from hermes_state import SessionDB
with SessionDB(sys.argv[1]) as db:
    for line in sys.stdin:
        db.append_message(sys.argv[2], "assistant", line.strip())
        print("stored", flush=True)
"""


def said(writer: subprocess.Popen[str], text: str) -> None:
    assert writer.stdin is not None and writer.stdout is not None
    writer.stdin.write(text + "\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "stored\n"


def test_follow_shows_what_another_process_writes_and_ctrl_c_ends_it_cleanly(home: Path) -> None:
    session = "20250615_144000_5eed00"
    writer = start_python(WRITER, home / "state.db", session)
    followed = Followed(home, session)
    try:
        followed.wait_for("What shall we do?")
        for number in range(3):
            said(writer, f"answer number {number}")
            followed.wait_for(f"answer number {number}")
    finally:
        writer.communicate(timeout=120)
    assert followed.stop() == (0, "")


def test_follow_goes_on_where_a_compression_leads_and_tells_what_was_taken_back_and_the_end(hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("first", "cli")
        kept = db.append_message("first", "user", "alpha")
        db.append_message("first", "user", "beta")
        followed = Followed(hermes_home, "first")
        followed.wait_for("beta")
        db.rewind("first", kept)
        followed.wait_for("1 message withdrawn")
        db.compress_session("first", "second", summary="gamma so far", tail_from=kept)
        followed.wait_for("continues as second")
        followed.wait_for("gamma so far")
        db.append_message("second", "user", "delta")
        followed.wait_for("delta")
        db.end_session("second", "user_exit")
        followed.wait_for("the session ended (user_exit)")
    assert followed.stop() == (0, "")


def test_follow_as_json_is_one_message_a_line(home: Path) -> None:
    session = "20250615_144000_5eed00"
    followed = Followed(home, session, "--json", "--last", "1")
    assert json.loads(followed.wait_for("What shall"))["role"] == "assistant"
    with SessionDB(home / "state.db") as db:
        message_id = db.append_message(session, "user", "more\nlines")
    told = json.loads(followed.wait_for("more"))
    assert (told["id"], told["content"]) == (message_id, "more\nlines")
    assert followed.stop() == (0, "")
