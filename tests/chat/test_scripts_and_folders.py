"""`hermes -q` for scripts, conversations that are not saved, and conversations that belong to a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_state import SessionDB
from tests.chat.server import Call, ModelServer
from tests.support.program import run
from tests.support.screen import Screen
from tests.support.wire import Wire, error

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def test_a_question_answers_as_json_with_files_and_a_system_prompt(
    server: ModelServer, home: Path, tmp_path: Path, look: Look
) -> None:
    server.usage = {"cost": 0.5}
    server.scripts = [[Call("terminal", command="echo hi")], ["It is ", "four."]]
    done = run("-q", "two and two?", "--json", "--system", "Be brief.", home=home)
    told = json.loads(done.out)
    assert (done.status, done.out.count("\n"), done.err) == (0, 1, "")
    assert told["answer"] == "It is four." and told["model"] == "test-model"
    assert told["tokens"] == {"input": 22, "output": 14, "cached": 0} and told["cost_usd"] == 1.0
    assert [(one["name"], one["ok"]) for one in told["tool_calls"]] == [("terminal", True)]
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    (row,) = look(lambda db: db.list_sessions_rich())
    assert row["id"] == told["session_id"] and row["end_reason"] == "oneshot" and server.tasks == []

    (tmp_path / "notes.txt").write_text("milk\neggs\n")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    (tmp_path / "prog.bin").write_bytes(b"\xff\xfe\0\1")
    server.scripts = [["Yes."]]
    done = run("-q", "what is this? @notes.txt @dot.png", "--stream-json", home=home, cwd=tmp_path)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [one["type"] for one in events] == ["text", "result"] and events[-1]["answer"] == "Yes."
    text, picture = server.requests[-1]["messages"][-1]["content"]
    assert "milk\neggs" in text["text"] and picture["image_url"]["url"].startswith("data:image/png;base64,")
    refused = run("-q", "x @prog.bin", home=home, cwd=tmp_path)
    assert refused.status == 1 and "prog.bin" in refused.err
    assert run("--json", home=home, input="").status == 2


def test_exit_statuses_tell_the_kind_of_failure(home: Path) -> None:
    kinds = {4: error(401, {"error": {"message": "no"}}), 6: error(413, {"error": {"message": "too much"}})}
    kinds[5] = error(429, {"error": {"message": "slow"}}, retry_after="999")
    for status, answer in kinds.items():
        with Wire([answer]) as wire:
            (home / "config.yaml").write_text(f"model: {{default: w, base_url: '{wire.base_url}', api_key: x}}\n")
            done = run("-q", "x", "--json", home=home)
            assert done.status == status, done.err
            assert json.loads(done.out)["kind"] == {4: "refused", 5: "busy", 6: "too_long"}[status]


def test_single_questions_are_listed_where_asked_for_until_they_are_continued(server: ModelServer, home: Path) -> None:
    run("-q", "what is a monad?", home=home)
    run("-q", "what is a functor?", home=home)
    listed = run("sessions", "list", home=home, width=140).out
    assert "monad" not in listed and "2 automated runs hidden; --all shows them" in listed
    assert run("sessions", "list", "--all", home=home, width=140).out.count("one-shot") == 2
    run("-c", "-q", "say more", home=home)  # the newest one is no single question any more
    short = run("sessions", "list", "--limit", 1, home=home).out
    assert "monad" not in short and "functor" in short and "1 automated run hidden" in short
    every = run("sessions", "list", "--all", home=home, width=140).out
    assert "monad" in every and every.count("one-shot") == 1 and "hidden" not in every
    assert "monad" in run("sessions", "list", "--source", "cli", home=home).out
    rows = json.loads(run("sessions", "list", "--json", home=home).out)
    assert [one["preview"] for one in rows] == ["what is a functor?"]


def test_a_question_takes_files_by_an_at_sign_and_piped_text_does_not(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("milk\neggs\n")
    (tmp_path / "secret.txt").write_text("hidden\n")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    (tmp_path / "prog.bin").write_bytes(b"\xff\xfe\0\1")

    def sent() -> Any:
        return server.requests[-1]["messages"][-1]["content"]

    done = run("-q", "what is in @notes.txt?", home=home, cwd=tmp_path, input="see @secret.txt\n")
    assert (done.status, done.err) == (0, "With notes.txt: 2 lines, 10 bytes\n")
    file = "[file notes.txt: 2 lines, 10 bytes]\nmilk\neggs\n[end of notes.txt]"
    assert sent() == f"what is in @notes.txt?\n\n{file}\n\nsee @secret.txt"
    done = run(home=home, cwd=tmp_path, input="only piped: @secret.txt\n")
    assert (done.status, done.err) == (0, "") and sent() == "only piped: @secret.txt"
    done = run("-q", "@dot.png beside @notes.txt", home=home, cwd=tmp_path)
    assert done.status == 0 and "With dot.png: picture, 28 bytes" in done.err
    text, picture = sent()
    assert text["text"].count("milk\neggs") == 1 and picture["image_url"]["url"].startswith("data:image/png;base64,")
    asked = len(server.requests)
    refused = run("-q", "run @prog.bin", home=home, cwd=tmp_path)
    assert refused.status == 1 and "@prog.bin is a binary file (4 bytes); the message was not sent" in refused.err
    assert len(server.requests) == asked


def test_nothing_of_an_unsaved_conversation_is_on_disk(server: ModelServer, home: Path, open_screen: Open) -> None:
    assert run("-q", "the secret plan", "--no-save", home=home).out == "That is all I have to say.\n"
    screen = open_screen("--no-save", width=100, until="not saved")
    screen.line("the secret plan")
    screen.wait_for("That is all")
    screen.press("C-d")
    assert screen.wait_until_over() == 0 and "Resume" not in screen.history()
    written = [path for path in home.rglob("*") if path.is_file() and path.name != "config.yaml"]
    assert not [path for path in written if b"secret plan" in path.read_bytes()]
    assert not (home / "state.db").exists()
    names = {tool["function"]["name"] for tool in server.requests[-1]["tools"]}
    assert "terminal" in names and not names & {"memory", "skills"}
    assert run("-c", "--no-save", "-q", "x", home=home).status == 2


def test_sessions_belong_to_folders(server: ModelServer, home: Path, tmp_path: Path, open_screen: Open) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one / ".git", one / "src", other):
        folder.mkdir(parents=True)
    with SessionDB(db_path=home / "state.db") as db:
        for name, folder, when in (("in-one", one / "src", 1e9), ("in-other", other, 2e9)):
            db.create_session(name, "cli", model="test-model", cwd=str(folder), started_at=when)
            db.append_message(name, "user", f"hello from {name}")
    screen = open_screen("-c", cwd=one, width=100, until="hello from in-other")
    told = "".join(screen.wait_for("❯").split())  # a long line is wrapped
    assert f"Thisconversationbelongsto{other}" in told and "hermes-c--here" in told
    here = open_screen("-c", "--here", cwd=one, width=100, until="hello from in-one")
    assert "belongs to" not in here.wait_for("❯")
    here.leave()
    assert run("-c", "--here", "-q", "more", home=home, cwd=one).status == 0
    assert "hello from in-one" in str(server.requests[-1]["messages"])
    listed = run("sessions", "list", "--here", home=home, cwd=one / "src").out
    assert "in-one" in listed and "in-other" not in listed
