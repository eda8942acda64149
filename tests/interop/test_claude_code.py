"""Claude Code's sessions come in as they were shown there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

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
    assert "line 13: not JSON" in printed and "unknown type: brand-new-record" in printed
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
    assert "1 session was here already" in brought_in(file, home)
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
    assert done.status == 0 and f"Claude Code ({NAME}) may still have it in its own files" in done.err, done
    lines(file, [said("a", None, "one", 1), said("b", "a", "two", 2)])
    assert "0 sessions with 0 messages imported" in brought_in(file, home, "--again")
