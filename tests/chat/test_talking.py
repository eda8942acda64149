"""Talking in a terminal the way a person does: start, talk, interrupt, leave, come back."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.chat.server import Call, Gate, ModelServer
from tests.support.screen import Screen
from tests.support.waiting import until

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def only_session(db: Any) -> dict[str, Any]:
    rows = db.list_sessions_rich(limit=10, include_children=True)
    assert len(rows) == 1, rows
    return dict(db.get_session(rows[0]["id"]))


def said(db: Any, session_id: str | None = None) -> list[tuple[str, Any]]:
    session_id = session_id or only_session(db)["id"]
    return [(row["role"], row["content"]) for row in db.get_messages(session_id)]


def test_a_conversation_is_saved_and_leaving_says_how_to_come_back(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    server.scripts = [["Hello ", "there, **friend**."]]
    screen = open_screen()
    assert "test-model" in screen.text()
    screen.line("good morning")
    screen.wait_for("Hello there, friend.")
    screen.leave()
    row = look(only_session)
    assert row["source"] == "cli" and row["end_reason"] == "user_exit"
    assert re.fullmatch(r"\d{8}_\d{6}_[0-9a-f]{6}", row["id"])
    assert look(said) == [("user", "good morning"), ("assistant", "Hello there, **friend**.")]
    text = screen.text()
    assert f"Session   {row['id']}" in text and "Messages  2" in text and f"hermes -r {row['id']}" in text
    assert f"Title     {row['title']}" in text and "Duration" in text


def test_saying_nothing_leaves_nothing(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen()
    screen.leave()
    assert "Session" not in screen.text()
    assert look(lambda db: db.session_count()) == 0


def test_ctrl_c_stops_a_reply_and_keeps_what_was_said(server: ModelServer, open_screen: Open, look: Look) -> None:
    gate = Gate()
    server.scripts = [["The first half", gate, " and the second"], ["All good."]]
    screen = open_screen()
    screen.line("tell me")
    screen.wait_for("The first half")
    screen.press("C-c")
    screen.wait_for("so far is kept")
    gate.open.set()
    screen.line("go on")
    screen.wait_for("All good.")
    screen.leave()
    assert look(said)[:3] == [("user", "tell me"), ("assistant", "The first half"), ("user", "go on")]
    assert [m["content"] for m in server.requests[1]["messages"]][-2:] == ["The first half", "go on"]


def test_ctrl_c_right_behind_enter_stops_the_turn(server: ModelServer, open_screen: Open, look: Look) -> None:
    gate = Gate()
    server.scripts = [[gate, "Too late."]]
    screen = open_screen()
    screen.type("tell me\r\x03")  # read by the prompt in one piece
    screen.wait_for("Stopped")
    gate.open.set()
    screen.leave()
    assert look(said)[:1] == [("user", "tell me")] and "Too late" not in screen.history()


def test_ctrl_c_at_the_prompt_says_how_to_leave(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen()
    screen.press("C-c")
    screen.wait_for("Ctrl-D or /quit leaves.")
    screen.line("/quit")
    assert screen.wait_until_over() == 0


def test_continuing_shows_the_recap_and_sends_the_whole_history(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    server.scripts = [["Two and two is four."], ["And three more is seven."]]
    first = open_screen()
    first.line("two and two?")
    first.wait_for("is four.")
    first.leave()
    second = open_screen("-c", until="")
    text = second.wait_for("Hermes ·")
    assert "● two and two?" in text and "◆ Two and two is four." in text
    second.line("and three?")
    second.wait_for("is seven.")
    second.leave()
    assert [m["content"] for m in server.requests[1]["messages"][1:]] == [
        "two and two?",
        "Two and two is four.",
        "and three?",
    ]
    row = look(only_session)
    assert row["end_reason"] == "user_exit" and row["message_count"] == 4


def test_compressing_goes_on_in_number_2_which_the_title_then_finds(
    server: ModelServer, open_screen: Open, look: Look, home: Path
) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("compression: {protect_last_n: 2}\n")
    server.task_answer = lambda body: "Goal: count. Decisions: count to five."
    server.scripts = [[f"Number {n}."] for n in range(1, 6)]
    screen = open_screen()
    screen.line("/title counting")
    for n in range(1, 6):
        screen.line(f"say {n}")
        screen.wait_for(f"Number {n}.")
    screen.line("/compress")
    text = screen.wait_for("Nothing was deleted")
    assert '"counting #2"' in " ".join(text.split())
    screen.leave()
    tip = look(lambda db: db.resolve_session_by_title("counting"))
    assert look(lambda db: db.get_session_title(tip)) == "counting #2"
    assert f"hermes -r {tip}" in screen.history()
    again = open_screen("-c", "counting", until="")
    again.wait_for("counting #2")
    again.line("say six")
    again.wait_for("That is all I have to say.")
    again.leave()
    assert look(lambda db: db.get_messages(tip))[-1]["content"] == "That is all I have to say."
    old = look(lambda db: db.get_session(tip)["parent_session_id"])
    assert [text for _, text in look(lambda db: said(db, old))] == [
        x for n in range(1, 6) for x in (f"say {n}", f"Number {n}.")
    ]


def test_killed_in_mid_reply_nothing_is_lost_and_it_goes_on_at_once(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    gate = Gate()
    server.scripts = [["Half of an", gate, " answer"], ["Where were we?"]]
    screen = open_screen()
    screen.line("a question")
    screen.wait_for("Half of an")
    os.kill(screen.pid(), signal.SIGKILL)
    screen.wait_until_over()
    gate.open.set()
    again = open_screen("-c", until="● a question")
    again.wait_for("❯")
    again.line("hello again")
    again.wait_for("Where were we?")
    again.leave()
    assert look(said) == [
        ("user", "a question"),
        ("assistant", "Half of an"),
        ("user", "hello again"),
        ("assistant", "Where were we?"),
    ]


def test_sigterm_at_the_prompt_ends_the_session_properly(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen()
    screen.line("hello")
    screen.wait_for("That is all")
    os.kill(screen.pid(), signal.SIGTERM)
    assert screen.wait_until_over() == 128 + signal.SIGTERM
    row = look(only_session)
    assert row["end_reason"] == "user_exit" and not look(lambda db: db.is_live(row["id"]))
    assert f"hermes -r {row['id']}" in screen.text()


def test_sigterm_in_mid_reply_keeps_what_was_said(server: ModelServer, open_screen: Open, look: Look) -> None:
    gate = Gate()
    server.scripts = [["One moment", gate]]
    screen = open_screen()
    screen.line("hello")
    screen.wait_for("One moment")
    os.kill(screen.pid(), signal.SIGTERM)
    assert screen.wait_until_over() == 128 + signal.SIGTERM
    gate.open.set()
    assert look(said) == [("user", "hello"), ("assistant", "One moment")]
    assert look(only_session)["end_reason"] == "user_exit"


def test_a_closed_terminal_ends_the_session_properly(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen()
    screen.line("hello")
    screen.wait_for("That is all")
    pid = screen.pid()
    screen.close()
    until(lambda: not psutil.pid_exists(pid), "the program ends")
    assert look(only_session)["end_reason"] == "user_exit"


def test_several_lines_are_one_message(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen()
    screen.type("one")
    screen.press("M-Enter")
    screen.type("two")
    screen.press("C-j")
    screen.type("three")
    screen.press("Enter")
    screen.wait_for("That is all")
    assert look(said)[0] == ("user", "one\ntwo\nthree")


def test_a_paste_of_a_megabyte_arrives_whole(server: ModelServer, open_screen: Open, look: Look) -> None:
    text = "\n".join(f"line {n} with some words in it" for n in range(35_000))
    assert len(text) > 1_000_000
    screen = open_screen()
    screen.type("look: ")
    screen.paste(text)
    screen.wait_for("[pasted text 1: 35,000 lines")
    screen.press("Enter")
    screen.wait_for("That is all", timeout=120)
    assert look(said)[0] == ("user", "look: " + text)


def test_tool_calls_are_one_line_each_and_a_destructive_one_asks(
    server: ModelServer, open_screen: Open, look: Look, tmp_path: Path
) -> None:
    (tmp_path / "precious.txt").write_text("x")
    server.scripts = [
        [Call("terminal", command="rm precious.txt")],
        ["As you wish."],
        [Call("terminal", command="rm precious.txt")],
        ["Gone."],
    ]
    screen = open_screen(cwd=tmp_path)
    screen.line("remove it")
    screen.wait_for("[y/N]")
    screen.press("Enter")
    screen.wait_for("As you wish.")
    assert (tmp_path / "precious.txt").exists()
    screen.line("really remove it")
    screen.wait_for("[y/N]", times=2)
    screen.line("y")
    text = screen.wait_for("Gone.")
    assert not (tmp_path / "precious.txt").exists()
    assert re.search(r"✓ terminal  rm precious.txt  \d+\.\ds", text)


def test_ctrl_c_at_a_question_means_no_and_stops_the_turn(
    server: ModelServer, open_screen: Open, look: Look, tmp_path: Path
) -> None:
    (tmp_path / "precious.txt").write_text("x")
    server.scripts = [[Call("terminal", command="rm precious.txt")], ["never asked for"], ["never asked for"]]
    screen = open_screen(cwd=tmp_path)
    screen.line("remove it")
    screen.wait_for("[y/N]")
    screen.press("C-c")
    screen.wait_for("Stopped.")
    assert (tmp_path / "precious.txt").exists() and len(server.requests) == 1
    assert [role for role, _ in look(said)] == ["user", "assistant", "tool"]
    screen.line("remove it again")
    screen.wait_for("never asked for")


def test_what_was_typed_before_a_question_is_no_answer_to_it(
    server: ModelServer, home: Path, open_screen: Open, tmp_path: Path
) -> None:
    queueing(home)
    (tmp_path / "precious.txt").write_text("x")
    gate = Gate()
    server.scripts = [["Let me see", gate, Call("terminal", command="rm precious.txt")], ["As you wish."]]
    screen = open_screen(cwd=tmp_path)
    screen.line("remove it")
    screen.wait_for("Let me see")
    screen.line("y")
    gate.open.set()
    screen.wait_for("[y/N]")
    screen.press("Enter")
    screen.wait_for("As you wish.")
    assert (tmp_path / "precious.txt").exists()


def test_tab_completes_commands_and_titles(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen()
    screen.line("/title a rather special name")
    screen.line("hello")
    screen.wait_for("That is all")
    screen.line("/new")
    screen.wait_for("A new session")
    screen.type("/res")
    screen.press("Tab")
    screen.wait_for("❯ /resume")
    screen.type("spec")
    screen.press("Tab")
    screen.wait_for("❯ /resume a rather special name")
    screen.press("Enter")
    screen.wait_for("● hello")


def test_lines_typed_before_come_back_in_the_next_conversation(
    server: ModelServer, open_screen: Open, home: Path
) -> None:
    first = open_screen()
    first.line("a memorable question")
    first.wait_for("That is all")
    first.leave()
    assert (home / "history").stat().st_mode & 0o777 == 0o600
    second = open_screen()
    second.press("Up")
    second.wait_for("❯ a memorable question")


def test_ctrl_c_stops_a_compression_and_nothing_has_changed(
    server: ModelServer, open_screen: Open, look: Look, home: Path
) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("compression: {protect_last_n: 2}\n")
    begun, release = threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> str:
        if len(body["messages"]) and "## Goal" in str(body["messages"]):
            begun.set()
            release.wait(120)
        return "A Title Of Some Words"

    server.task_answer = slow
    screen = open_screen()
    for number in range(1, 5):
        screen.line("hello")
        screen.wait_for("That is all", times=number)
    screen.line("/compress")
    assert begun.wait(60)
    screen.press("C-c")
    screen.wait_for("Stopped.")
    release.set()
    screen.line("hello")
    screen.wait_for("That is all", times=5)
    assert look(lambda db: db.session_count()) == 1 and len(look(said)) == 10


def test_a_reply_longer_than_the_screen_scrolls_by_and_nothing_of_it_is_lost(
    server: ModelServer, open_screen: Open
) -> None:
    code = "```python\n" + "".join(f"value_{n} = {n}\n" for n in range(40)) + "```\n\n"
    text = code + "\n\n".join(f"Paragraph {n}. 日本語" for n in range(40)) + "\n\nThe end."
    server.scripts = [[text[at : at + 5] for at in range(0, len(text), 5)]]
    screen = open_screen(width=40, height=10)
    screen.line("talk")
    screen.wait_for("The end.")
    screen.leave()
    shown = screen.history()
    assert [n for n in range(40) if shown.count(f"value_{n} = {n}\n") != 1] == []
    assert [n for n in range(40) if shown.count(f"Paragraph {n}. 日本語") != 1] == []


def test_where_output_is_piped_only_replies_go_there(
    server: ModelServer, open_screen: Open, home: Path, tmp_path: Path
) -> None:
    import shlex

    from tests.support.program import PROGRAM, environment

    out = tmp_path / "out.txt"
    with Screen(["sh", "-c", f"{shlex.join(PROGRAM)} > {out}"], env=environment(home)) as screen:
        screen.wait_for(">")
        screen.line("hello")
        screen.wait_for(">", times=2)
        screen.leave()
        assert "hermes -r" in screen.text()
    assert out.read_text() == "That is all I have to say.\n"


def test_an_unknown_command_is_one_line_with_a_suggestion(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen()
    screen.line("/titel x")
    screen.wait_for("There is no command /titel; did you mean /title?")
    screen.line("//titel x")
    screen.wait_for("That is all")
    assert look(said)[0] == ("user", "/titel x")


def queueing(home: Path) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("display: {busy: queue}\n")


def test_a_line_typed_during_a_reply_stops_it_and_is_sent(server: ModelServer, open_screen: Open, look: Look) -> None:
    gate = Gate()
    server.scripts = [["The wrong way", gate, " never said"], ["Second reply."]]
    screen = open_screen()
    screen.line("first")
    screen.wait_for("The wrong way")
    screen.press("Enter")  # an empty line is no wish
    screen.type("no, the other")
    screen.wait_for("❯ no, the other")
    screen.type(" one")
    screen.press("Enter")
    screen.wait_for("Second reply.")
    gate.open.set()
    screen.leave()
    assert [text for _, text in look(said)] == ["first", "The wrong way", "no, the other one", "Second reply."]
    assert screen.history().count("❯ no, the other one") == 1


def test_what_is_typed_during_a_reply_is_sent_after_it_if_wanted(
    server: ModelServer, home: Path, open_screen: Open, look: Look
) -> None:
    queueing(home)
    gate = Gate()
    server.scripts = [["Wait", gate, " a bit."], ["Second reply."], ["Third."]]
    screen = open_screen()
    screen.line("first")
    screen.wait_for("Wait")
    screen.line("second")
    screen.wait_for("queued")
    screen.paste("one\ntwo\nthree")
    screen.wait_for("❯ one two three")
    gate.open.set()
    screen.wait_for("Second reply.")
    screen.wait_for("  three")  # pasted lines wait at the prompt; only Enter sends them
    screen.press("Enter")
    screen.wait_for("Third.")
    screen.leave()
    assert [text for _, text in look(said)] == [
        "first", "Wait a bit.", "second", "Second reply.", "one\ntwo\nthree", "Third.",
    ]  # fmt: skip


def test_after_ctrl_c_nothing_typed_before_is_sent_by_itself(
    server: ModelServer, home: Path, open_screen: Open, look: Look
) -> None:
    queueing(home)
    gate = Gate()
    server.scripts = [["Wait", gate], ["Second reply."]]
    screen = open_screen()
    screen.line("first")
    screen.wait_for("Wait")
    screen.line("second thoughts")
    screen.wait_for("queued")
    screen.press("C-c")
    screen.wait_for("so far is kept")
    screen.wait_for("❯ second thoughts")
    gate.open.set()
    screen.line(" after all")
    screen.wait_for("Second reply.")
    assert [text for role, text in look(said) if role == "user"] == ["first", "second thoughts after all"]


def test_a_session_open_elsewhere_is_continued_in_a_branch_or_not_at_all(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    first = open_screen()
    first.line("hello")
    first.wait_for("That is all")
    second = open_screen("-c", until="is open in another process")
    second.press("Enter")
    assert second.wait_until_over() == 1
    third = open_screen("-c", until="is open in another process")
    third.line("y")
    third.wait_for("● hello")
    third.line("in the branch")
    third.wait_for("That is all", times=2)
    assert look(lambda db: db.session_count()) == 2
    assert len(look(lambda db: said(db, db.list_sessions_rich(limit=5)[-1]["id"]))) == 2


def test_a_dumb_terminal_gets_plain_text(server: ModelServer, open_screen: Open, look: Look) -> None:
    server.scripts = [["plain **text**"]]
    screen = open_screen(terminal="dumb", until="Hermes ·")
    screen.line("hi")
    screen.wait_for("plain text")
    screen.leave()
    assert len(look(said)) == 2


def test_one_question_on_a_terminal_is_rendered_and_says_how_to_go_on(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    server.scripts = [["It is **four**."]]
    screen = open_screen("-q", "two and two?", until="")
    assert screen.wait_until_over() == 0
    assert "It is four." in screen.text() and f"hermes -r {look(only_session)['id']}" in screen.text()
    assert "Hermes ·" not in screen.text()


def test_the_line_that_resumes_is_whole_on_a_narrow_screen(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen(width=32)
    screen.line("good morning")
    screen.wait_for("That is all")
    screen.press("C-d")
    assert screen.wait_until_over() == 0
    assert f"hermes -r {look(only_session)['id']}" in screen.history()


def test_the_recap_is_gold_for_you_green_for_the_agent_and_dim(server: ModelServer, open_screen: Open) -> None:
    first = open_screen()
    first.line("hello")
    first.wait_for("That is all")
    first.press("C-d")
    first.wait_until_over()
    second = open_screen("-c", until="Hermes ·")
    styled = second.styled()
    assert re.search(r"\x1b\[[0-9;]*2[0-9;]*38;5;220m●|\x1b\[2m\x1b\[38;5;220m●", styled), styled
    assert re.search(r"\x1b\[[0-9;]*32m◆|\x1b\[2m\x1b\[32m◆", styled), styled


def test_sigterm_at_a_question_ends_properly(
    server: ModelServer, open_screen: Open, look: Look, tmp_path: Path
) -> None:
    (tmp_path / "precious.txt").write_text("x")
    server.scripts = [[Call("terminal", command="rm precious.txt")]]
    screen = open_screen(cwd=tmp_path)
    screen.line("remove it")
    screen.wait_for("[y/N]")
    os.kill(screen.pid(), signal.SIGTERM)
    assert screen.wait_until_over() == 128 + signal.SIGTERM
    assert (tmp_path / "precious.txt").exists() and look(only_session)["end_reason"] == "user_exit"
