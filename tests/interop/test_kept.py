"""Every importer keeps sub-agents as children, compactions as lineage, pictures and files, cost, and what changed since."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

from hermes.interop import formats
from hermes_state import SessionDB
from tests.interop.importing import PIXEL, brought_in, database, hidden, lines, sessions, told
from tests.interop.test_chatgpt import node
from tests.interop.test_claude_code import NAME, conversation, replied, said
from tests.interop.test_codex import NAME as THREAD
from tests.interop.test_codex import item, rollout
from tests.support import program

PICTURE = f"data:image/png;base64,{PIXEL}"


def tip(home: Path, name: str) -> str:
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.check() == []
        return db.get_compression_tip(name)


def pictures(message: dict[str, Any]) -> int:
    content = message["content"]
    return sum("attachment:sha256:" in str(part) for part in content) if isinstance(content, list) else 0


def test_claude_codes_older_sub_agents_in_the_same_file_are_children(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = lines(tmp_path / f"{NAME}.jsonl", [
        said("u1", None, "find the bug", 1),
        replied("a1", "u1", "msg_1", [{"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "look"}}], 2),
        {**said("s1", None, "look", 3), "isSidechain": True},
        {**replied("s2", "s1", "msg_s", [{"type": "text", "text": "it is in a.py"}], 4), "isSidechain": True},
        said("u2", "a1", [{"type": "tool_result", "tool_use_id": "t1", "content": "in a.py"}], 5),
        {**said("s3", None, "look again", 6), "isSidechain": True},
    ])  # fmt: skip
    assert "3 sessions with 6 messages imported" in brought_in(file, home)
    found = sessions(home)
    name = f"claude-code-{NAME}"
    assert [role for role, _ in told(found[name])] == ["user", "assistant", "tool"]
    child = found[f"{name}-s1"]
    assert told(child) == [("user", "look"), ("assistant", "it is in a.py")]
    assert (child["kind"], child["parent_session_id"]) == ("subagent", name)
    assert told(found[f"{name}-s3"]) == [("user", "look again")]


def test_claude_codes_older_cost_counts_once_a_reply(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = {**replied("a1", "u1", "msg_1", [{"type": "text", "text": "one"}], 2), "costUSD": 0.25}
    again = {**replied("a2", "a1", "msg_1", [{"type": "text", "text": "two"}], 2), "costUSD": 0.25}
    file = lines(tmp_path / f"{NAME}.jsonl", [said("u1", None, "hello", 1), first, again])
    brought_in(file, home)
    session = sessions(home)[f"claude-code-{NAME}"]
    assert (session["messages"][1]["cost_usd"], session["actual_cost_usd"]) == (0.25, 0.25)


def test_a_title_and_a_compaction_that_come_later_are_taken_over(tmp_path: Path) -> None:
    home = tmp_path / "home"
    whole = [one for one in conversation() if not isinstance(one, str)]
    name = f"claude-code-{NAME}"
    file = lines(tmp_path / f"{NAME}.jsonl", whole[:5])
    brought_in(file, home)
    first = sessions(home)[name]
    assert first.get("title") is None
    later = {"type": "system", "subtype": "compact_boundary", "uuid": "b1", "parentUuid": None, "logicalParentUuid": "a5",
             "sessionId": NAME, "timestamp": "2026-03-01T10:10:00Z"}  # fmt: skip
    lines(file, [*whole, later, said("u8", "b1", "Summary: it was long.", 10, isCompactSummary=True)])
    assert "1 session with 4 messages imported, 1 session updated" in brought_in(file, home)
    last = sessions(home)[name]
    assert last["title"] == "Listing files" and last["end_reason"] == "compression"
    assert last["output_tokens"] > first["output_tokens"] and last["ended_at"] > first["ended_at"]
    assert tip(home, name) == f"{name}.2"
    assert "2 sessions already here" in brought_in(file, home)


def test_a_title_that_was_changed_there_changes_here_and_secrets_in_it_are_masked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    whole = [one for one in conversation() if not isinstance(one, str)]
    file = lines(tmp_path / f"{NAME}.jsonl", whole)
    brought_in(file, home)
    key = "sk-ant-api03-" + "b" * 80
    lines(file, [*whole, {"type": "custom-title", "customTitle": f"Use {key}", "sessionId": NAME}])
    assert "1 session updated" in brought_in(file, home)
    session = sessions(home)[f"claude-code-{NAME}"]
    assert session["title"].startswith("Use [masked:") and key not in json.dumps(session)
    lines(file, [*whole, {"type": "custom-title", "customTitle": "Another", "sessionId": NAME}])
    brought_in(file, home)
    assert sessions(home)[f"claude-code-{NAME}"]["title"] == "Another"
    with SessionDB(home / "state.db") as db:
        assert db.check() == []


def test_gemini_names_files_that_are_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "home"
    parts = [{"text": "what is in it?"}, {"fileData": {"fileUri": "gs://b/report.pdf", "mimeType": "application/pdf"}},
             {"hologram": {}}]  # fmt: skip
    printed = brought_in(lines(tmp_path / "chats" / "session-1.jsonl", [
        {"sessionId": "g1", "projectHash": "h", "startTime": "2026-03-03T08:00:00Z"},
        {"id": "m1", "timestamp": "2026-03-03T08:00:00Z", "type": "user", "content": parts},
    ]), home)  # fmt: skip
    assert told(sessions(home)["gemini-g1"]) == [("user", "what is in it?\n\n[file gs://b/report.pdf]")]
    assert "part hologram" in printed


def opencode(path: Path, messages: list[tuple[str, dict[str, Any], list[dict[str, Any]]]]) -> Path:
    whole = {"info": {"id": "ses_1", "title": "T", "directory": "/w", "time": {"created": 1772500000000}},
             "messages": [{"info": {"id": name, "time": {"created": 1772500000000 + 1000 * number}, **info},
                           "parts": [{"id": f"prt_{number}_{place}", **part} for place, part in enumerate(parts)]}
                          for number, (name, info, parts) in enumerate(messages)]}  # fmt: skip
    path.write_text(json.dumps(whole))
    return path


def test_opencodes_compaction_begins_a_continuation(tmp_path: Path) -> None:
    home = tmp_path / "home"
    brought_in(opencode(tmp_path / "talk.json", [
        ("msg_1", {"role": "user"}, [{"type": "text", "text": "a long talk"}]),
        ("msg_2", {"role": "assistant"}, [{"type": "text", "text": "very long"}]),
        ("msg_3", {"role": "user"}, [{"type": "compaction", "auto": True}]),
        ("msg_4", {"role": "assistant", "summary": True}, [{"type": "text", "text": "So far: long."}]),
        ("msg_5", {"role": "user"}, [{"type": "text", "text": "go on"}]),
    ]), home)  # fmt: skip
    found = sessions(home)
    assert told(found["opencode-ses_1"]) == [("user", "a long talk"), ("assistant", "very long")]
    assert told(found["opencode-ses_1.2"]) == [("user", "So far: long."), ("user", "go on")]
    assert tip(home, "opencode-ses_1") == "opencode-ses_1.2"


def goose(path: Path, rows: list[tuple[str, list[dict[str, Any]], dict[str, bool]]]) -> Path:
    stored = [(number, f"m{number}", "20260304_1", role, json.dumps(blocks), 1772618400 + number, None, json.dumps(seen))
              for number, (role, blocks, seen) in enumerate(rows, 1)]  # fmt: skip
    return database(
        path,
        ("CREATE TABLE schema_version(version INTEGER)", []),
        ("CREATE TABLE sessions(id TEXT, name TEXT, working_dir TEXT, created_at TEXT, accumulated_input_tokens INTEGER,"
         " accumulated_output_tokens INTEGER)", []),
        ("CREATE TABLE messages(id INTEGER, message_id TEXT, session_id TEXT, role TEXT, content_json TEXT,"
         " created_timestamp INTEGER, tokens INTEGER, metadata_json TEXT)", []),
        ("INSERT INTO sessions VALUES(?,?,?,?,?,?)", [("20260304_1", "N", "/w", "2026-03-04 10:00:00", 500, 70)]),
        ("INSERT INTO messages VALUES(?,?,?,?,?,?,?,?)", stored),
    )  # fmt: skip


def words(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def test_gooses_compactions_begin_continuations(tmp_path: Path) -> None:
    home = tmp_path / "home"
    before, model_only = {"userVisible": True, "agentVisible": False}, {"userVisible": False, "agentVisible": True}
    replaced = {"userVisible": False, "agentVisible": False}  # the first summary, after the second compaction
    brought_in(goose(tmp_path / "sessions.db", [
        ("user", words("a long talk"), before), ("assistant", words("very long"), before),
        ("user", words("Summary one."), replaced), ("assistant", words("Go on from there."), replaced),
        ("user", words("more"), before), ("user", words("Summary two."), model_only),
        ("assistant", words("Go on."), model_only), ("user", words("and on"), {"userVisible": True, "agentVisible": True}),
    ]), home)  # fmt: skip
    found = sessions(home)
    assert told(found["goose-20260304_1"]) == [("user", "a long talk"), ("assistant", "very long")]
    assert told(found["goose-20260304_1.2"]) == [
        ("user", "Summary one."),
        ("assistant", "Go on from there."),
        ("user", "more"),
    ]
    assert told(found["goose-20260304_1.3"]) == [("user", "Summary two."), ("assistant", "Go on."), ("user", "and on")]
    assert tip(home, "goose-20260304_1") == "goose-20260304_1.3"


def test_gooses_totals_and_pictures_of_tools(tmp_path: Path) -> None:
    home = tmp_path / "home"
    value = {"content": [{"type": "text", "text": "a dot"}, {"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
    brought_in(goose(tmp_path / "sessions.db", [
        ("user", words("draw"), {}),
        ("assistant", [{"type": "toolRequest", "id": "t1", "toolCall": {"value": {"name": "draw", "arguments": {}}}}], {}),
        ("user", [{"type": "toolResponse", "id": "t1", "toolResult": {"status": "success", "value": value}}], {}),
    ]), home)  # fmt: skip
    session = sessions(home)["goose-20260304_1"]
    assert (session["input_tokens"], session["output_tokens"]) == (500, 70)
    result = session["messages"][2]
    assert (result["content"][0]["text"], result["tool_name"], pictures(result)) == ("a dot", "draw", 1)


def test_llms_fragments_and_attachments(tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = database(
        tmp_path / "logs.db",
        ("CREATE TABLE conversations(id TEXT, name TEXT, model TEXT)", []),
        ("CREATE TABLE responses(id TEXT, model TEXT, prompt TEXT, system TEXT, response TEXT, conversation_id TEXT,"
         " datetime_utc TEXT)", []),
        ("CREATE TABLE fragments(id INTEGER, hash TEXT, content TEXT, source TEXT)", []),
        ('CREATE TABLE prompt_fragments(response_id TEXT, fragment_id INTEGER, "order" INTEGER)', []),
        ('CREATE TABLE system_fragments(response_id TEXT, fragment_id INTEGER, "order" INTEGER)', []),
        ("CREATE TABLE attachments(id TEXT, type TEXT, path TEXT, url TEXT, content BLOB)", []),
        ("CREATE TABLE threads(id TEXT, name TEXT, tip_message_hash TEXT, forked_from TEXT, datetime_utc TEXT)", []),
        ("CREATE TABLE turns(id TEXT, thread_id TEXT, tip_message_hash TEXT, model TEXT, datetime_utc TEXT)", []),
        ("CREATE TABLE messages(hash TEXT, parent_hash TEXT, role TEXT)", []),
        ("CREATE TABLE parts(message_hash TEXT, position INTEGER, type TEXT, tool_name TEXT, text TEXT, payload TEXT)", []),
        ("INSERT INTO conversations VALUES(?,?,?)", [("01C", "N", "gpt-5")]),
        ("INSERT INTO responses VALUES(?,?,?,?,?,?,?)", [("01R", "gpt-5", "explain it", None, "It …", "01C", "2026-03-05T07:00:00")]),
        ("INSERT INTO fragments VALUES(?,?,?,?)", [(1, "x", "def f(): ...", "f.py"), (2, "y", "Be brief.", None)]),
        ("INSERT INTO prompt_fragments VALUES(?,?,?)", [("01R", 1, 0)]),
        ("INSERT INTO system_fragments VALUES(?,?,?)", [("01R", 2, 0)]),
        ("INSERT INTO attachments VALUES(?,?,?,?,?)", [("att", "image/png", None, None, base64.b64decode(PIXEL))]),
        ("INSERT INTO threads VALUES(?,?,?,?,?)", [("01T", "A thread", "h1", None, "2026-03-05T08:00:00")]),
        ("INSERT INTO turns VALUES(?,?,?,?,?)", [("01U", "01T", "h1", "claude", "2026-03-05T08:00:05")]),
        ("INSERT INTO messages VALUES(?,?,?)", [("h1", None, "user")]),
        ("INSERT INTO parts VALUES(?,?,?,?,?,?)", [("h1", 0, "text", None, "what is it?", None),
                                                   ("h1", 1, "attachment", None, None, json.dumps({"attachment_id": "att"})),
                                                   ("h1", 2, "attachment", None, None, json.dumps({"attachment": {"id": "att"}}))]),
    )  # fmt: skip
    brought_in(path, home)
    found = sessions(home)
    assert told(found["llm-01C"]) == [("user", "def f(): ...\n\nexplain it"), ("assistant", "It …")]
    assert found["llm-01C"]["system_prompt"] == "Be brief."
    assert pictures(found["llm-01T"]["messages"][0]) == 2


def test_pis_forked_session_is_a_branch_of_the_other(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def talk(name: str, words: str, **header: Any) -> Path:
        return lines(tmp_path / "sessions" / f"2026-03-07T10-00-00-000Z_{name}.jsonl", [
            {"type": "session", "version": 3, "id": name, "timestamp": "2026-03-07T10:00:00Z", "cwd": "/w", **header},
            {"type": "message", "id": "00000001", "parentId": None, "timestamp": "2026-03-07T10:00:00Z",
             "message": {"role": "user", "content": words}},
        ])  # fmt: skip

    first = talk("aaaa", "hello")
    talk("bbbb", "hello again", parentSession=str(first))
    brought_in(tmp_path / "sessions", home)
    assert sessions(home)["pi-bbbb"]["parent_session_id"] == "pi-aaaa"


def test_chatgpts_tool_calls_have_their_results_and_files_their_bytes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    attached = {"attachments": [{"id": "file-TXT", "name": "notes.txt", "mimeType": "text/plain"},
                                {"id": "file-GONE", "name": "lost.pdf", "mimeType": "application/pdf"}]}  # fmt: skip
    tree = {
        "u1": node("u1", None, ["a1"], "user", ["read it"], metadata=attached),
        "a1": node("a1", "u1", ["t1"], "assistant", [], kind="code", recipient="python",
                   content={"language": "python", "text": "print(1)"}),
        "t1": node("t1", "a1", ["a2"], "tool", [], kind="execution_output", content={"text": "1"},
                   author={"role": "tool", "name": "python"}),
        "a2": node("a2", "t1", [], "assistant", ["It says 1."]),
    }  # fmt: skip
    whole = {"conversation_id": "c1", "title": "T", "create_time": 1772700000.5, "current_node": "a2", "mapping": tree}
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("conversations.json", json.dumps([whole]))
        archive.writestr("file-TXT-notes.txt", "the notes")
    brought_in(tmp_path / "data.zip", home)
    asked, call, result, answer = sessions(home)["chatgpt-c1"]["messages"]
    assert pictures(asked) == 1 and "[file lost.pdf: not in the export]" in str(asked["content"])
    assert call["tool_calls"][0]["function"] == {"name": "python", "arguments": '{"input":"print(1)"}'}
    assert (result["content"], result["tool_call_id"], result["tool_name"]) == (
        "1",
        call["tool_calls"][0]["id"],
        "python",
    )
    assert answer["content"] == "It says 1."


def test_found_lists_what_lies_in_the_usual_places(tmp_path: Path) -> None:
    home, user = tmp_path / "home", tmp_path / "user"
    whole = [one for one in conversation() if not isinstance(one, str)]
    file = lines(user / ".claude" / "projects" / "-w" / f"{NAME}.jsonl", whole)
    lines(user / ".codex" / "sessions" / f"rollout-2026-03-02T09-00-00-{THREAD}.jsonl", rollout())
    places = {"HOME": str(user), "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": "", "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    brought_in(file, home)
    done = program.run("sessions", "import", "--found", home=home, env=places)
    assert done.status == 1 and "--yes" in done.err
    head, _, *rest = done.out.splitlines()
    rows = [line.split() for line in (head, *rest)]
    assert rows[0] == ["Program", "Sessions", "Messages", "Size", "New", "messages"]
    assert (rows[1][:4], rows[1][-1]) == (["Claude", "Code", "1", "6"], "0")
    assert (rows[2][:4], rows[2][-1]) == (["Codex", "CLI", "1", "6"], "6")
    assert hidden(sessions(home)[f"claude-code-{NAME}"])


def test_each_program_has_a_module_a_test_and_a_page() -> None:
    root = Path(__file__).parents[2]
    for one in formats.histories():
        name = one.module.rpartition(".")[2]
        assert (root / "src" / "hermes" / "interop" / "histories" / f"{name}.py").is_file()
        assert (root / "tests" / "interop" / f"test_{name}.py").is_file()
        assert (root / "docs" / "guide" / "import" / f"{one.name}.md").is_file()
        assert f"import/{one.name}.md" in (root / "docs" / "guide" / "import.md").read_text()


def test_a_title_that_was_set_here_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    whole = [one for one in conversation() if not isinstance(one, str)]
    file = lines(tmp_path / f"{NAME}.jsonl", whole[:5])
    brought_in(file, home)
    with SessionDB(home / "state.db") as db:
        db.set_session_title(f"claude-code-{NAME}", "My own words")
    lines(file, whole)
    brought_in(file, home)
    assert sessions(home)[f"claude-code-{NAME}"]["title"] == "My own words"


def test_codex_pictures_of_tools_and_the_model(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shown = [{"type": "input_text", "text": "a dot"}, {"type": "input_image", "image_url": PICTURE}]
    brought_in(lines(tmp_path / f"rollout-2026-03-02T09-00-00-{THREAD}.jsonl", [
        *rollout(),
        item(8, type="function_call", name="view_image", arguments="{}", call_id="call_2"),
        item(8, type="function_call_output", call_id="call_2", output=shown),
        item(9, type="image_generation_call", id="ig_1", status="completed", revised_prompt="a dot", result=PIXEL),
    ]), home)  # fmt: skip
    viewed, drawn = [one for one in sessions(home)[f"codex-{THREAD}"]["messages"] if one["role"] == "tool"][1:]
    assert (viewed["tool_call_id"], viewed["content"][0]["text"], pictures(viewed)) == ("call_2", "a dot", 1)
    assert (drawn["tool_call_id"], pictures(drawn)) == ("ig_1", 1)


def test_opencodes_tools_give_pictures(tmp_path: Path) -> None:
    home = tmp_path / "home"
    state = {"status": "completed", "input": {}, "output": "read",
             "attachments": [{"type": "file", "mime": "image/png", "url": PICTURE}]}  # fmt: skip
    brought_in(opencode(tmp_path / "talk.json", [
        ("msg_1", {"role": "user"}, [{"type": "text", "text": "look"}]),
        ("msg_2", {"role": "assistant"}, [{"type": "tool", "callID": "c1", "tool": "read", "state": state}]),
    ]), home)  # fmt: skip
    result = sessions(home)["opencode-ses_1"]["messages"][2]
    assert (result["content"][0]["text"], pictures(result)) == ("read", 1)
