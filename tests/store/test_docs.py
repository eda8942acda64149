"""The documents say what the program does: their examples run, and nothing public is missing from them.

In a document, `# → text` after a statement is what it prints (or the repr of a bare expression); `…` stands for
anything. The blocks of a document run in order in one namespace, with a home of their own.
"""

from __future__ import annotations

import ast
import base64
import inspect
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from hermes.store.gateway.gateway_db import GatewayDB
from hermes_state import SessionDB
from tools.format_tables import SHADOW, UNTYPED, Tables, generated

ROOT = Path(__file__).resolve().parents[2]
README, TOUR, GUIDE = ROOT / "README.md", ROOT / "docs/guide/python.md", ROOT / "docs/guide/store.md"
FORMAT = ROOT / "docs/format.md"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", TOUR, GUIDE, FORMAT, ROOT / "docs/architecture.md"]


def blocks(document: Path, language: str) -> list[tuple[int, str]]:
    """(line number, text) of each fenced block of a language."""
    text = document.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


# ── examples ──


def shown_results(source: str) -> dict[int, list[str]]:
    """The lines of each `# →` group, by the number of the last line of code before it."""
    results: dict[int, list[str]] = {}
    code = 0
    for number, line in enumerate(source.splitlines(), 1):
        before, arrow, text = line.partition("# →")
        if before.strip():
            code = number
        if arrow:
            results.setdefault(code, []).append(text.strip())
    return results


def agrees(said: list[str], got: str) -> bool:
    """Whether the output is what the document says, line by line; `…` stands for anything."""
    lines = got.rstrip("\n").split("\n")
    if len(lines) != len(said):
        return False
    return all(
        re.fullmatch(".*".join(map(re.escape, want.split("…"))), line.strip())
        for want, line in zip(said, lines, strict=True)
    )


def run_block(source: str, first_line: int, document: Path, namespace: dict[str, Any]) -> list[str]:
    """Run a block statement by statement; what it did differently from what it says."""
    results = shown_results(source)
    wrong = []
    for statement in ast.parse(source).body:
        output = io.StringIO()
        where = f"{document.name}:{first_line + statement.lineno - 1}"
        with redirect_stdout(output):
            if isinstance(statement, ast.Expr):
                code = compile(ast.Expression(statement.value), where, "eval")
                value = eval(code, namespace)
                if value is not None or not output.getvalue():
                    print(repr(value))
            else:
                exec(compile(ast.Module([statement], []), where, "exec"), namespace)
        said = results.pop(statement.end_lineno or 0, None)
        if said is not None and not agrees(said, output.getvalue()):
            wrong.append(f"{where} says {said}, but gives {output.getvalue()!r}")
    return wrong + [f"{document.name}: {said} belongs to no statement" for said in results.values()]


@pytest.mark.parametrize(
    ("document", "least"), [(README, 1), (TOUR, 16), (GUIDE, 16)], ids=["README.md", "python.md", "store.md"]
)
def test_the_examples_run_and_give_what_is_shown(
    document: Path, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(part for part in sys.path if part))
    namespace: dict[str, Any] = {"__name__": "example"}
    found = blocks(document, "python")
    wrong = [fault for line, source in found for fault in run_block(source, line, document, namespace)]
    assert not wrong, "\n".join(wrong)
    assert sum(len(shown_results(source)) for _, source in found) >= least, "hardly anything is shown"


# ── commands, links, completeness ──


def test_every_make_target_named_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "".join(text for _, text in blocks(README, "sh"))
    assert set(re.findall(r"make ([a-z]+)", commands)) == {"chat", "install"} <= targets
    assert set(re.findall(r"`make ([a-z]+)`", README.read_text())) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", document.read_text()):
        if target and "://" not in target:
            assert (document.parent / target).exists(), target


ARCHITECTURE = ROOT / "docs/architecture.md"


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    """Each folder and file that it names is there, in that place; and each package of the program is named."""
    (tree,) = [text for _, text in blocks(ARCHITECTURE, "") if text.startswith("src/")]
    named, above = set(), [ROOT]
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, says = line.strip().partition(" ")
        del above[depth + 1 :]
        if name.endswith("/"):  # a folder, whose line may name what is in it
            above.append(above[-1] / name)
            named.add(above[-1])
        else:
            says = line
        missing = [one for one in re.findall(r"\b(\w+(?:/|\.py))(?=\W|$)", says) if not (above[-1] / one).exists()]
        assert (above[-1].is_dir(), missing) == (True, []), line
    source = ROOT / "src/hermes"
    packages = {
        path.parent for path in source.rglob("__init__.py") if source / "gateway/platforms" not in path.parents[1:]
    }
    assert packages - named == set()


def test_a_walk_of_the_architecture_enters_twelve_modules_at_most() -> None:
    text = ARCHITECTURE.read_text()
    walks = re.findall(r"^## Walk \d.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert len(walks) == 4 and len(text.split()) <= 3000
    assert [walk.splitlines()[0] for walk in walks if len(set(re.findall(r"[\w/]+\.py\b", walk))) > 12] == []


def test_every_public_call_is_in_the_pages_of_the_python_api() -> None:
    text = GUIDE.read_text() + TOUR.read_text()
    calls = [name for name, _ in inspect.getmembers(SessionDB) if not name.startswith("_")]
    assert len(calls) > 60
    assert [name for name in calls if not re.search(rf"\b{name}\b", text)] == []


def test_every_keyword_of_the_public_calls_is_in_the_pages_of_the_python_api() -> None:
    text = GUIDE.read_text() + TOUR.read_text()
    missing = []
    for name, call in inspect.getmembers(SessionDB, inspect.isfunction):
        if name == "__init__" or not name.startswith("_"):
            missing += [
                f"{name}({word})"
                for word in inspect.signature(call).parameters
                if word not in ("self", "messages_") and not re.search(rf"\b{word}\b", text)
            ]
    assert missing == []


def test_every_error_is_in_the_guide() -> None:
    from hermes import errors

    text = GUIDE.read_text()
    names = [name for name, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, Exception)]
    assert names and [name for name in names if f"`{name}`" not in text] == []


# ── the format ──


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that lived through every operation; closed. Its folder."""
    folder = tmp_path_factory.mktemp("lived")
    with SessionDB(folder / "state.db") as db:
        _live(db)
        assert db.check() == []
    return folder


def _live(db: SessionDB) -> None:
    picture = base64.b64encode(bytes(range(256)) * 4).decode()
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    db.create_session(
        "first", "telegram", "m", {"temperature": 0}, "prompt " * 300, user_id="42", started_at=1.5e9, cwd="/srv"
    )
    db.set_session_title("first", "docker on the pi")
    one = db.append_message("first", "user", "docker deployment 部署配置", timestamp=1.5e9)
    db.append_message(
        "first", "assistant", "so", None, [call], None, 1, "tool_calls", "why", "thought", [{"a": 1}], [{"b": 1}],
        [{"c": 1}], model="m", input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, cost_usd=0.1,
    )  # fmt: skip
    db.append_message("first", "tool", "total 12\n" * 1000, tool_name="terminal", tool_call_id="c1")
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    last = db.append_message("first", "user", parts)
    db.update_token_counts("first", 5, 6, "m", estimated_cost_usd=0.2, billing_provider="p", api_call_count=1)
    db.update_system_prompt("first", "prompt " * 300 + "and more")
    db.tag_session("first", "work", "pi")
    db.untag_session("first", "pi")
    db.share_session("first", "discord", "7")
    db.pin_session("first")
    db.archive_session("first")
    db.record_event("first", "model_error", "HTTP 400: no such model")
    db.compress_session("first", "second", summary="in short", head_until=one, tail_from=last)
    db.branch_session("first", "third", at_message=one, title="another way")
    for change in (db.redact_message, lambda key: db.edit_message(key, "and now?")):
        change(db.append_message("third", "user", "and now"))
    db.rewind("third", one)
    db.unrewind("third")
    db.rewind("second", one)
    db.end_session("third", "done")
    db.reopen_session("third")
    for step in (db.request_handoff, lambda key, _: db.claim_handoff(key), db.fail_handoff):
        step("third", "slack")
    db.create_session("fourth", "cli")
    db.append_message("fourth", "user", "to be replaced")
    db.replace_messages("fourth", [{"role": "user", "content": "instead"}])
    db.trash_session("fourth", by="test")
    db.restore_session("fourth")
    db.hold_session("fourth", "me")
    db.set_meta("mine", "yes")
    tail, parent = ([{"role": "user", "content": text, "timestamp": at, "id": 900 + at} for text, at in said]
                    for said in ([("b", 2)], [("a", 1), ("b", 2)]))  # fmt: skip
    carried = [{**one, "session_id": "late"} for one in tail]
    db.import_session(
        {"id": "early", "source": "cli", "messages": carried, "refs": [[1, "late", 902, 902, 0, None, None]]}
    )
    db.append_message("early", "user", "own")
    db.import_session(
        {"id": "late", "source": "cli", "messages": [{**one, "id": 5 - one["id"] + 900} for one in parent]}
    )
    db.create_session("fifth", "cli", parent_session_id="fourth", kind="subagent")
    db.append_message("fifth", "user", "kept for the sixth")
    db.branch_session("fifth", "sixth")
    db.clear_messages("fifth")
    db.delete_session("fifth", by="test")
    db.maybe_auto_prune_and_vacuum()
    db.import_session({**(db.export_session("fourth") or {}), "id": "seventh", "title": None})
    came = {
        **(db.export_session("fourth") or {}),
        "id": "eighth",
        "title": None,
        "end_reason": "imported",
        "ended_at": 2e9,
    }
    came |= {"source": "codex", "meta": {"imported": {"format": "codex"}}}
    came["messages"] = [{**one, "platform_message_id": f"there-{one['id']}"} for one in came["messages"]]
    db.import_session(came)
    db.import_sessions([{**came, "input_tokens": 99}], update=True)
    tenth = db.create_session("tenth", "cli")
    db.append_message(tenth, "assistant", "half a sign: \ud83d")
    db.branch_session(tenth, "eleventh")
    db.compress_session(tenth, "twelfth", summary="in short")
    db.replace_messages(tenth, [])
    db.append_message("eleventh", "assistant", "another half: \ude00")
    GatewayDB(db)


def test_the_tables_of_the_format_are_those_of_the_schema() -> None:
    """Each table, column, type and index; `python -m tools.format_tables` writes them."""
    page = FORMAT.read_text()
    assert generated(page) == page
    assert set(re.findall(r"^<!-- (.*) -->$", page, re.MULTILINE)) == {
        "columns of sessions", "columns of messages", "columns of session_refs", "public tables", "internal tables", "indexes",
        "end",
    }  # fmt: skip


def test_the_schema_that_the_format_is_made_from_is_that_of_a_store(lived: Path) -> None:
    """No module makes a table that tools/format_tables.py does not know."""
    found: dict[str, dict[str, str]] = {}
    indexes = set()
    with sqlite3.connect(lived / "state.db") as connection:
        for kind, name in connection.execute("SELECT type, name FROM sqlite_master").fetchall():
            if SHADOW.fullmatch(name):
                continue
            if kind == "table":
                rows = connection.execute(f"PRAGMA table_info({name})").fetchall()
                found[name] = {row[1]: row[2] or UNTYPED for row in rows}
            elif kind == "index":
                indexes.add(name)
    tables = Tables()
    assert {name: tables.columns.get(name) for name in found} == found
    assert indexes <= {name for names in tables.indexes.values() for name in names}
    store = [path for path in (ROOT / "src/hermes/store").rglob("*.py") if "postgres" not in path.parts]
    made = {
        name
        for path in store
        for name in re.findall(r"CREATE (?:VIRTUAL )?TABLE IF NOT EXISTS (\w+)", path.read_text())
    }
    assert made <= tables.columns.keys()


def test_the_numbers_of_the_format_are_those_of_the_code(lived: Path) -> None:
    from hermes.store.engines.sqlite import schema
    from hermes.store.records import codec
    from hermes.store.transcripts import replay as transcript

    text = " ".join(FORMAT.read_text().split())
    assert f"| table `schema_version` | `{schema.SCHEMA_VERSION}` |" in text
    with sqlite3.connect(lived / "state.db") as connection:
        for pragma, value in (
            ("application_id", schema.APPLICATION_ID),
            ("user_version", schema.FORMAT_VERSION),
        ):
            assert connection.execute(f"PRAGMA {pragma}").fetchone()[0] == value
            assert re.search(rf"`PRAGMA {pragma}` \| `{value}`", text), pragma
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(11,)]
    assert f"first {codec.HEAD} characters" in text
    assert f"{codec.COMPRESS_OVER} bytes" in text
    assert f'"format":"{transcript.FORMAT}","version":{transcript.VERSION}' in text


@pytest.fixture(scope="module")
def unindexed(lived: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that store in which messages wait to be indexed; the file."""
    copy = tmp_path_factory.mktemp("unindexed") / "state.db"
    shutil.copy(lived / "state.db", copy)
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE state_meta SET value = 0 WHERE key = 'fts_indexed_to'")
    return copy


def test_the_sql_of_the_format_runs_and_finds_something(unindexed: Path) -> None:
    found = blocks(FORMAT, "sql")
    assert len(found) >= 6
    connection = sqlite3.connect(unindexed)
    for line, sql in found:
        assert connection.execute(sql).fetchall(), f"format.md:{line} finds nothing"
    connection.close()


def _reading(session_id: str) -> str:
    (sql,) = [text for _, text in blocks(FORMAT, "sql") if "WITH shown" in text]
    assert sql.count("'third'") == 2
    return sql.replace("'third'", f"'{session_id}'")


def test_the_reading_rule_of_the_format_gives_what_the_api_gives(lived: Path) -> None:
    with SessionDB(lived / "state.db", read_only=True) as db:
        read = {
            row["id"]: [message["id"] for message in db.get_messages(row["id"])]
            for row in db.sql("SELECT id FROM visible_sessions")
        }
        assert sum(map(bool, read.values())) > 6
        assert {one: [row["id"] for row in db.sql(_reading(one))] for one in read} == read
        carried = db.sql("SELECT session_id, id FROM visible_messages ORDER BY session_id, id")
        assert [(row["session_id"], row["id"]) for row in carried] == sorted(
            (one, message) for one, ids in read.items() for message in ids
        )


def test_the_example_of_the_format_is_what_happens(tmp_path: Path) -> None:
    """Session A is compressed into B, which is rewound: ranges, ids, and the exported line."""
    text = " ".join(FORMAT.read_text().split())
    (told,) = [json.loads(block) for _, block in blocks(FORMAT, "text") if '"rewinds"' in block]
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("A", "cli")
        said = [db.append_message("A", "user" if one % 2 else "assistant", str(one)) for one in range(1, 7)]
        db.compress_session("A", "B", summary="summary", head_until=said[0], tail_from=said[4])
        db.append_message("B", "user", "seven")
        for row in db.sql("SELECT session_id, ord, from_session, first_id, last_id, after_id FROM session_refs"):
            assert f"| {' | '.join(map(str, row.values()))} |" in text
        assert f"`B` shows {', '.join(str(row['id']) for row in db.sql(_reading('B')))}." in text
        db.rewind("B", said[4])
        assert f"it shows {', '.join(str(row['id']) for row in db.sql(_reading('B')))}:" in text
        exported = db.export_session("B")
        assert exported is not None
        for key in ("refs", "rewinds", "kind", "parent_session_id", "message_count"):
            assert exported[key] == told[key], key
        for key in ("messages", "rewound_messages"):
            made = [{name for name, value in one.items() if value is not None} for one in exported[key]]
            assert made == [one.keys() for one in told[key]]
            for name in ("id", "session_id", "role", "hidden"):
                assert [one.get(name) for one in exported[key]] == [one.get(name) for one in told[key]]
        db.delete_session("A")
        kept = db.sql("SELECT id, hidden FROM messages WHERE session_id = 'A' ORDER BY id")
        assert [tuple(row.values()) for row in kept] == [(said[0], -1), (said[4], -1), (said[5], -1)]
        assert db.sql("SELECT purged FROM sessions WHERE id = 'A'") == [{"purged": 1}]


def test_the_rest_of_tool_output_is_unpacked_as_the_format_says(lived: Path, tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None or shutil.which("zstd") is None:
        pytest.skip("there is no sqlite3 or zstd command here")
    (script,) = [text for _, text in blocks(FORMAT, "bash") if "zstd" in text]
    with sqlite3.connect(lived / "state.db") as connection:
        ((number,),) = connection.execute("SELECT id FROM messages WHERE content_rest IS NOT NULL LIMIT 1").fetchall()
    assert "id = 42" in script
    shutil.copy(lived / "state.db", tmp_path)
    done = subprocess.run(
        ["bash", "-euc", script.replace("id = 42", f"id = {number}")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "total 12\n" * 1000, done.stderr


def _kind(entry: dict[str, Any]) -> str:
    return f"event {entry['event']}" if entry["type"] == "event" else str(entry["type"])


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def _samples() -> list[dict[str, Any]]:
    return [json.loads(line) for _, block in blocks(FORMAT, "jsonl") for line in block.splitlines() if line]


def test_every_line_type_a_store_writes_has_a_sample_in_the_format(tmp_path: Path) -> None:
    """Transcripts are read as they are written: replacing and branching start files anew."""
    seen: dict[str, set[str]] = {}
    with SessionDB(tmp_path / "state.db") as db:
        _live(db)
        for entry in _lines(db.sessions_dir):
            seen.setdefault(_kind(entry), set()).update(entry.keys() - {"crc"})  # every line has it; it is told once
    samples: dict[str, set[str]] = {}
    for entry in _samples():
        samples.setdefault(_kind(entry), set()).update(entry)
    assert set(seen) - set(samples) == set(), "have no sample"
    assert set(samples) - set(seen) == set(), "are never written"
    for kind, keys in seen.items():
        assert keys == samples[kind], kind


def test_the_sample_lines_can_be_rebuilt(tmp_path: Path) -> None:
    from hermes.store.upkeep.check import rebuild_store

    folder = tmp_path / "sessions"
    folder.mkdir()
    header = next(entry for entry in _samples() if entry["type"] == "session")
    name = f"{header['session']['id']}.jsonl"
    lines = [line for _, block in blocks(FORMAT, "jsonl") for line in block.splitlines() if line]
    (folder / name).write_text("".join(f"{line}\n" for line in lines) + '{"type":"message","id":9')
    count = len([entry for entry in _samples() if entry["type"] == "message"])
    assert f"restored 1 session and {count} messages from transcripts" in rebuild_store(tmp_path / "new.db", folder)
