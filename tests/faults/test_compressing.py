"""Several processes compress the same session at the same moment: one continuation, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.sizes import size

WORKER = """
import sys
from hermes.errors import InvalidInput
from hermes_state import SessionDB

path, name, head, tail = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with SessionDB(db_path=path) as db:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        db.compress_session("long", name, summary=f"summary by {name}", head_until=head, tail_from=tail)
    except InvalidInput as error:
        print("refused", error, flush=True)
    else:
        print("done", flush=True)
"""


@pytest.mark.parametrize("round", range(size(1, 3)))
def test_of_several_processes_that_compress_one_session_exactly_one_does(tmp_path: Path, round: int) -> None:
    path = tmp_path / "state.db"
    with SessionDB(db_path=path) as db:
        db.create_session("long", "cli")
        db.set_session_title("long", "the parser")
        made = [db.append_message("long", ("user", "assistant")[n % 2], f"message {n}") for n in range(40)]
    command = [sys.executable, "-c", WORKER, str(path)]
    names = [f"child-{n}" for n in range(4)]
    processes = [
        subprocess.Popen(
            [*command, name, str(made[1]), str(made[30])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:  # now, all at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = {name: process.communicate(timeout=120)[0] for name, process in zip(names, processes, strict=True)}
    winners = [name for name, answer in answers.items() if answer == "done\n"]
    assert len(winners) == 1, answers
    winner = winners[0]
    assert all(f"continues as {winner}" in answer for name, answer in answers.items() if name != winner), answers

    with SessionDB(db_path=path) as db:
        assert db.get_compression_tip("long") == winner
        assert [name for name in names if db.get_session(name) is not None] == [winner]
        assert db.get_session_title(winner) == "the parser #2"
        shown = [message["content"] for message in db.get_messages(winner)]
        expected = [f"message {n}" for n in (0, 1)] + [f"summary by {winner}"] + [f"message {n}" for n in range(30, 40)]
        assert shown == expected
        assert [message["content"] for message in db.get_messages("long")] == [f"message {n}" for n in range(40)]
        assert db.check() == []
