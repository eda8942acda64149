"""Claude Code's sessions come in as they were shown there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.interop.histories import claude_code
from hermes_state import SessionDB
from tests.interop.importing import PIXEL, brought_in, hidden, lines, sessions, told
from tests.support import program
from tests.support.sizes import size

NAME = "11111111-2222-4333-8444-555555555555"


def said(uuid: str, parent: str | None, content: Any, minute: int, **more: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": NAME, "cwd": "/work/parser", "gitBranch": "main",
            "timestamp": f"2026-03-01T10:{minute:02}:00.000Z", "isSidechain": False,
            "message": {"role": "user", "content": content}, **more}  # fmt: skip


def replied(uuid: str, parent: str, reply: str, blocks: list[Any], minute: int, output: int = 7) -> dict[str, Any]:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 5,
        "output_tokens": output,
    }
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": NAME, "requestId": "r1",
            "timestamp": f"2026-03-01T10:{minute:02}:30.000Z", "isSidechain": False,
            "message": {"id": reply, "role": "assistant", "model": "claude-opus-4", "content": blocks, "usage": usage,
                        "stop_reason": "end_turn"}}  # fmt: skip


def conversation() -> list[Any]:
    use = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a.py"}]}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    return [
        {"type": "file-history-snapshot", "messageId": "x", "sessionId": NAME},
        said("u0", None, "<system-reminder>rules</system-reminder>", 0, isMeta=True),
        said("u1", "u0", "list the files", 1),
        replied("a1", "u1", "msg_1", [{"type": "thinking", "thinking": "I list them.", "signature": "s"}], 2, 1),
        replied("a2", "a1", "msg_1", [{"type": "text", "text": "Here they are."}], 2, 3),
        replied("a3", "a2", "msg_1", [use], 2, 9),
        said("u2", "a3", [result], 3),
        said("u3", "u2", "a question that was taken back", 4),
        replied("a4", "u3", "msg_2", [{"type": "text", "text": "an answer that was taken back"}], 5),
        said("u4", "u2", [{"type": "text", "text": "what is this?"}, picture], 6),
        replied("a5", "u4", "msg_3", [{"type": "text", "text": "One dot. key sk-ant-api03-" + "a" * 95}], 7),
        {"type": "ai-title", "aiTitle": "Listing files", "sessionId": NAME},
        '{"type": "user", "uuid": "torn',
        {"type": "brand-new-record", "sessionId": NAME},
    ]


def test_a_session_with_a_tool_a_picture_and_a_rewind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = lines(tmp_path / "claude" / "projects" / "-work-parser" / f"{NAME}.jsonl", conversation())
    printed = brought_in(file, home, status=1)
    assert "1 session with 6 messages imported" in printed
    assert (
        "line 13: not JSON" in printed and "unknown type: brand-new-record" in printed and "skipped 1 record" in printed
    )
    session = sessions(home)[f"claude-code-{NAME}"]
    assert (session["title"], session["cwd"], session["model"]) == ("Listing files", "/work/parser", "claude-opus-4")
    assert (session["source"], session["started_at"]) == ("claude-code", 1772359200.0)
    roles = [role for role, _ in told(session)]
    assert roles == ["system", "user", "assistant", "tool", "user", "assistant"]
    reply, result = session["messages"][2:4]
    assert (reply["content"], reply["reasoning"], reply["output_tokens"]) == ("Here they are.", "I list them.", 9)
    assert (reply["input_tokens"], reply["cache_read_tokens"]) == (10, 100)
    assert reply["tool_calls"][0]["function"] == {"name": "Bash", "arguments": '{"command":"ls"}'}
    assert (result["content"], result["tool_call_id"], result["tool_name"]) == ("a.py", "toolu_1", "Bash")
    assert hidden(session) == ["a question that was taken back", "an answer that was taken back"]
    assert "attachment:sha256:" in session["messages"][4]["content"][1]["image_url"]["url"]
    assert "[masked:" in session["messages"][5]["content"]
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        assert db.search_messages("taken back") == []
        db.unrewind(session["id"])
        assert db.get_messages(session["id"])[-1]["content"] == "an answer that was taken back"


def test_a_second_import_brings_in_only_what_is_new(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = tmp_path / f"{NAME}.jsonl"
    whole = [one for one in conversation() if not isinstance(one, str)]
    lines(file, whole[:5])
    assert "1 session with 3 messages imported" in brought_in(file, home)
    lines(file, whole)  # the reply now has a tool call, too, and the conversation has gone on
    assert "0 sessions with 3 messages imported, 1 session updated" in brought_in(file, home)
    first = sessions(home)[f"claude-code-{NAME}"]
    assert [role for role, _ in told(first)] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert first["messages"][2]["tool_calls"][0]["function"]["name"] == "Bash"
    assert "1 session already here" in brought_in(file, home)
    lines(file, [*whole, said("u5", "u1", "from the beginning", 9)])
    assert "1 session updated" in brought_in(file, home)
    last = sessions(home)[f"claude-code-{NAME}"]
    assert told(last)[-1] == ("user", "from the beginning") and len(told(last)) == 3
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        assert len(db.search_messages("beginning")) == 1 and db.search_messages("dot") == []


def test_what_was_redacted_or_said_here_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    whole = [one for one in conversation() if not isinstance(one, str)]
    file = lines(tmp_path / f"{NAME}.jsonl", whole[:7])
    brought_in(file, home)
    name = f"claude-code-{NAME}"
    with SessionDB(home / "state.db") as db:
        first = next(one for one in db.get_messages(name) if one["role"] == "user")
        db.redact_message(first["id"])
        db.append_message(name, "user", "said here")
    lines(file, whole)
    brought_in(file, home)
    shown = [text for _, text in told(sessions(home)[name])]
    assert "list the files" not in shown and "said here" in shown and "a.py" in shown


def test_compactions_and_sub_agents_are_sessions_of_their_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b1", "parentUuid": None, "logicalParentUuid": "a1",
                "sessionId": NAME, "timestamp": "2026-03-01T10:10:00Z"}  # fmt: skip
    file = lines(tmp_path / "projects" / "p" / f"{NAME}.jsonl", [
        said("u1", None, "a long talk", 1), replied("a1", "u1", "msg_1", [{"type": "text", "text": "very long"}], 2), boundary,
        said("u2", "b1", "Summary: it was long.", 10, isCompactSummary=True), said("u3", "u2", "and on", 11),
    ])  # fmt: skip
    agent = {**said("s1", None, "look into it", 2), "isSidechain": True, "agentId": "abc"}
    lines(file.parent / NAME / "subagents" / "agent-abc.jsonl", [agent])
    assert "3 sessions with 5 messages imported" in brought_in(tmp_path / "projects", home)
    found = sessions(home)
    name = f"claude-code-{NAME}"
    assert told(found[name]) == [("user", "a long talk"), ("assistant", "very long")]
    assert told(found[f"{name}.2"]) == [("user", "Summary: it was long."), ("user", "and on")]
    assert found[f"{name}-agent-abc"]["kind"] == "subagent"
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.get_compression_tip(name) == f"{name}.2"


def path_to(parents: list[int | None], leaf: int) -> list[str]:
    found: list[str] = []
    at: int | None = leaf
    while at is not None:
        found.insert(0, f"said {at}")
        at = parents[at]
    return found


@settings(max_examples=size(20, 200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=12))
def test_whichever_branch_is_gone_on_with_there_is_shown_here(grown: list[tuple[int, int]]) -> None:
    """A message that an import hid is shown again when the program shows it again; every message stays reachable."""
    with tempfile.TemporaryDirectory() as folder, SessionDB(Path(folder, "state.db"), durability="normal") as db:
        file = Path(folder, f"{NAME}.jsonl")
        parents: list[int | None] = [None]
        records = [said("u0", None, "said 0", 0)]
        for at, torn in grown:
            parents.append(at % len(parents))
            number = len(parents) - 1
            records.append(said(f"u{number}", f"u{parents[number]}", f"said {number}", number))
            for some in (records[: 1 + torn % len(records)], records):  # the first: read while it was being written
                lines(file, some)
                db.import_sessions((one.session for one in claude_code.read(file, None, [])), update=True)
            session = db.export_session(f"claude-code-{NAME}")
            assert session is not None
            assert [text for _, text in told(session)] == path_to(parents, number)
            assert len(hidden(session)) == len(parents) - len(told(session))
        assert db.check() == []


def test_what_was_taken_back_here_stays_so_while_the_other_program_goes_on(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / f"{NAME}.jsonl"
    first = [said("a", None, "one", 1), said("b", "a", "two", 2), said("c", "b", "three", 3)]
    brought_in(lines(file, first), home)
    with SessionDB(home / "state.db") as db:
        two = db.get_messages(f"claude-code-{NAME}")[1]["id"]
        db.rewind(f"claude-code-{NAME}", two)
    brought_in(lines(file, [*first, said("d", "c", "four", 4)]), home)
    assert [text for _, text in told(sessions(home)[f"claude-code-{NAME}"])] == ["one", "two", "four"]


def test_shredding_names_the_program_that_still_has_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = lines(tmp_path / f"{NAME}.jsonl", [said("a", None, "one", 1)])
    brought_in(file, home)
    done = program.run("sessions", "delete", "--shred", "--yes", f"claude-code-{NAME}", home=home)
    assert done.status == 0 and "imported from claude-code" in done.err, done
    lines(file, [said("a", None, "one", 1), said("b", "a", "two", 2)])
    assert "0 sessions with 0 messages imported" in brought_in(file, home, "--again")


def answered(uuid: str, parent: str, words: str, minute: int) -> dict[str, Any]:
    return replied(uuid, parent, f"msg_{uuid}", [{"type": "text", "text": words}], minute)


def test_a_damaged_line_costs_that_line_and_not_what_was_said_before_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = lines(tmp_path / f"{NAME}.jsonl", [
        '{"type": "user", "uuid": "u0', said("u1", "u0", "one", 1), answered("a1", "u1", "two", 2),
        '{"type": "user", "uuid": "u2", "pare', answered("a2", "u2", "four", 4),
        {"type": "progress", "uuid": "p1", "parentUuid": "a2", "sessionId": NAME}, said("u3", "p1", "five", 5),
        {"type": "system", "subtype": "compact_boundary", "uuid": "b1", "parentUuid": None, "logicalParentUuid": "lost",
         "sessionId": NAME, "timestamp": "2026-03-01T10:10:00Z"},
        said("u4", "b1", "Summary.", 10, isCompactSummary=True),
    ])  # fmt: skip
    printed = brought_in(file, home, status=1)
    assert "line 1: not JSON" in printed and "line 4: not JSON" in printed
    found = sessions(home)
    assert [text for _, text in told(found[f"claude-code-{NAME}"])] == ["one", "two", "four", "five"]
    assert [text for _, text in told(found[f"claude-code-{NAME}.2"])] == ["Summary."]
    assert not hidden(found[f"claude-code-{NAME}"])


def test_commands_their_output_and_an_editors_context_are_not_what_the_person_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    opened = {"type": "text", "text": "<ide_opened_file>The user opened a.py</ide_opened_file>"}
    queued = {"type": "attachment", "sessionId": NAME, "timestamp": "2026-03-01T10:06:00Z"}
    file = lines(tmp_path / f"{NAME}.jsonl", [
        said("u1", None, "<command-name>/model</command-name>\n<command-args>opus</command-args>", 1),
        said("u2", "u1", "<local-command-stdout>Set model to opus</local-command-stdout>", 2),
        said("u3", "u2", "<command-message>review is running</command-message>\n<command-name>/review</command-name>"
                         "<command-args>the parser</command-args>", 3),
        said("u4", "u3", "Review what follows: the parser", 3, isMeta=True),
        said("u5", "u4", [opened, {"type": "text", "text": "and this one"}], 4), said("u6", "u5", "<bash-input>ls</bash-input>", 5),
        {**queued, "uuid": "q1", "parentUuid": "u6",
         "attachment": {"type": "queued_command", "prompt": [{"type": "text", "text": "typed meanwhile"}]}},
        {**queued, "uuid": "q2", "parentUuid": "q1",
         "attachment": {"type": "queued_command", "prompt": "<task-notification>done</task-notification>"}},
        answered("a1", "q2", "Done.", 7),
    ])  # fmt: skip
    brought_in(file, home)
    shown = told(sessions(home)[f"claude-code-{NAME}"])
    assert [text for role, text in shown if role == "user"] == [
        "/review the parser",
        "and this one",
        "! ls",
        "typed meanwhile",
    ]
    assert ("system", "/model opus") in shown and ("system", opened["text"]) in shown
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.list_sessions_rich()[0]["preview"] == "/review the parser"


def test_older_versions_put_sub_agents_into_other_files(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "projects" / "p"
    lines(project / f"{NAME}.jsonl", [said("u1", None, "one", 1), answered("a1", "u1", "two", 2)])
    lines(project / "agent-abc.jsonl", [said("s1", None, "look into it", 2, isSidechain=True, agentId="abc")])
    brought_in(tmp_path / "projects", home)
    found = sessions(home)
    agent = found[f"claude-code-{NAME}-agent-abc"]
    assert (agent["parent_session_id"], agent["kind"]) == (f"claude-code-{NAME}", "subagent")


def test_a_copy_under_another_name_is_the_same_session(tmp_path: Path) -> None:
    home = tmp_path / "home"
    told_there = [said("u1", None, "one", 1), answered("a1", "u1", "two", 2)]
    brought_in(lines(tmp_path / f"{NAME}.jsonl", told_there), home)
    assert "1 session already here" in brought_in(lines(tmp_path / "a copy.txt", told_there), home)
    assert list(sessions(home)) == [f"claude-code-{NAME}"]


def test_the_branch_that_the_program_names_at_the_end_is_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = lines(tmp_path / f"{NAME}.jsonl", [
        said("u1", None, "one", 1), said("u2", "u1", "first way", 2), said("u3", "u1", "second way", 3),
        {"type": "last-prompt", "lastPrompt": "first way", "leafUuid": "u2", "sessionId": NAME},
    ])  # fmt: skip
    brought_in(file, home)
    session = sessions(home)[f"claude-code-{NAME}"]
    assert [text for _, text in told(session)] == ["one", "first way"] and hidden(session) == ["second way"]


def texts(home: Path, name: str = NAME) -> list[Any]:
    return [content for _, content in told(sessions(home)[f"claude-code-{name}"])]


def test_replies_of_different_turns_with_one_id_are_different_replies(tmp_path: Path) -> None:
    """Proxies and local servers give every reply the same id."""
    home = tmp_path / "home"
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}

    def reply(uuid: str, parent: str, blocks: list[Any], minute: int) -> dict[str, Any]:
        made = replied(uuid, parent, "msg_same", blocks, minute)
        return {key: value for key, value in made.items() if key != "requestId"}

    records = [
        said("u1", None, "one", 1), reply("a1", "u1", [{"type": "text", "text": "first"}], 2), reply("a2", "a1", [use], 2),
        said("u2", "a2", [result], 3), reply("a3", "u2", [{"type": "text", "text": "second"}], 4),
        said("u3", "a3", "two", 5), reply("a4", "u3", [{"type": "text", "text": "third"}], 6),
    ]  # fmt: skip
    file = tmp_path / f"{NAME}.jsonl"
    for end in range(1, len(records) + 1):  # as it grows, and in one piece, it is the same
        brought_in(lines(file, records[:end]), home)
    assert texts(home) == ["one", "first", "a.py", "second", "two", "third"]
    session = sessions(home)[f"claude-code-{NAME}"]
    assert session["output_tokens"] == 21 and session["messages"][1]["tool_calls"][0]["id"] == "t1"
    brought_in(file, tmp_path / "fresh")
    assert texts(tmp_path / "fresh") == texts(home)


def test_lines_of_one_reply_between_results_of_its_calls_are_one_reply(tmp_path: Path) -> None:
    use = [{"type": "tool_use", "id": f"t{n}", "name": "Read", "input": {}} for n in (1, 2)]
    result = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": f"file {n}"} for n in (1, 2)]
    file = lines(tmp_path / f"{NAME}.jsonl", [
        said("u1", None, "read both", 1), replied("a1", "u1", "msg_1", [use[0]], 2), said("r1", "a1", [result[0]], 3),
        replied("a2", "a1", "msg_1", [use[1]], 2), said("r2", "a2", [result[1]], 3),
        answered("a3", "r2", "Both.", 4),
    ])  # fmt: skip
    brought_in(file, tmp_path / "home")
    session = sessions(tmp_path / "home")[f"claude-code-{NAME}"]
    assert [role for role, _ in told(session)] == ["user", "assistant", "tool", "tool", "assistant"]
    assert len(session["messages"][1]["tool_calls"]) == 2 and session["output_tokens"] == 14


def test_lines_that_follow_none_follow_each_other(tmp_path: Path) -> None:
    file = lines(tmp_path / f"{NAME}.jsonl", [
        said("u1", None, "one", 1), answered("a1", "u1", "two", 2), said("u2", None, "three", 3), answered("a2", "u2", "four", 4),
        {key: value for key, value in said("u3", None, "five", 5).items() if key not in ("uuid", "parentUuid")},
        said("u4", None, "six", 6),
    ])  # fmt: skip
    brought_in(file, tmp_path / "home")
    assert texts(tmp_path / "home") == ["one", "two", "three", "four", "five", "six"]
    assert hidden(sessions(tmp_path / "home")[f"claude-code-{NAME}"]) == []


def test_calls_without_an_id_get_one_and_their_results_in_their_order(tmp_path: Path) -> None:
    use = [{"type": "tool_use", "name": name, "input": {}} for name in ("Read", "Bash")]
    result = [{"type": "tool_result", "content": words} for words in ("of Read", "of Bash")]
    file = lines(tmp_path / f"{NAME}.jsonl", [
        said("u1", None, "do both", 1), replied("a1", "u1", "msg_1", use, 2), said("u2", "a1", result, 3),
        replied("a2", "u2", "msg_2", [use[0]], 4), said("u3", "a2", [{**result[0], "tool_use_id": None}], 5),
        answered("a3", "u3", "Done.", 6),
    ])  # fmt: skip
    brought_in(file, tmp_path / "home")
    shown = sessions(tmp_path / "home")[f"claude-code-{NAME}"]["messages"]
    calls = [call["id"] for one in shown for call in one.get("tool_calls") or ()]
    results = [(one["tool_call_id"], one["tool_name"], one["content"]) for one in shown if one["role"] == "tool"]
    assert len(set(calls)) == 3 and not any("None" in one for one in calls)
    assert results == [(calls[0], "Read", "of Read"), (calls[1], "Bash", "of Bash"), (calls[2], "Read", "of Read")]


PRESERVED = {
    "messages": {"preservedMessages": {"anchorUuid": "s1", "uuids": ["u2", "a2"], "allUuids": ["u2", "a2"]}},
    "a list": {"preservedMessages": ["u2", "a2"]},
    "segment": {"preservedSegment": {"headUuid": "u2", "anchorUuid": "s1", "tailUuid": "a2"}},
}


def compacted(kept: str, goes_on_after: str) -> list[Any]:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b1", "parentUuid": None, "logicalParentUuid": "a2",
                "sessionId": NAME, "timestamp": "2026-03-01T10:10:00Z", "compactMetadata": {"trigger": "auto", **PRESERVED[kept]}}  # fmt: skip
    return [
        said("u1", None, "long ago", 1), answered("a1", "u1", "yes", 2), said("u2", "a1", "just now", 3),
        answered("a2", "u2", "I see", 4), boundary, said("s1", "b1", "Summary.", 10, isCompactSummary=True),
        said("u3", goes_on_after, "go on", 11),
    ]  # fmt: skip


@pytest.mark.parametrize("kept", PRESERVED)
@pytest.mark.parametrize("goes_on_after", ["s1", "a2"])
def test_what_a_compaction_leaves_in_the_context_is_shown_after_its_summary(
    tmp_path: Path, kept: str, goes_on_after: str
) -> None:
    home, file, name = tmp_path / "home", tmp_path / f"{NAME}.jsonl", f"{NAME}.2"
    records = compacted(kept, goes_on_after)
    assert "2 sessions with 6 messages imported" in brought_in(lines(file, records), home)
    assert texts(home) == ["long ago", "yes", "just now", "I see"]
    assert texts(home, name) == ["Summary.", "just now", "I see", "go on"]
    assert "2 sessions already here" in brought_in(file, home)
    brought_in(lines(file, [*records, answered("a4", "u3", "gladly", 12)]), home)
    assert texts(home, name) == ["Summary.", "just now", "I see", "go on", "gladly"]
    with SessionDB(home / "state.db") as db:
        assert db.check() == [] and len(db.search_messages("just now")) == 1
        assert db.get_compression_tip(f"claude-code-{NAME}") == f"claude-code-{name}"


FORK = NAME.replace("1", "9")


@pytest.mark.parametrize("first", [NAME, FORK, "the folder"])
def test_a_forked_session_is_a_branch_and_what_was_paid_for_counts_once(tmp_path: Path, first: str) -> None:
    home, folder = tmp_path / "home", tmp_path / "projects"
    begin = [said("u1", None, "one", 1), answered("a1", "u1", "two", 2)]
    lines(folder / f"{NAME}.jsonl", [*begin, said("u2", "a1", "on the first way", 3), answered("a2", "u2", "first", 4)])
    lines(folder / f"{FORK}.jsonl", [
        {**one, "sessionId": FORK} for one in [*begin, said("u3", "a1", "on the second way", 5), answered("a3", "u3", "second", 6)]
    ])  # fmt: skip
    for path in {first: [first], "the folder": []}.get(first, []):
        brought_in(folder / f"{path}.jsonl", home)
    brought_in(folder, home)
    found = sessions(home)
    branch = found[f"claude-code-{FORK}"]
    assert (branch["parent_session_id"], branch["kind"]) == (f"claude-code-{NAME}", "branch")
    assert texts(home) == ["one", "two", "on the first way", "first"]
    assert texts(home, FORK) == ["one", "two", "on the second way", "second"]
    assert [found[f"claude-code-{name}"]["output_tokens"] for name in (NAME, FORK)] == [14, 7]
    with (folder / f"{FORK}.jsonl").open("a") as stream:
        stream.write(json.dumps({**said("u4", "a3", "and on", 7), "sessionId": FORK}) + "\n")
    with (folder / f"{NAME}.jsonl").open("a") as stream:
        stream.write(json.dumps(said("u5", "a2", "and on here", 8)) + "\n")
    brought_in(folder, home)
    assert texts(home, FORK) == ["one", "two", "on the second way", "second", "and on"]
    assert texts(home) == ["one", "two", "on the first way", "first", "and on here"]
    with SessionDB(home / "state.db") as db:
        assert db.check() == []


def test_a_session_that_was_here_before_its_fork_keeps_what_it_has(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "projects"
    begin = [said("u1", None, "one", 1), answered("a1", "u1", "two", 2)]
    lines(folder / f"{NAME}.jsonl", begin)
    brought_in(folder, home)
    lines(folder / f"{FORK}.jsonl", [{**one, "sessionId": FORK} for one in [*begin, said("u3", "a1", "there", 5)]])
    brought_in(folder, home)
    lines(folder / f"{NAME}.jsonl", [*begin, said("u2", "a1", "here, later than there", 9)])
    brought_in(folder, home)
    assert texts(home) == ["one", "two", "here, later than there"] and texts(home, FORK) == ["one", "two", "there"]
    assert not any(hidden(one) for one in sessions(home).values())
