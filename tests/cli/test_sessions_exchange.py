"""`hermes sessions export` and `import`: out in constant memory, back without loss, and what a damaged file costs."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
import threading
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.interop.documents import fenced, reply_html, typed_html
from hermes.interop.json_reading import decoded, encoded
from hermes_state import SessionDB
from tests.support import seeds
from tests.support.program import PROGRAM, environment, in_terminal, run
from tests.support.sizes import size

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


def exported(home: Path) -> list[dict[str, Any]]:
    with SessionDB(home / "state.db") as db:
        return db.export_all()


@pytest.fixture
def home(hermes_home: Path) -> Path:
    """Sessions with everything that could get lost."""
    seeds.people(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("parent", "cli", model="m", model_config={"a": 1}, system_prompt="Be kind.", cwd="/srv")
        ids = [db.append_message("parent", "user", f"message {n}") for n in range(6)]
        db.rewind("parent", ids[4])
        db.compress_session("parent", "child", summary="so far", head_until=ids[0], tail_from=ids[3])
        db.branch_session("child", "branch", title="a branch")
        url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
        db.append_message(
            "child", "user", [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
        )
        db.append_message("child", "user", "lone \ud800 surrogate, NUL \0 and \U0001f468\u200d\U0001f469")
        db.append_message("child", "tool", "x" * 5000, tool_name="terminal", tool_call_id="c")
        db.append_message("child", "assistant", None, reasoning_details=[{"type": "t", "n": 1.5}], cost_usd=0.25)
        db.share_session("child", "telegram", "42")
        db.pin_session("child")
    return hermes_home


# ── JSONL ──


def test_what_goes_out_comes_back_equal_with_ids_tags_lineage_and_attachments(home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "all.jsonl", tmp_path / "other"
    out = run("sessions", "export", file, home=home)
    assert (out.status, out.out) == (0, "")
    told = re.fullmatch(rf"exported 10 sessions \((\d+) messages\) to {file}\n", out.err)
    assert told is not None
    back = run("sessions", "import", file, home=other)
    assert back.status == 0 and back.err == "" and back.out.startswith(f"10 sessions with {told[1]} messages imported")
    assert exported(other) == exported(home)
    with SessionDB(other / "state.db", read_only=True) as db:
        assert db.index_status()["pending"] == 0, "what was imported is indexed"
    with SessionDB(other / "state.db") as db, SessionDB(home / "state.db") as mine:
        assert db.check() == []
        kept = [path.name for path in mine.attachments_dir.rglob("*") if path.is_file()]
        assert [path.name for path in db.attachments_dir.rglob("*") if path.is_file()] == kept != []
        assert db.unrewind("parent") == 1


def test_importing_twice_changes_nothing(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    run("sessions", "export", file, home=home)
    before = exported(home)
    again = run("sessions", "import", file, home=home)
    assert again.status == 0
    assert again.out == "0 sessions with 0 messages imported; 10 sessions already here\n"
    assert exported(home) == before


def test_source_and_session_id_choose(home: Path) -> None:
    by_source = run("sessions", "export", "-", "--source", "telegram", home=home).out.splitlines()
    assert [json.loads(line)["source"] for line in by_source] == ["telegram"]
    for name in ("20250612_091500_a1b2c3", "20250612", "Parser rewrite"):
        one = run("sessions", "export", "--session-id", name, "-", home=home).out.splitlines()
        assert [json.loads(line)["id"] for line in one] == ["20250612_091500_a1b2c3"]
    assert run("sessions", "export", "--session-id", "nobody", "-", home=home).status == 1


def test_a_file_is_private_whole_and_never_the_record_itself(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("older")
    file.chmod(0o644)
    link = tmp_path / "link.jsonl"
    link.symlink_to(file)
    assert run("sessions", "export", link, home=home).status == 0
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_text().splitlines()) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "link.jsonl", "out.jsonl"]
    for bad in (home / "state.db", tmp_path, tmp_path / "no" / "such" / "folder.jsonl"):
        done = run("sessions", "export", bad, home=home)
        assert done.status == 1 and done.err.count("\n") == 1 and str(bad) in done.err
    assert run("sessions", "export", "/dev/null", home=home).status == 0
    assert not Path("/dev/null").is_file()
    assert run("sessions", "check", home=home).status == 0


def test_an_export_that_fails_leaves_the_old_file_and_no_remains(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("older")
    limit = f"ulimit -f 8; {' '.join(PROGRAM)} sessions export {file}"  # 8 KB: the disk is full
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {limit}"],
        env=environment(home, {"PYTHONDONTWRITEBYTECODE": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert file.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out.jsonl"]


WORDS = "the parser reads a file and a server answers: deploy, docker, error, line, cache, 京都, 服务器, déjà vu, مرحبا 👍🏽".split()


def large_session(number: int, chance: random.Random) -> dict[str, Any]:
    """A session of 69 messages with all that a message can have."""
    began, told = 1.7e9 + number * 3600, list[dict[str, Any]]()
    for n in range(69):
        words = " ".join(chance.choices(WORDS, k=chance.choice((5, 20, 60, 150))))
        message: dict[str, Any] = {
            "role": ("user", "assistant", "tool")[n % 3],
            "content": words,
            "timestamp": began + n,
        }
        if message["role"] == "assistant":
            call = {
                "id": f"c{n}",
                "type": "function",
                "function": {"name": "terminal", "arguments": '{"command": "ls"}'},
            }
            message |= {
                "tool_calls": [call],
                "reasoning_content": "so",
                "input_tokens": n,
                "cost_usd": 0.001,
                "model": "m",
            }
        elif message["role"] == "tool":
            message |= {"tool_name": "terminal", "tool_call_id": f"c{n - 1}"}
        told.append(message)
    return {
        "id": f"s{number:04}", "source": ("cli", "telegram")[number % 2], "user_id": str(number % 5), "started_at": began,
        "title": f"Title {number}" if number % 3 else None, "system_prompt": f"Prompt {number % 4}", "messages": told,
        "tags": ["work"] if number % 7 == 0 else [], "ended_at": began + 69 if number % 9 else None,
    }  # fmt: skip


def rows(home: Path) -> dict[str, list[Any]]:
    """Every row of the store, by table; the index is another matter, and whether a transcript is kept as well."""
    import sqlite3

    found = {}
    with closing(sqlite3.connect(home / "state.db")) as file:
        for table in ("sessions", "messages", "session_tags", "session_members", "session_refs", "session_rewinds",
                      "attachments", "system_prompts"):  # fmt: skip
            columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})") if row[1] != "transcript"]
            found[table] = sorted(file.execute(f"SELECT {', '.join(columns)} FROM {table}"), key=repr)
    return found


def test_export_and_import_of_many_messages_take_constant_memory_and_give_every_row_back(
    home: Path, tmp_path: Path
) -> None:
    with SessionDB(home / "state.db", durability="normal", transcripts="off") as db:
        chance = random.Random(7)
        db.import_sessions(large_session(number, chance) for number in range(size(150, 986)))
        assert db.message_count() > size(10_000, 68_000)
    file = tmp_path / "all.jsonl"
    script = (
        "import sys; from hermes.cli.main import main; status = main(sys.argv[1:]);"
        "peak = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0];"
        "print(int(peak) // 1024, file=sys.stderr); sys.exit(status)"
    )

    def peak(home: Path, *words: object) -> int:
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, words)],
            env=environment(home),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stderr.split()[-1])

    assert peak(home, "sessions", "export", file) < 100
    assert file.stat().st_size > size(6_000_000, 45_000_000)
    for form in ("md", "html"):
        assert peak(home, "sessions", "export", tmp_path / f"all.{form}") < 100
        (tmp_path / f"all.{form}").unlink()
    assert peak(tmp_path / "other", "sessions", "import", file) < 150
    before, after = rows(home), rows(tmp_path / "other")
    for table, lines in before.items():
        assert after[table] == lines, table
    assert all(before.values()), "there was something of everything"


def test_long_work_shows_progress_on_a_terminal_and_nothing_in_a_pipe(hermes_home: Path, tmp_path: Path) -> None:
    with SessionDB(hermes_home / "state.db", durability="normal", transcripts="off") as db:
        for number in range(200):
            db.import_session(seeds.session(f"s{number}", float(number), ("user", "word " * 4000)))
    pipe = tmp_path / "slow"
    os.mkfifo(pipe)
    shown = threading.Event()

    def read_slowly() -> None:
        with pipe.open("rb") as stream:
            while stream.read(40_000):
                shown.wait(0.05)  # until the bar is there; then as fast as it comes

    reader = threading.Thread(target=read_slowly, daemon=True)
    reader.start()

    def look(seen: str) -> None:
        if re.search(r"exporting [█░]{20} \d+%", seen):
            shown.set()

    status, seen = in_terminal("sessions", "export", pipe, home=hermes_home, answer=look)
    reader.join(timeout=60)
    assert status == 0 and shown.is_set()
    assert seen.endswith(f"\r\x1b[Kexported 200 sessions (200 messages) to {pipe}\n")
    assert run("sessions", "export", tmp_path / "all.jsonl", home=hermes_home).err.startswith("exported")


# ── bad files ──


def test_of_a_damaged_file_what_is_good_comes_in_and_the_rest_is_listed(home: Path, tmp_path: Path) -> None:
    good = run("sessions", "export", "-", "--source", "cli", home=home).out.splitlines()
    lines = [
        good[0], "", '{"id": "cut off', "[1, 2]", '{"source": "cli"}', good[1], '{"id": "m", "messages": [{"content": "x"}]}',
        '{"id": "t", "source": ["cli"], "messages": []}', '{"id": "", "messages": []}', good[2],
    ]  # fmt: skip
    file = tmp_path / "damaged.jsonl"
    file.write_bytes("\n".join(lines).encode() + b'\n{"id": "\xff\xfe"}\n')
    done = run("sessions", "import", file, home=tmp_path / "other")
    assert done.status == 1
    assert done.out.startswith("3 sessions with")
    assert [line.split(":")[1].strip() for line in done.err.splitlines()] == [
        f"line {n}" for n in (3, 4, 5, 7, 8, 9, 11)
    ]
    with SessionDB(tmp_path / "other" / "state.db") as db:
        assert {session["id"] for session in db.iter_export()} == {json.loads(line)["id"] for line in good[:3]}
        assert db.check() == []


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "\ud800",
    "\0",
    [],
    [1],
    [[1, 2, 3]],
    {},
    {"a": 1},
    [None],
    [["a"]],
    1e308,
]


def mangled(value: Any, rnd: random.Random) -> Any:
    """The value with something in it replaced by something odd, or left out."""
    if isinstance(value, (dict, list)) and value and rnd.random() < 0.9:
        made = dict(value) if isinstance(value, dict) else list(value)
        key = rnd.choice(list(made) if isinstance(made, dict) else range(len(made)))
        if isinstance(made, dict) and rnd.random() < 0.2:
            del made[key]
        else:
            made[key] = mangled(made[key], rnd)
        return made
    return rnd.choice(ODD)


@pytest.mark.parametrize("seed", range(3))
def test_no_line_whatever_it_holds_stops_the_import_or_harms_the_record(home: Path, tmp_path: Path, seed: int) -> None:
    rnd = random.Random(seed)
    sessions = exported(home)
    lines = []
    for number in range(150):
        session = mangled(rnd.choice(sessions), rnd)
        if isinstance(session, dict) and isinstance(session.get("id"), str):
            session["id"] += f"-{number}"
        lines.append(encoded(session))
    lines.append(
        encoded({"id": "last", "source": "cli", "started_at": 1.0, "messages": [{"role": "user", "content": "ok"}]})
    )
    done = run("sessions", "import", "-", home=tmp_path / "other", input=b"\n".join(lines))
    assert done.status == 1 and "internal error" not in done.err
    assert all(re.match(r"hermes: (line \d+: |… and)", line) for line in done.err.splitlines())
    with SessionDB(tmp_path / "other" / "state.db") as db:
        assert [message["content"] for message in db.get_messages("last")] == ["ok"]
        assert len(db.export_all()) > 50
        assert db.check() == []


def test_a_file_of_something_else_is_refused_in_one_line(home: Path, tmp_path: Path) -> None:
    import sqlite3

    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE other (a)")
        connection.execute("PRAGMA application_id=1234567")
    (tmp_path / "torn.db").write_bytes((home / "state.db").read_bytes()[:5000])
    for name in ("foreign.db", "torn.db", "missing.jsonl", "."):
        done = run("sessions", "import", tmp_path / name, home=tmp_path / "other")
        assert done.status == 1, name
        assert done.err.count("\n") == 1 and "internal error" not in done.err, done.err


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_bytes(b"")
    done = run("sessions", "import", file, home=tmp_path / "other")
    assert done.status == 1 and "empty.jsonl is empty" in done.err


# ── another database ──


def test_another_state_db_comes_in_also_through_standard_input(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    done = run("sessions", "import", home / "state.db", home=other)
    assert done.status == 0 and done.out.startswith("10 sessions with")
    assert exported(other) == exported(home)
    piped = run("sessions", "import", "-", home=tmp_path / "third", input=(home / "state.db").read_bytes())
    assert piped.status == 0 and piped.out == done.out
    itself = run("sessions", "import", home / "state.db", home=home)
    assert itself.status == 1 and "the store itself" in itself.err


@pytest.mark.parametrize("version", [1, 6, 11])
def test_a_database_of_an_old_version_comes_in(tmp_path: Path, version: int) -> None:
    from tests.support import assert_rows_kept, digest, old_files

    file = tmp_path / "old.db"
    made = old_files.build(file, version)
    before = digest(file)
    done = run("sessions", "import", file, home=tmp_path / "other")
    assert done.status == 0 and done.err == ""
    assert digest(file) == before
    with SessionDB(tmp_path / "other" / "state.db") as db:
        assert_rows_kept(db, made)


# ── Markdown and HTML ──


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


NASTY = '<script>alert(1)</script> <img src=x onerror=alert(2)> & "quotes" `<b>` **<i>** </pre></section>'


def test_the_page_escapes_everything_and_needs_nothing_from_elsewhere(home: Path, tmp_path: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session('"><script>', "cli<script>", model="<script>")
        db.append_message('"><script>', "user", NASTY)
        db.append_message(
            '"><script>',
            "assistant",
            f"```html\n{NASTY}\n```\nafter",
            tool_calls=[{"function": {"name": NASTY, "arguments": NASTY}}],
        )
        db.append_message('"><script>', "tool", NASTY, tool_name=NASTY)
        db.append_message('"><script>', "<script>", NASTY, reasoning=NASTY)
        db.set_session_title('"><script>', "<script>title</script>")
    file = tmp_path / "page.html"
    assert run("sessions", "export", file, home=home).status == 0
    text = file.read_text()
    page = Page(text)
    assert "script" not in page.tags and "onerror" not in page.attributes and "src" in page.attributes
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert (
        "http:" not in text.replace("http-equiv", "") and "https:" not in text and "prefers-color-scheme: dark" in text
    )
    assert "京都旅行の計画" in page.text and base64.b64encode(PICTURE).decode() in text


@given(
    st.text(alphabet=st.characters(codec="utf-8"))
    | st.lists(st.sampled_from(["`", "```", "~~~", "\n", "**", "<", ">", "&", "a", " "])).map("".join)
)
def test_any_text_stays_text_on_the_page(text: str) -> None:
    page = Page(typed_html(text))
    assert set(page.tags) <= {"p", "pre", "code"}


MARKDOWN = ["`", "```\n", "~~~", "\n", "**", "<", ">", "&", "a", " ", "[a](", "javascript:alert(1)", "data:text/html,x", "http://x",
            ")", "![", "](", "|", "|---|\n", "- ", "# ", "<script>", "<img src=x onerror=alert(1)>", "\"", "<!--", "&#106;", "\\"]  # fmt: skip


@given(st.text(alphabet=st.characters(codec="utf-8")) | st.lists(st.sampled_from(MARKDOWN)).map("".join))
def test_a_reply_becomes_nothing_that_acts(text: str) -> None:
    page = Page(reply_html(text))
    assert not set(page.tags) - {
        "div", "p", "br", "hr", "em", "strong", "s", "a", "code", "pre", "blockquote", "ul", "ol", "li",
        "table", "thead", "tbody", "tr", "th", "td", "span", "h1", "h2", "h3", "h4", "h5", "h6",
    }  # fmt: skip
    assert set(page.attributes) <= {"class", "dir", "href", "rel", "title", "style", "start"}
    assert not [one for one in page.links if re.match(r"(?i)\s*(javascript|data|vbscript|file):", one)]


@given(st.text(alphabet="`ab\n", max_size=60))
def test_nothing_inside_a_fence_can_close_it(text: str) -> None:
    lines = fenced(text).split("\n")
    fence = lines[0]
    assert set(fence) == {"`"} and lines[-1] == fence
    assert not any(line.strip().startswith(fence) for line in lines[1:-1])


def test_markdown_reads_like_the_conversation(home: Path) -> None:
    text = run("sessions", "export", "-", "--format", "md", "--session-id", "Parser rewrite", home=home).out
    assert text.startswith("# Parser rewrite\n\n- Session: `20250612_091500_a1b2c3`\n- Source: cli\n- Model: gpt-4o\n")
    assert "## User · 2025-06-12 09:16\n\nThe old parser is slow" in text
    assert 'Calls `terminal`:\n\n```json\n{"command": "pytest' in text
    assert "````\n" not in text and "## Tool terminal" in text
    assert run("sessions", "export", "-", "--format", "pdf", home=home).status == 2


# ── the encoding ──

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_value_survives_its_line(value: Any) -> None:
    data = encoded(value)
    assert b"\n" not in data
    assert decoded(data) == value


@given(st.binary(max_size=80) | st.text(alphabet='{}[]",:\\u d8', max_size=40).map(str.encode))
def test_any_bytes_are_json_or_a_value_error(data: bytes) -> None:
    try:
        value = decoded(data)
    except ValueError:
        return
    assert isinstance(json.dumps(value), str)


def test_exports_name_no_place_of_this_machine(home: Path) -> None:
    assert os.fspath(home) not in run("sessions", "export", "-", home=home).out
