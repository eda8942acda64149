"""`hermes chat -q`, pipes, and what is said when something is wrong: run as a process, the way a shell does."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.chat.server import Call, Gate, ModelServer
from tests.support.forking import Forked
from tests.support.program import PROGRAM, ended, environment, run, start
from tests.support.waiting import until
from tests.support.wire import CUT, Answer, Wire, delta, end, error, said, sse

Look = Callable[[Callable[[Any], Any]], Any]


def messages(db: Any) -> list[tuple[str, Any]]:
    (row,) = db.list_sessions_rich(limit=2)
    return [(one["role"], one["content"]) for one in db.get_messages(row["id"])]


def test_the_answer_alone_is_on_standard_output_as_plain_text(server: ModelServer, home: Path, look: Look) -> None:
    server.scripts = [["It is ", "**four**."]]
    done = run("chat", "-q", "two and two?", home=home)
    assert (done.status, done.out, done.err) == (0, "It is **four**.\n", "")
    assert look(messages) == [("user", "two and two?"), ("assistant", "It is **four**.")]
    (row,) = look(lambda db: db.list_sessions_rich())
    assert row["end_reason"] == "oneshot" and row["source"] == "cli" and row["title"]


def test_one_question_does_not_wait_for_a_title_by_the_model(server: ModelServer, home: Path, look: Look) -> None:
    asked = Gate()

    def never(body: dict[str, Any]) -> str:
        asked.open.wait(60)
        return "A Title That Comes Late"

    server.task_answer = never
    server.scripts = [["A parser for TOML files needs a tokenizer first."]]
    try:
        done = run("-q", "How do I write a parser for TOML files?", home=home)
    finally:
        asked.open.set()
    assert (done.status, done.err) == (0, "") and done.out.startswith("A parser")
    (row,) = look(lambda db: db.list_sessions_rich())
    assert server.tasks == [] and "TOML" in row["title"]


def test_piped_text_joins_the_question_and_alone_it_is_the_question(server: ModelServer, home: Path) -> None:
    run("chat", "-q", "review this", home=home, input="diff --git a b\n")
    run("chat", home=home, input="just this\n")
    asked = [body["messages"][-1]["content"] for body in server.requests]
    assert asked == ["review this\n\ndiff --git a b", "just this"]


def test_bytes_that_are_no_text_are_replaced(server: ModelServer, home: Path, look: Look) -> None:
    assert run("chat", "-q", "what?", home=home, input=b"caf\xe9 \xff\xfe ok").status == 0
    assert look(messages)[0] == ("user", "what?\n\ncaf\ufffd \ufffd\ufffd ok")


@pytest.mark.parametrize("words", [("chat",), ("chat", "-q", ""), ("chat", "-q", "  \n")])
def test_no_question_is_wrong_usage(server: ModelServer, home: Path, words: tuple[str, ...]) -> None:
    done = run(*words, home=home)
    assert done.status == 2 and "no question" in done.err and done.err.count("\n") == 1
    assert server.requests == []


def test_a_closed_pipe_is_quiet_and_the_answer_is_kept(server: ModelServer, home: Path, look: Look) -> None:
    gate = Gate()
    server.scripts = [["first line\n", gate, *["more and more text\n"] * 5000]]
    child = start("chat", "-q", "talk", home=home)
    assert child.stdout is not None and child.stderr is not None
    assert gate.reached.wait(60)
    child.stdout.close()
    gate.open.set()
    errors = child.stderr.read()
    assert ended(child) == 0 and errors == ""
    assert look(messages)[1][1].startswith("first line\n")


def arrived(home: Path, text: str) -> None:
    """Wait until the program has this of the reply: it lies in the draft from then on."""
    drafts = home / "drafts"
    until(lambda: any(text.encode() in draft.read_bytes() for draft in drafts.glob("*")), f"{text!r} arrives")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_was_said_kept(server: ModelServer, home: Path, look: Look, by: int) -> None:
    gate = Gate()
    server.scripts = [["first line\n", gate]]
    child = start("chat", "-q", "talk", home=home)
    arrived(home, "first line")
    child.send_signal(by)
    assert ended(child) == 128 + by
    gate.open.set()
    (row,) = look(lambda db: db.list_sessions_rich())
    assert look(messages) == [("user", "talk"), ("assistant", "first line\n")] and row["end_reason"] == "oneshot"


def cut_short(home: Path, *answers: Any) -> Wire:
    """A model server that says just this, connections that break included."""
    wire = Wire(answers)
    (home / "config.yaml").write_text(f"model: {{default: wire-1, base_url: '{wire.base_url}', api_key: x}}\n")
    return wire


def test_after_a_broken_connection_only_the_answer_is_on_standard_output(home: Path, look: Look) -> None:
    answer = "It is four, and always was."
    with cut_short(home, sse(delta(content="It is fo"), CUT), said(answer)):
        done = run("-q", "two and two?", home=home)
    assert (done.status, done.out) == (0, f"{answer}\n")
    assert "starts over" in done.err
    assert look(messages) == [("user", "two and two?"), ("assistant", answer)]


def test_an_error_of_the_model_is_told_wherever_the_conversation_is(
    home: Path, look: Look, open_screen: Callable[..., Any]
) -> None:
    refusal = error(400, {"error": {"message": "quokka is no model, key sk-proj-abcdefghijklmnopqrstuvwxyz012345"}})
    with cut_short(home, refusal):
        done = run("-q", "two and two?", home=home)
        assert done.status == 4 and done.out == "" and "quokka" in done.err
        (row,) = look(lambda db: db.list_sessions_rich())
        assert look(messages) == [("user", "two and two?")]
        screen = open_screen("-c", until="the model did not answer")
        screen.close()
    (event,) = look(lambda db: db.get_session_events(row["id"]))
    assert event["kind"] == "model_error" and "quokka" in event["text"]
    outs = [run("sessions", "show", row["id"], home=home), run("sessions", "show", row["id"], "--json", home=home)]
    for form in ("jsonl", "md", "html"):
        outs.append(run("sessions", "export", "-", "--session-id", row["id"], "--format", form, home=home))
    for one in outs:
        assert one.status == 0 and "quokka" in one.out, one
    assert not any(b"abcdefghijklmnopqrstuvwxyz012345" in path.read_bytes() for path in home.glob("state.db*"))


def test_tools_between_two_parts_of_an_answer_keep_both(server: ModelServer, home: Path) -> None:
    server.scripts = [["Let me see.", Call("terminal", command="echo hi")], ["It says hi."]]
    assert run("-q", "what does it say?", home=home).out == "Let me see.\nIt says hi.\n"


def test_a_command_needs_yes_or_its_rule_where_nobody_can_be_asked(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("x")
    server.scripts = [
        [Call("terminal", command=f"rm {precious}")],
        ["no?"],
        [Call("terminal", command=f"rm {precious}")],
        ["other."],
        [Call("terminal", command=f"rm {precious}")],
        ["rule."],
        [Call("terminal", command=f"ls; rm {precious}")],
        ["yes."],
    ]
    done = run("chat", "-q", "remove it", home=home)
    assert done.out == "no?\n" and "no terminal" in done.err and precious.exists()
    assert done.err.rstrip().endswith("Allow it with --yes-to rm")
    assert "asked here" in server.requests[-1]["messages"][-1]["content"]
    done = run("chat", "-q", "remove it", "--yes-to", "git push", "--yes-to", "mv", home=home)
    assert done.out == "other.\n" and precious.exists()
    done = run("chat", "-q", "remove it", "--yes-to", "rm", home=home)
    assert (done.out, done.err) == ("rule.\n", "") and not precious.exists()
    assert not (home / "config.yaml").exists() or "rm" not in (home / "config.yaml").read_text()
    precious.write_text("x")
    done = run("chat", "-q", "remove it", "--yes", home=home)
    assert done.out == "yes.\n" and not precious.exists()


# ---------------------------------------------------------------------------------------------- going on


def test_continuing_with_a_question(server: ModelServer, home: Path, look: Look) -> None:
    run("chat", "-q", "one", home=home)
    title = look(lambda db: db.list_sessions_rich()[0]["title"])
    for words in (("-c",), ("--continue",), ("-c", title), ("-r", title)):
        assert run("chat", *words, "-q", f"next {words}", home=home).status == 0
    assert [text for role, text in look(messages) if role == "user"][0::4] == ["one", f"next ('-r', {title!r})"]
    assert len(server.requests[-1]["messages"]) == 10
    assert look(lambda db: db.session_count()) == 1


def seed(home: Path, *ids: str, **columns: Any) -> SessionDB:
    db = SessionDB(db_path=home / "state.db")
    for number, name in enumerate(ids):
        db.create_session(name, columns.pop("source", "cli"), started_at=1_000_000.0 + number, **columns)
        db.append_message(name, "user", f"hello from {name}", timestamp=1_000_000.0 + number)
    return db


def test_an_exact_id_comes_before_a_title_and_a_title_before_a_prefix(server: ModelServer, home: Path) -> None:
    with seed(home, "abc", "abcdef", "xyz") as db:
        db.set_session_title("xyz", "abcd")
        for words, wanted in (("abc", "abc"), ("abcd", "xyz"), ("abcde", "abcdef")):
            assert run("chat", "-r", words, "-q", f"to {words}", home=home).status == 0
            assert db.get_messages(wanted)[-2]["content"] == f"to {words}"


def test_an_ambiguous_prefix_lists_the_candidates(server: ModelServer, home: Path) -> None:
    seed(home, "abc1", "abc2").close()
    for option in ("-c", "-r", "--resume", "--continue"):
        done = run("chat", option, "abc", "-q", "x", home=home)
        assert done.status == 2 and "abc1" in done.err and "abc2" in done.err and done.out == ""


def test_an_unknown_session_suggests_titles(server: ModelServer, home: Path) -> None:
    with seed(home, "s") as db:
        db.set_session_title("s", "garden plans")
    done = run("-r", "gardn plans", "-q", "x", home=home)
    assert done.status == 1 and '"garden plans"' in done.err and done.out == ""
    assert run("-r", "", "-q", "x", home=home).status == 1
    assert server.requests == []


def test_continuing_without_any_session_is_refused(server: ModelServer, home: Path) -> None:
    done = run("-c", "-q", "x", home=home)
    assert done.status == 1 and "no conversation to continue" in done.err


def test_continue_means_the_session_used_last_in_a_terminal(server: ModelServer, home: Path) -> None:
    with seed(home, "older", "newer") as db:
        db.append_message("older", "assistant", "the latest word")
        db.create_session("elsewhere", "telegram")
        db.append_message("elsewhere", "user", "even later")
        run("-c", "-q", "go on", home=home)
        assert db.get_messages("older")[-2]["content"] == "go on"


def test_a_session_held_by_another_process_is_refused_and_a_dead_one_is_not(server: ModelServer, home: Path) -> None:
    import os
    import socket

    with seed(home, "s") as db:
        db.hold_session("s", "another.example:1:abc")
        done = run("-r", "s", "-q", "x", home=home)
        assert done.status == 1 and "open in another process" in done.err and server.requests == []
        agreed = run("-y", "-r", "s", "-q", "still?", home=home)
        assert agreed.status == 0 and "another process" in agreed.err
        token = db.hold_session("s", "another.example:1:abc")
        db.release_lease("session:s", token)
        db.hold_session("s", f"{socket.gethostname()}:{os.getpid()}:abc")
        assert run("-r", "s", "-q", "x", home=home).status == 1
        gone = subprocess.Popen(["true"])
        gone.wait()  # a process that is certainly over
        token = db.hold_session("s", f"{socket.gethostname()}:{os.getpid()}:abc")
        db.release_lease("session:s", token)
        db.hold_session("s", f"{socket.gethostname()}:{gone.pid}:abc")
        assert run("-r", "s", "-q", "x", home=home).status == 0


# ---------------------------------------------------------------------------------------------- what is restored


def where(server: ModelServer, home: Path, *words: str, cwd: Path) -> tuple[str, str]:
    server.scripts = [[Call("terminal", command="pwd")], ["done"]]
    done = run(*words, "-q", "where?", home=home, cwd=cwd)
    assert done.status == 0, done
    return server.requests[-1]["messages"][-1]["content"], done.err


def test_the_folder_is_restored_unless_one_says_no(server: ModelServer, home: Path, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    assert str(there) in where(server, home, cwd=there)[0]
    assert str(there) in where(server, home, "-c", cwd=here)[0]
    assert str(here) in where(server, home, "-c", "--no-restore-cwd", cwd=here)[0]
    there.rmdir()
    output, notes = where(server, home, "-c", cwd=here)
    assert str(here) in output and f"{there} is gone" in notes


def test_the_model_is_restored_if_the_endpoint_still_has_it(server: ModelServer, home: Path) -> None:
    server.models = ("test-model", "other-model")
    run("-q", "x", "--model", "other-model", home=home)
    assert server.requests[-1]["model"] == "other-model"
    done = run("-c", "-q", "x", home=home)
    assert server.requests[-1]["model"] == "other-model" and done.err == ""
    run("-c", "-q", "x", "--model", "test-model", home=home)
    assert server.requests[-1]["model"] == "test-model"
    assert run("-c", "-q", "x", home=home).err == "" and server.requests[-1]["model"] == "test-model"
    run("-c", "-q", "x", "--model", "other-model", home=home)
    server.models = ("test-model",)
    done = run("-c", "-q", "x", home=home)
    assert server.requests[-1]["model"] == "test-model" and "other-model" in done.err


def test_a_conversation_begun_with_another_providers_model_goes_on_with_it_or_names_the_missing_key(
    server: ModelServer, home: Path
) -> None:
    (home / "config.yaml").unlink()
    here = {"OLLAMA_HOST": server.base_url.removesuffix("/v1"), "HERMES_NO_LOCAL": "LM Studio,vLLM,llama.cpp"}
    groq = {**here, "GROQ_API_KEY": "gsk_1", "HTTPS_PROXY": "http://127.0.0.1:9"}  # nothing leaves this machine
    first = run("-q", "x", "--model", "groq/llama-9", home=home, env=groq)
    assert first.status == 3 and "api.groq.com" in first.err
    again = run("-c", "-q", "x", home=home, env=groq)
    assert again.status == 3 and "api.groq.com" in again.err and server.requests == []
    done = run("-c", "-q", "x", home=home, env=here)
    assert done.status == 0 and server.requests[-1]["model"] == "test-model"
    (note,) = done.err.splitlines()
    assert "llama-9" in note and "GROQ_API_KEY" in note


def test_the_system_prompt_is_restored(server: ModelServer, home: Path) -> None:
    seed(home, "s", system_prompt="You are a pirate.").close()
    run("-r", "s", "-q", "x", home=home)
    assert server.requests[-1]["messages"][0] == {"role": "system", "content": "You are a pirate."}


# ---------------------------------------------------------------------------------------------- trouble


def one_line(done: Any, status: int = 1) -> None:
    assert done.status == status and done.out == "" and done.err.startswith("hermes: ") and done.err.count("\n") == 1, (
        done
    )


def test_a_corrupt_config_is_one_line_before_anything_is_asked(server: ModelServer, home: Path) -> None:
    (home / "config.yaml").write_text("model: [")
    one_line(run("-q", "x", home=home))
    (home / "config.yaml").write_text("sessions: {retention_days: soon}\n")
    done = run("-q", "x", home=home)
    one_line(done)
    assert "expected a number" in done.err and server.requests == []


def test_a_dead_model_server_is_one_line_and_the_question_is_kept(server: ModelServer, home: Path, look: Look) -> None:
    server.close()
    done = run("-q", "anybody?", home=home)
    assert done.status == 3 and done.out == "" and "Traceback" not in done.err
    assert done.err.splitlines()[-1].startswith("hermes: ")
    assert look(messages) == [("user", "anybody?")]


def test_a_home_that_cannot_be_written_is_one_line(server: ModelServer, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    one_line(run("-q", "x", home=blocked / "home", env={"HERMES_NO_LOCAL": "1"}))


def test_a_store_that_can_only_be_read_is_refused(server: ModelServer, home: Path) -> None:
    import sqlite3

    seed(home, "s").close()
    with sqlite3.connect(home / "state.db") as file:
        file.execute("UPDATE schema_version SET version = 999")
        file.execute("PRAGMA application_id = 0")  # a file of ours would be taken back
    file.close()
    done = run("-q", "x", home=home)
    assert done.status == 1 and "only read" in done.err and "Traceback" not in done.err


def test_unknown_options_and_stray_words_are_wrong_usage(server: ModelServer, home: Path) -> None:
    for words in (("--nonsense",), ("chat", "stray", "words"), ("chat", "-q")):
        done = run(*words, home=home)
        assert done.status == 2 and done.err.count("\n") == 1, done


def test_without_any_model_the_history_answers(home: Path) -> None:
    with seed(home, "s") as db:
        db.append_message("s", "assistant", "We decided to keep the recursive parser.")
    done = run("-q", "what did we decide about the parser?", home=home)
    assert done.status == 0 and "recursive parser" in done.out


# ---------------------------------------------------------------------------------------------- tidying


def while_it_answers(server: ModelServer, home: Path, condition: Callable[[], Any]) -> None:
    """Ask something, and wait for this before the reply is at its end."""
    gate = Gate()
    server.scripts = [["wait ", gate, "done"]]
    child = Forked([*PROGRAM, "-q", "x"], env=environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until(condition)
    gate.open.set()
    assert child.wait(60) == 0


def test_old_sessions_are_pruned_at_the_start_if_wanted(server: ModelServer, home: Path) -> None:
    with seed(home, "old") as db:
        db.end_session("old", "user_exit")
        run("-q", "x", home=home)
        assert db.get_session("old") is not None
        with (home / "config.yaml").open("a") as config:
            config.write("sessions: {auto_prune: true, retention_days: 30}\n")
        while_it_answers(server, home, lambda: db.get_session("old") is None)
        assert db.get_session("old") is None


def test_what_was_in_the_trash_long_enough_goes_with_the_next_start(server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("sessions: {trash_days: 0}\n")
    with seed(home, "old") as db:
        db.trash_session("old")
        while_it_answers(server, home, lambda: not db.list_trash())
        assert db.list_trash() == []


def test_an_mcp_server_that_fails_is_a_note_and_the_rest_works(server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("mcp_servers: {broken: {command: /nowhere/at-all}}\n")
    done = run("-q", "x", home=home)
    assert done.status == 0 and done.out == "That is all I have to say.\n"
    assert "broken" in done.err and done.err.count("\n") == 1
    names = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert {"session_search", "terminal", "memory", "skills", "process"} <= set(names)


def test_after_an_empty_reply_the_hint_is_one_that_works_in_a_shell(home: Path) -> None:
    with Wire([sse(end(), "[DONE]")]) as wire:
        (home / "config.yaml").write_text(f"model: {{default: wire-1, base_url: '{wire.base_url}', api_key: x}}\n")
        done = run("-q", "hello?", home=home)
        events = run("-q", "hello?", "--stream-json", home=home)
    assert (done.status, done.out) == (0, "")
    assert "empty reply" in done.err and done.err.count("\n") == 1
    assert '{"type": "notice", "text": "The model gave an empty reply."}' in events.out.splitlines()


def test_a_question_longer_than_the_window_is_answered_and_a_line_says_that_it_was_cut(home: Path, look: Look) -> None:
    def small(body: dict[str, Any]) -> Answer:
        if len(json.dumps(body)) > 4 * 8_192:
            return error(400, {"error": {"message": "too many tokens", "code": "context_length_exceeded"}})
        return said("A long story.")

    story = "It began in spring. " + "And then it went on. " * 5_000 + "It ended in autumn."
    with Wire(small) as wire:
        (home / "config.yaml").write_text(
            f"model: {{default: wire-1, base_url: '{wire.base_url}', api_key: x, context_length: 8192}}\n"
        )
        done = run("-q", "-", home=home, input=story)
        (sent,) = [str(one["content"]) for one in wire.bodies[-1]["messages"] if "spring" in str(one["content"])]
    assert (done.status, done.out) == (0, "A long story.\n")
    assert "too long for wire-1" in done.err
    assert "characters left out" in sent and "It ended in autumn." in sent
    assert story in str(look(messages)[0])


def test_ctrl_c_while_the_piped_text_is_read_is_status_130_and_claims_nothing(server: ModelServer, home: Path) -> None:
    child = start("-q", "count", home=home, stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write("x" * 300_000)  # more than a pipe holds: when it is written, the program is reading
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err.strip()) == (130, "stopped") and server.requests == []


def test_a_question_is_read_as_utf_8_in_any_locale(server: ModelServer, home: Path, look: Look) -> None:
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    words = [*PROGRAM, "-q", "ünï 日本"]
    assert subprocess.run(words, env=environment(home, plain), stdin=subprocess.DEVNULL, check=False).returncode == 0
    assert look(messages)[0] == ("user", "ünï 日本")
    assert server.requests[0]["messages"][-1]["content"] == "ünï 日本"
