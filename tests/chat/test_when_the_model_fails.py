"""The screen when the model's server is busy, fails, answers nothing or too much, or the program is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from hermes_state import SessionDB
from tests.chat.server import Gate, ModelServer
from tests.support.program import run
from tests.support.screen import Screen
from tests.support.wire import CUT, Wire, delta, end, error, said, sse

Open = Callable[..., Screen]


def test_waits_count_down_and_every_kind_of_reply_says_what_it_is(home: Path, open_screen: Open) -> None:
    busy = error(429, {"error": {"message": "slow down"}}, retry_after="3")
    failed = error(500, {"error": {"message": "kaputt"}}, retry_after="0")
    answers = [busy, failed, said("All good.")]
    with Wire([*answers, sse(end(), "[DONE]"), sse(delta(content="It is lo"), end("length"), "[DONE]")]) as wire:
        (home / "config.yaml").write_text(
            f"model: {{default: wire-1, base_url: '{wire.base_url}', api_key: x}}\n"
            "auxiliary: {title: {model: none, base_url: 'http://127.0.0.1:9/v1'},"
            " compression: {model: small, base_url: 'http://127.0.0.1:9/v1'}}\ncompression: {protect_last_n: 1}\n"
        )
        screen = open_screen(width=100, height=30)
        screen.line("hello")
        screen.wait_for("Retrying in 2 s")
        screen.wait_for("Retrying in 1 s")
        screen.wait_for("All good.")
        text = screen.history()
        assert "is busy (429): slow down (retrying in 3 s, try 2 of 5)" in text
        assert "failed (HTTP 500): kaputt (retrying in 0 s, try 3 of 5)" in text
        screen.line("and now?")
        screen.wait_for("The model gave an empty reply. /retry asks again.")
        screen.line("more")
        screen.wait_for("limit for one reply")

        wire.answer_next(sse(delta(content="half"), CUT), error(400, {"error": {"message": "no more"}}))
        screen.line("again")
        screen.wait_for("no more")
        assert "closed the connection" in screen.history().replace("\n", " ")
        assert "incomplete chunked" not in screen.history() and "peer closed" not in screen.history()

        screen.line("/compress")
        screen.wait_for("auxiliary.compression.base_url")
        told = " ".join(screen.history().split())
        assert "the model of auxiliary.compression (small) failed" in told and "refused" in told
        assert "is model.base_url right" not in told
        screen.leave()
    with SessionDB(db_path=home / "state.db", read_only=True) as db:
        (row,) = db.list_sessions_rich()
    shown = run("sessions", "show", row["id"], home=home).out
    assert "✂ the reply reached its length limit here" in shown
    assert "✂ the model gave an empty reply" in shown


def test_a_reply_cut_by_a_crash_is_marked_before_the_next_question(
    server: ModelServer, home: Path, open_screen: Open
) -> None:
    gate = Gate()
    server.scripts = [["The first half", gate]]
    screen = open_screen()
    screen.line("tell me")
    screen.wait_for("The first half")
    os.kill(screen.pid(), signal.SIGKILL)
    screen.wait_until_over()
    gate.open.set()
    with SessionDB(db_path=home / "state.db", read_only=True) as db:
        (row,) = db.list_sessions_rich()
        assert db.message_count() == 1
    page = run("sessions", "export", "-", "--format", "html", home=home).out
    assert "The first half" in page and "cut off here" in page
    shown = run("sessions", "show", row["id"], home=home).out
    assert re.search(r"The first half\n +✂ the reply was cut off here", shown)
    assert "*(the reply was cut off here)*" in run("sessions", "export", "-", "--format", "markdown", home=home).out
    again = open_screen("-r", row["id"], until="")
    recap = again.wait_for("❯")
    assert "◆ The first half" in recap and "✗ the reply was cut off here" in recap
    with SessionDB(db_path=home / "state.db", read_only=True) as db:
        assert [one["content"] for one in db.get_messages(row["id"])] == ["tell me", "The first half"]
