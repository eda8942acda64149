"""The effect of each slash command on the conversation and on the record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes.chat.input_line import completions
from hermes.commands.registry import GATEWAY, TERMINAL, known
from hermes.config import Config, load_config
from tests.chat.server import Call, ModelServer
from tests.commands.conftest import Talk

Make = Callable[..., Talk]


def numbered(server: ModelServer, count: int) -> None:
    server.scripts = [[f"answer {n}"] for n in range(1, count + 1)]


def test_help_lists_every_command_that_works_here(talk: Talk) -> None:
    heard = talk.type("/help")
    assert all(f"/{one.name}" in heard for one in known(TERMINAL))
    assert "/sethome" not in heard
    assert talk.type("/?") == heard
    assert talk.type("/help undo").startswith("/undo [n | redo]")


def test_a_command_of_another_place_says_where_it_works(talk: Talk) -> None:
    talk.conversation.where = GATEWAY  # type: ignore[misc]
    assert "the terminal" in talk.type("/quit") and not talk.conversation.leaving
    assert "/quit" not in talk.type("/help")


@pytest.mark.parametrize("line", ["/", "/xyz", "/titel", "/TITEL some words"])
def test_an_unknown_command_is_one_line_and_nothing_is_sent(talk: Talk, line: str) -> None:
    heard = talk.type(line)
    assert heard.startswith("There is no command") and "\n" not in heard
    assert ("did you mean /title?" in heard) == ("tite" in line.lower())
    assert talk.db.session_count() == 0


def test_two_slashes_and_paths_are_sent(talk: Talk) -> None:
    talk.type("//title x")
    talk.type("/etc/hosts is empty")
    assert [text for text in talk.said() if text.startswith("/")] == ["/title x", "/etc/hosts is empty"]


# ---------------------------------------------------------------------------------------------- title


def test_a_title_before_the_first_message_is_applied_with_it(talk: Talk) -> None:
    assert "no title" in talk.type("/title")
    assert "first message" in talk.type("/title  my   plan ")
    assert talk.db.session_count() == 0 and talk.type("/title") == "Title: my plan"
    talk.type("hello")
    assert talk.db.get_session_title(talk.session_id) == "my plan"


def test_a_taken_title_is_refused_and_its_holder_named(talk: Talk) -> None:
    talk.type("hello")
    talk.type("/title taken")
    holder = talk.session_id
    talk.type("/new")
    assert holder in talk.type("/title taken")
    talk.type("hello")
    assert holder in talk.type("/title taken")
    assert talk.db.get_session_title(talk.session_id) != "taken"


def test_a_title_taken_in_the_meantime_gets_a_number(talk: Talk) -> None:
    talk.type("/title mine")
    talk.db.create_session("other", "cli")
    talk.db.set_session_title("other", "mine")
    assert 'called "mine #2"' in talk.type("hello")
    assert talk.db.get_session_title(talk.session_id) == "mine #2"


@pytest.mark.parametrize("bad", ["x" * 101, "\u200b"])
def test_an_impossible_title_is_one_line(talk: Talk, bad: str) -> None:
    talk.type("hello")
    before = talk.db.get_session_title(talk.session_id)
    assert talk.type(f"/title {bad}").startswith("/title: ")
    assert talk.db.get_session_title(talk.session_id) in (before, "Talking About Test Things")


# ---------------------------------------------------------------------------------------------- elsewhere


def test_new_keeps_the_old_session_and_says_how_to_return(talk: Talk) -> None:
    talk.type("hello")
    old = talk.session_id
    assert f"/resume {old}" in talk.type("/new")
    assert talk.session_id != old and talk.db.get_session(old)["end_reason"] == "user_exit"  # type: ignore[index]
    assert not talk.db.is_live(old)
    talk.type("again")
    assert talk.said(old)[0] == "hello" and talk.said()[0] == "again"


def test_resume_by_title_prefix_or_id_reopens_the_session(talk: Talk) -> None:
    talk.type("/title the old one")
    talk.type("hello")
    old = talk.session_id
    for words in ("the old one", old, old[:-1]):
        talk.type("/new")
        assert f"recap of {old}" in talk.type(f"/resume {words}")
        assert talk.session_id == old and talk.db.get_session(old)["ended_at"] is None  # type: ignore[index]
        assert talk.db.is_live(old)
    talk.type("more")
    assert [text for text in talk.said() if text in ("hello", "more")] == ["hello", "more"]
    assert talk.type(f"/resume {old}").startswith("That is")


def test_resume_alone_offers_the_latest(talk: Talk) -> None:
    assert "no other session" in talk.type("/resume")
    talk.type("hello")
    old = talk.session_id
    talk.type("/new")
    talk.type("/resume")
    assert old in talk.voice.options[0] and talk.session_id != old
    talk.voice.choice = 0
    talk.type("/resume")
    assert talk.session_id == old


def test_resume_of_what_is_unknown_or_ambiguous_stays_here(talk: Talk) -> None:
    for name in ("abc1", "abc2"):
        talk.db.create_session(name, "cli")
    talk.db.set_session_title("abc1", "garden plans")
    here = talk.session_id
    assert '"garden plans"' in talk.type("/resume gardn plans")
    heard = talk.type("/resume abc")
    assert "abc1" in heard and "abc2" in heard
    assert talk.session_id == here


def test_a_branch_goes_its_own_way(talk: Talk, server: ModelServer) -> None:
    numbered(server, 3)
    assert "nothing to branch" in talk.type("/branch")
    talk.type("one")
    talk.type("two")
    talk.type("/title plan")
    old = talk.session_id
    first_answer = talk.db.get_messages(old)[1]["id"]
    assert f"/resume {old}" in talk.type(f"/branch {first_answer}")
    assert talk.said() == ["one", "answer 1"] and talk.db.get_session_title(talk.session_id) == "plan (branch)"
    talk.type("another two")
    assert talk.said()[-2:] == ["another two", "answer 3"]
    assert talk.said(old) == ["one", "answer 1", "two", "answer 2"]
    assert talk.db.get_session(old)["end_reason"] == "branched"  # type: ignore[index]


@pytest.mark.parametrize("words", ["99999999", "x", "-1", "1.5", "9" * 30])
def test_a_branch_from_nowhere_is_refused(talk: Talk, words: str) -> None:
    talk.type("hello")
    here = talk.session_id
    assert talk.type(f"/branch {words}").startswith("/branch: ")
    assert talk.session_id == here and talk.db.session_count() == 1


# ---------------------------------------------------------------------------------------------- changing


def test_undo_takes_back_exchanges_and_redo_brings_them_back(talk: Talk, server: ModelServer) -> None:
    numbered(server, 4)
    assert "nothing to undo" in talk.type("/undo") and "nothing to restore" in talk.type("/undo redo")
    for text in ("one", "two", "three"):
        talk.type(text)
    assert "/undo redo" in talk.type("/undo 2") and talk.said() == ["one", "answer 1"]
    assert "4 messages" in talk.type("/undo redo") and len(talk.said()) == 6
    talk.type("/undo")
    talk.type("other three")
    assert [m["content"] for m in server.requests[-1]["messages"][1:]] == [
        "one",
        "answer 1",
        "two",
        "answer 2",
        "other three",
    ]
    assert talk.db.search_messages('"answer 3"') == []
    talk.type("/undo 99")
    assert talk.said() == []


@pytest.mark.parametrize("words", ["0", "-1", "x", "1 2", "99999999999999"])
def test_undo_of_nonsense_changes_nothing(talk: Talk, words: str) -> None:
    talk.type("hello")
    assert talk.type(f"/undo {words}").startswith("/undo: ")
    assert len(talk.said()) == 2


def test_retry_asks_the_last_question_again(talk: Talk, server: ModelServer) -> None:
    assert "nothing to answer again" in talk.type("/retry")
    numbered(server, 2)
    talk.type("one")
    talk.type("/retry")
    assert talk.said() == ["one", "answer 2"]
    assert [m["content"] for m in server.requests[1]["messages"][1:]] == ["one"]


def test_compress_says_that_nothing_is_deleted_and_goes_on(make_talk: Make, server: ModelServer) -> None:
    config = Config()
    config.compression.protect_last_n = 2
    talk = make_talk(config=config)
    numbered(server, 6)
    assert "nothing to compress" in talk.type("/compress")
    for n in range(5):
        talk.type(f"question {n}")
    talk.type("/title long talk")
    old, before = talk.session_id, talk.said()
    server.task_answer = lambda body: "## Goal\n- to remember the focus"
    heard = talk.type("/compress the focus")
    assert "Nothing was deleted" in heard and '"long talk #2"' in heard
    assert "the focus" in str(server.tasks)  # a title may be asked for after it
    assert talk.session_id != old and talk.said(old) == before
    assert talk.db.is_live(talk.session_id) and not talk.db.is_live(old)
    talk.type("and now?")
    assert talk.said()[-1] == "answer 6" and len(talk.said(old)) == len(before)


def test_the_summary_is_no_exchange_that_undo_could_take_back(make_talk: Make, server: ModelServer) -> None:
    config = Config()
    config.compression.protect_last_n = 2
    talk = make_talk(config=config)
    numbered(server, 5)
    for n in range(5):
        talk.type(f"question {n}")
    server.task_answer = lambda body: "## Goal\n- something"
    talk.type("/compress")
    assert talk.said()[:2] == ["question 0", "answer 1"] and talk.said()[-1] == "answer 5"
    talk.type("/undo")
    assert talk.said()[-1].startswith("[Summary of")
    talk.type("/undo redo")
    assert talk.said()[-1] == "answer 5"


def test_tags_and_pins(talk: Talk) -> None:
    assert "nothing to tag" in talk.type("/tag work") and "nothing to pin" in talk.type("/pin")
    talk.type("hello")
    assert "no tags" in talk.type("/tag")
    assert talk.type("/tag work #later") == "Tags: #later #work"
    assert talk.type("/tag -later") == "Tags: #work"
    assert talk.type("/tag -").startswith("/tag: ")
    talk.type("/pin")
    assert talk.db.get_session(talk.session_id)["pinned_at"] is not None  # type: ignore[index]
    talk.type("/pin off")
    assert talk.db.get_session(talk.session_id)["pinned_at"] is None  # type: ignore[index]
    assert talk.type("/pin up").startswith("/pin: ")


def test_stop_ends_background_processes(talk: Talk, server: ModelServer) -> None:
    assert "Nothing runs" in talk.type("/stop")
    server.scripts = [[Call("terminal", command="sleep 1000", background=True)], ["started"]]
    talk.type("start it")
    assert talk.type("/stop") == "Stopped 1 background process."
    assert "Nothing runs" in talk.type("/stop")
    assert talk.type("go on") == "" and talk.said()[-1] == "That is all I have to say."


# ---------------------------------------------------------------------------------------------- asking


def test_status_and_usage_tell_what_the_record_holds(talk: Talk) -> None:
    talk.conversation.agent.titles = False  # a title's tokens count as well
    assert "not saved yet" in talk.type("/status") and "Nothing was used" in talk.type("/usage")
    talk.type("hello")
    talk.type("/tag work")
    status = talk.type("/status")
    assert talk.session_id in status and "#work" in status and "test-model" in status and str(Path.cwd()) in status
    usage = talk.type("/usage")
    assert re.search(r"Input +11 tokens", usage) and re.search(r"Output +7 tokens", usage)
    assert "unknown" in usage and "$" not in usage


def test_times_are_those_of_the_time_zone_in_the_config(make_talk: Make) -> None:
    talk = make_talk(config=Config(timezone="Pacific/Kiritimati"))  # 14 hours ahead of UTC
    evening = 1_700_000_000.0  # 2023-11-14 22:13 UTC
    talk.db.create_session(talk.session_id, "cli", started_at=evening)
    talk.db.append_message(talk.session_id, "user", "hello", timestamp=evening)
    assert "2023-11-15 12:13" in talk.type("/status")
    assert "  2023-11-15  hello" in talk.type("/sessions")


def test_history_shows_the_numbers_that_branch_takes(talk: Talk, server: ModelServer) -> None:
    numbered(server, 12)
    assert "no messages yet" in talk.type("/history")
    for n in range(12):
        talk.type(f"question {n}.")
    heard = talk.type("/history")
    assert " 4 " in heard and "question 1." not in heard and "question 2." in heard
    number = talk.db.get_messages(talk.session_id)[-1]["id"]
    assert re.search(rf"^ *{number}  agent: answer 12$", talk.type("/history 1"), re.MULTILINE)
    assert talk.type("/history x").startswith("/history: ")


def test_sessions_lists_and_searches(talk: Talk, server: ModelServer) -> None:
    assert "no sessions yet" in talk.type("/sessions")
    talk.type("where is the zebra kept?")
    zebra = talk.session_id
    talk.type("/new")
    talk.type("nothing special")
    heard = talk.type("/sessions")
    assert heard.index(talk.session_id) < heard.index(zebra) and "(this one)" in heard
    found = talk.type("/sessions zebra")
    assert zebra in found and "where is the zebra kept?" in found and talk.session_id not in found
    assert "No messages match" in talk.type("/sessions unicorn")
    assert "closely" in talk.type("/search where does Veronica keep the zebra?")
    talk.db.create_session("long", "cli")
    talk.db.replace_messages("long", [{"role": "user", "content": f"zebra {number}"} for number in range(500)])
    assert all(one in talk.type("/sessions zebra") for one in ("long", zebra))


def test_recall_shows_what_was_recalled_and_can_be_switched_off(talk: Talk) -> None:
    talk.db.create_session("old", "cli")
    talk.db.append_message("old", "user", "For the parser cache we chose DuckDB.")
    assert "Nothing was recalled" in talk.type("/recall")
    talk.type("Which database did we choose for the parser cache?")
    assert "DuckDB" in talk.type("/recall")
    assert "off" in talk.type("/recall off")
    talk.type("Which database did we choose for the parser cache, again?")
    assert "Nothing was recalled" in talk.type("/recall")
    assert "/recall off" in talk.type("/recall perhaps")


def test_why_names_the_conversation_of_a_line(
    talk: Talk, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("greet.py").write_text("print('good morning')\n")
    arguments = json.dumps({"path": str(tmp_path / "greet.py"), "content": "print('good morning')\n"})
    talk.db.create_session("old", "cli")
    talk.db.append_message("old", "user", "Greet people")
    calls = [{"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": arguments}}]
    talk.db.append_message("old", "assistant", "I write greet.py.", tool_calls=calls)
    said = talk.type("/why greet.py:1")
    assert "Greet people" in said and "hermes -r old" in said
    assert "other.py" in talk.type("/why other.py")
    assert "line 5" in talk.type("/why greet.py:5")
    assert "/why" in talk.type("/why")
    assert server.requests == []


# ---------------------------------------------------------------------------------------------- completion


def test_completion_offers_commands_and_what_may_follow(talk: Talk) -> None:
    talk.type("/title zoo plans")
    talk.type("hello")
    talk.type("/new")

    def offered(line: str) -> list[str]:
        return [text for text, _, _ in completions(talk.conversation, line)]

    assert {f"/{one.name}" for one in known(TERMINAL)} == {text.strip() for text in offered("/")}
    assert offered("/und") == ["/undo "] and offered("/undo r") == ["redo"]
    assert offered("/resume PLANS") == ["zoo plans"]
    assert offered("hello") == offered("//t") == offered("/nope x") == offered("/title x") == []


def test_a_rule_without_a_folder_is_removed_from_the_file_as_well(talk: Talk, hermes_home: Path) -> None:
    hermes_home.mkdir(parents=True, exist_ok=True)
    (hermes_home / "config.yaml").write_text("permissions: {allow: [{command: make}, ls]}\n")
    talk.conversation.config.permissions = load_config().permissions
    assert "make" in talk.type("/allowed remove 1")
    assert load_config().permissions.allow == ["ls"]
