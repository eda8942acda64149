"""Database files as other programs left them: schema versions 1 to 11, newer foreign ones, and broken ones.

The tables of every version come from one list of columns with the version that brought each: the public
migration table, read backwards. Rows go in through plain SQL, so that the old triggers fill the old index.
Nothing here knows our store, and nothing here may be open in the same process while our store has the file
open: two SQLite libraries in one process undo each other's file locks.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]

OLD_VERSIONS = tuple(range(1, 12))
BULK_SIZE = 50
OLD_TABLES = ("sessions", "messages")
OLD_TRIGGERS = tuple(
    f"{table}_{event}" for table in ("messages_fts", "messages_fts_trigram") for event in ("insert", "delete", "update")
)

# (column, declaration, the version that brought it), in the order of the version 11 DDL.
SESSION_COLUMNS = (
    ("id", "TEXT PRIMARY KEY", 1),
    ("source", "TEXT NOT NULL", 1),
    ("user_id", "TEXT", 1),
    ("model", "TEXT", 1),
    ("model_config", "TEXT", 1),
    ("system_prompt", "TEXT", 1),
    ("parent_session_id", "TEXT", 1),
    ("started_at", "REAL NOT NULL", 1),
    ("ended_at", "REAL", 1),
    ("end_reason", "TEXT", 1),
    ("message_count", "INTEGER DEFAULT 0", 1),
    ("tool_call_count", "INTEGER DEFAULT 0", 1),
    ("input_tokens", "INTEGER DEFAULT 0", 1),
    ("output_tokens", "INTEGER DEFAULT 0", 1),
    ("cache_read_tokens", "INTEGER DEFAULT 0", 5),
    ("cache_write_tokens", "INTEGER DEFAULT 0", 5),
    ("reasoning_tokens", "INTEGER DEFAULT 0", 5),
    ("billing_provider", "TEXT", 5),
    ("billing_base_url", "TEXT", 5),
    ("billing_mode", "TEXT", 5),
    ("estimated_cost_usd", "REAL", 5),
    ("actual_cost_usd", "REAL", 5),
    ("cost_status", "TEXT", 5),
    ("cost_source", "TEXT", 5),
    ("pricing_version", "TEXT", 5),
    ("title", "TEXT", 3),
    ("api_call_count", "INTEGER DEFAULT 0", 8),
)
MESSAGE_COLUMNS = (
    ("id", "INTEGER PRIMARY KEY AUTOINCREMENT", 1),
    ("session_id", "TEXT NOT NULL REFERENCES sessions(id)", 1),
    ("role", "TEXT NOT NULL", 1),
    ("content", "TEXT", 1),
    ("tool_call_id", "TEXT", 1),
    ("tool_calls", "TEXT", 1),
    ("tool_name", "TEXT", 1),
    ("timestamp", "REAL NOT NULL", 1),
    ("token_count", "INTEGER", 1),
    ("finish_reason", "TEXT", 2),
    ("reasoning", "TEXT", 6),
    ("reasoning_content", "TEXT", 7),
    ("reasoning_details", "TEXT", 6),
    ("codex_reasoning_items", "TEXT", 6),
    ("codex_message_items", "TEXT", 9),
)
INDEXES = (
    ("CREATE INDEX IF NOT EXISTS idx_sessions_source ON sessions(source)", 1),
    ("CREATE INDEX IF NOT EXISTS idx_sessions_parent ON sessions(parent_session_id)", 1),
    ("CREATE INDEX IF NOT EXISTS idx_sessions_started ON sessions(started_at DESC)", 1),
    ("CREATE INDEX IF NOT EXISTS idx_messages_session ON messages(session_id, timestamp)", 1),
    ("CREATE UNIQUE INDEX IF NOT EXISTS idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL", 4),
)


def columns(table: str, version: int) -> list[str]:
    """The columns that a file made by version ``version`` has in ``table``."""
    listed = SESSION_COLUMNS if table == "sessions" else MESSAGE_COLUMNS
    return [name for name, _, since in listed if since <= version]


# ── the tables ──


def schema(version: int) -> list[str]:
    """Every statement that a program of that version runs at each of its starts."""
    made = ["CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"]
    for table, listed, last in (
        ("sessions", SESSION_COLUMNS, ", FOREIGN KEY (parent_session_id) REFERENCES sessions(id)"),
        ("messages", MESSAGE_COLUMNS, ""),
    ):
        body = ", ".join(f"{name} {kind}" for name, kind, since in listed if since <= version)
        made.append(f"CREATE TABLE IF NOT EXISTS {table} ({body}{last})")
    if version >= 11:
        made.append("CREATE TABLE IF NOT EXISTS state_meta (key TEXT PRIMARY KEY, value TEXT)")
    made += [sql for sql, since in INDEXES if since <= version]
    return made + _full_text(version)


def _full_text(version: int) -> list[str]:
    made = _inline_index("messages_fts", "") if version >= 11 else _external_index("messages_fts", "")
    if version == 10:
        made += _external_index("messages_fts_trigram", ", tokenize='trigram'")
    if version >= 11:
        made += _inline_index("messages_fts_trigram", ", tokenize='trigram'")
    return made


def _external_index(name: str, options: str) -> list[str]:
    remove = f"INSERT INTO {name}({name}, rowid, content) VALUES('delete', old.id, old.content);"
    add = f"INSERT INTO {name}(rowid, content) VALUES (new.id, new.content);"
    arguments = f"content, content=messages, content_rowid=id{options}"
    made = f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING fts5({arguments})"
    return [made, *_triggers(name, add, remove)]


def _inline_index(name: str, options: str) -> list[str]:
    covered = ("content", "tool_name", "tool_calls")
    parts = " || ' ' || ".join(f"COALESCE(new.{column}, '')" for column in covered)
    remove = f"DELETE FROM {name} WHERE rowid = old.id;"
    add = f"INSERT INTO {name}(rowid, content) VALUES (new.id, {parts});"
    made = f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING fts5(content{options})"
    return [made, *_triggers(name, add, remove)]


def _triggers(name: str, add: str, remove: str) -> list[str]:
    begin = "CREATE TRIGGER IF NOT EXISTS"
    return [
        f"{begin} {name}_insert AFTER INSERT ON messages BEGIN {add} END",
        f"{begin} {name}_delete AFTER DELETE ON messages BEGIN {remove} END",
        f"{begin} {name}_update AFTER UPDATE ON messages BEGIN {remove} {add} END",
    ]


def _grow(db: sqlite3.Connection, version: int) -> None:
    """Take a version 1 file up as the old program did: the same columns, in the order they were added."""
    for step in range(2, version + 1):
        for table, listed in (("sessions", SESSION_COLUMNS), ("messages", MESSAGE_COLUMNS)):
            for name, kind, since in listed:
                if since == step:
                    db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    if version >= 11:
        for name in ("insert", "delete", "update"):
            db.execute(f"DROP TRIGGER messages_fts_{name}")
        db.execute("DROP TABLE messages_fts")
    for statement in schema(version):
        db.execute(statement)


# ── the files ──


def build(
    path: Path,
    version: int,
    *,
    sessions: int = 0,
    fill: str = "standard",
    grown: bool = False,
    number: int | None = None,
    leave_wal: bool = False,
) -> Row:
    """Make the file a program of schema ``version`` would have left at ``path``, and describe what is in it.

    ``fill``: "standard" is everything users have, "small" the same without the 3 MB text, "none" nothing;
    ``sessions`` adds that many plain sessions of 50 messages. ``grown``: made as version 1, upgraded since.
    ``number``: what schema_version says, where that differs (0: it has no row). ``leave_wal``: the program
    was killed, so the rows are only in the -wal file.

    The description: ``sessions`` and ``messages`` (rows, by the columns of that version), ``finds`` (a text →
    the ids that hold it), ``absent`` (texts that nothing holds), ``meta``, ``last_id`` (the highest message
    id ever given out).
    """
    made = _describe(version, sessions, fill)
    shown = version if number is None else number
    with _new_file(path, schema(1 if grown else version), leave_wal=leave_wal) as db:
        if grown:
            _grow(db, version)
        if shown:
            db.execute("INSERT INTO schema_version VALUES (?)", (shown,))
        _insert(db, made, version)
    return made


def build_foreign(
    path: Path, version: int, *, fill: str = "small", full_text: bool = True, leave_wal: bool = False
) -> Row:
    """A file of a newer program (12 … 30): like version 11, with columns and tables nobody knows."""
    made = _describe(11, 0, fill)
    with _new_file(path, [*schema(11), *FOREIGN], leave_wal=leave_wal) as db:
        db.execute("INSERT INTO schema_version VALUES (?)", (version,))
        _insert(db, made, 11)
        db.execute("UPDATE sessions SET workspace_tag = 'lab', heat = 7 WHERE source = 'cli'")
        db.execute("INSERT INTO plugin_state VALUES ('clock', x'00ff10')")
        if not full_text:
            for name in OLD_TRIGGERS:
                db.execute(f"DROP TRIGGER {name}")
            db.execute("DROP TABLE messages_fts")
            db.execute("DROP TABLE messages_fts_trigram")
    return made


FOREIGN = (
    "ALTER TABLE sessions ADD COLUMN workspace_tag TEXT",
    "ALTER TABLE sessions ADD COLUMN heat INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE messages ADD COLUMN platform_message_id TEXT",
    "ALTER TABLE messages ADD COLUMN observed INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE plugin_state (name TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID",
    "CREATE TABLE compaction_queue (session_id TEXT REFERENCES sessions(id), due REAL)",
    "CREATE VIEW busy_sessions AS SELECT id, heat FROM sessions WHERE heat > 0",
)


def not_a_database(path: Path, text: bytes = b"Dear diary,\ntoday I was not a database.\n" * 400) -> None:
    """Some other file, long enough to be read as pages."""
    path.write_bytes(text)


def truncated(path: Path, version: int = 11, *, keep: float = 0.5) -> None:
    """A real file of which only the first part (a share of its size) was copied."""
    build(path, version, fill="small", sessions=4)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])


@contextmanager
def _new_file(path: Path, statements: list[str], *, leave_wal: bool) -> Iterator[sqlite3.Connection]:
    """A WAL file with these tables; ``leave_wal``: it ends as a kill leaves it, the rest in the -wal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # only the tests' own time is at stake
        for statement in statements:
            db.execute(statement)
        if leave_wal:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA wal_autocheckpoint = 0")
        yield db
        if leave_wal:  # closing would empty the -wal into the file: keep both as they are now
            for end in ("", "-wal"):
                shutil.copyfile(f"{path}{end}", f"{path}{end}.killed")
    if leave_wal:
        for end in ("", "-wal"):
            Path(f"{path}{end}.killed").replace(f"{path}{end}")


def _insert(db: sqlite3.Connection, made: Row, version: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    for table in OLD_TABLES:
        names = columns(table, version)
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
        db.executemany(statement, [[row[name] for name in names] for row in made[table]])
    if made["messages"]:  # the highest number was given out once, and its message is gone
        last = made["messages"][-1]
        db.execute(
            "INSERT INTO messages (id, session_id, role, content, timestamp) VALUES (?, ?, 'user', 'wanderlost', ?)",
            (made["last_id"], last["session_id"], last["timestamp"]),
        )
        db.execute("DELETE FROM messages WHERE id = ?", (made["last_id"],))
    for item in made["meta"].items():
        db.execute("INSERT INTO state_meta VALUES (?, ?)", item)
    db.execute("COMMIT")


# ── the rows ──


def _describe(version: int, sessions: int, fill: str) -> Row:
    told = [] if fill == "none" else list(_conversations(big=fill == "standard"))
    told += [_bulk(number) for number in range(sessions)]
    made: Row = {"version": version, "sessions": [], "messages": [], "finds": {}, "absent": []}
    for talk in told:
        rows = [_message_row(talk, place, message) for place, message in enumerate(talk["messages"])]
        session = _session_row(talk, rows)
        made["sessions"].append({name: session[name] for name in columns("sessions", version)})
        for row, message in zip(rows, talk["messages"], strict=True):
            row["id"] = len(made["messages"]) + 1
            made["messages"].append({name: row[name] for name in columns("messages", version)})
            for text in message.get("find", ()):
                made["finds"].setdefault(text, []).append(row["id"])
            made["absent"] += message.get("absent", ())
    made["last_id"] = len(made["messages"]) + 5
    made["meta"] = {"last_auto_prune": "1735689600.0"} if version >= 11 and told else {}
    if told:
        made["absent"].append("wanderlost")
    return made


def _session_row(talk: Row, rows: list[Row]) -> Row:
    row: Row = {name: talk.get(name) for name, _, _ in SESSION_COLUMNS}
    for name, kind, _ in SESSION_COLUMNS:
        if kind == "INTEGER DEFAULT 0" and row[name] is None:
            row[name] = 0
    row["message_count"] = len(rows)
    row["tool_call_count"] = sum(len(json.loads(one["tool_calls"] or "[]")) for one in rows)
    return row


def _message_row(talk: Row, place: int, message: Row) -> Row:
    row: Row = {name: message.get(name) for name, _, _ in MESSAGE_COLUMNS}
    row["session_id"] = talk["id"]
    row["timestamp"] = talk["started_at"] + 1.25 * (place + 1)
    return row


def _user(text: str | None, *find: str) -> Row:
    return {"role": "user", "content": text, "find": find}


def _says(text: str | None, *find: str, **more: Any) -> Row:
    more = {"finish_reason": "stop", "token_count": 9, **more}
    return {"role": "assistant", "content": text, "find": find, **more}


def _calls(name: str, arguments: Row, *find: str, text: str | None = None, **more: Any) -> Row:
    """A tool call the way chat APIs give it: JSON in JSON, so that a line break inside is escaped twice."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "call_" + name, "type": "function", "function": function}]
    more = {"finish_reason": "tool_calls", "tool_calls": json.dumps(calls), **more}
    return {"role": "assistant", "content": text, "find": find, **more}


def _result(name: str, data: Any, *find: str, **more: Any) -> Row:
    text = data if isinstance(data, str) else json.dumps(data)
    more = {"tool_call_id": "call_" + name, "tool_name": name, **more}
    return {"role": "tool", "content": text, "find": find, **more}


T0 = 1_735_689_600.0
PROMPT = "You are a careful assistant who reads before writing. " * 110
ROOT, SUBAGENT = "20250101_000000_aaaa01", "20250101_000500_aaaa02"
MIDDLE, TIP = "20250101_001640_aaaa03", "20250101_003330_aaaa04"


def _talk(session_id: str, start: float, *messages: Row, end: tuple[float, str] | None = None, **more: Any) -> Row:
    talk = {"id": session_id, "source": "cli", "started_at": T0 + start, "messages": messages, **more}
    if end:
        talk |= {"ended_at": T0 + end[0], "end_reason": end[1]}
    return talk


def _conversations(*, big: bool) -> Iterator[Row]:
    yield from _chain()
    yield from _titled()
    yield _languages()
    yield _tools()
    yield _oddities(big=big)


def _chain() -> Iterator[Row]:
    """Compressed twice, with a sub-agent; then one that was compressed and never went on, and a branch."""
    common: Row = {"model": "anthropic/claude-sonnet-4.6", "system_prompt": PROMPT}
    counters: Row = {"input_tokens": 1200, "output_tokens": 340, "cache_read_tokens": 7}
    billing: Row = {"billing_provider": "anthropic", "estimated_cost_usd": 0.0125, "cost_status": "estimated"}
    yield _talk(
        ROOT,
        0,
        _user("Please   plan the kestrelwing\n\tmigration, step by step, and mind old files", "kestrelwing"),
        _says("First we read the brackenmoor notes.", "brackenmoor", **_thoughts()),
        end=(1000, "compression"),
        title="my project",
        **common,
        **counters,
        **billing,
        api_call_count=3,
        model_config=json.dumps({"temperature": 0.2, "stop": ["\n\n"], "name": "größer"}),
    )
    yield _talk(
        SUBAGENT,
        500,
        _user("Look into the thistlegate logs", "thistlegate"),
        _says("All fernhollow.", "fernhollow"),
        end=(600, "done"),
        parent_session_id=ROOT,
        **common,
    )
    yield _talk(
        MIDDLE,
        1000,
        _user("Summary so far: larkspurring is done", "larkspurring"),
        _says("Going on."),
        end=(2000, "compression"),
        parent_session_id=ROOT,
        title="my project #2",
        **common,
    )
    yield _talk(
        TIP,
        2010,
        _user("Now the tip: ship the osprelline build", "osprelline"),
        _says("Shipped."),
        parent_session_id=MIDDLE,
        title="my project #3",
        output_tokens=9,
        **common,
    )
    yield _talk(
        "20250101_010000_bbbb01",
        3600,
        _user("This one was compressed but never continued: mossgrail", "mossgrail"),
        end=(3700, "compression"),
        title="lonely end",
        system_prompt="",
    )
    fork = "20250101_020000_cccc01"
    yield _talk(fork, 7200, _user("Before: willowmere", "willowmere"), end=(7300, "branched"), title="fork")
    after = _user("After: hazelcrest", "hazelcrest")
    yield _talk("20250101_020140_cccc02", 7300, after, parent_session_id=fork)


def _thoughts() -> Row:
    return {
        "reasoning": "Think about order.",
        "reasoning_content": "Order first.",
        "reasoning_details": json.dumps([{"type": "text", "text": "ö\n"}]),
        "codex_reasoning_items": json.dumps([{"id": "rs_1", "summary": []}]),
        "codex_message_items": json.dumps([{"id": "msg_1", "phase": "final"}]),
    }


LOOK_ALIKES = (
    "bug", "bug #login page", "My Project", "notes #2", "100%_done", "100%_done #2", "100 is_done #9", "项目 🦊",
)  # fmt: skip


def _titled() -> Iterator[Row]:
    """Titles that look alike: numbers, case, a "#" that is no number, and the wildcards of LIKE."""
    for place, title in enumerate(LOOK_ALIKES):
        word, start = f"titleword{place:02d}", 86_400 + place * 3600
        yield _talk(
            f"20250102_{place:02d}0000_dddd",
            start,
            _user(f"A short talk about {word}", word),
            end=(start + 60, "user_exit"),
            title=title,
            source="telegram",
            user_id="12345",
        )


def _languages() -> Row:
    return _talk(
        "20250103_090000_eeee0001",
        200_000,
        _user("部署失败了怎么办？请看看数据库连接池", "败", "部署", "数据库", "数据库连接池"),
        _says("先检查Traefik网关", "Traefik", "网关", "查"),
        _user("鯨", "鯨"),
        _says("大きな麒麟がサバンナを歩く", "麒", "麒麟", "サバンナ"),
        _user("안녕하세요 세계", "세계"),
        _says("Hôm qua tuyết trắng phủ kín con phố", "tuyết trắng", "tuyet trang"),
        _user("ขอบคุณครับ", "ขอบคุณ"),
        _says("Fine 🦊👩\u200d👩\u200d👧 marmaladeish", "marmaladeish", "🦊"),
        _user("Straßenbahnhaltestelle naïveté crème brûlée", "naïveté", "naivete"),
        _user("call getPlumageById(7) in src/plumage_store.py", "PlumageById", "src/plumage_store.py"),
        source="telegram",
        user_id="777",
        model="openai/gpt-5",
    )


def _tools() -> Row:
    """Calls and results as JSON: line breaks, quotes and letters behind escapes; one is cut off."""
    command = 'cat <<X\nzwirbelfoot "quoted"\n\t文書管理\nX'
    output = {"output": "first\nglimmerash\ttab\u2028漢", "exit_code": 0}
    long_text = "\n".join(f"line {number}: nothing to see" for number in range(1500))
    found_row = {"rows": [{"name": "Ann O'Nymous", "quip": "it's a pepperwhistle"}]}
    two_calls = [
        {"id": "c1", "function": {"name": "one", "arguments": "{}"}},
        {"id": "c2", "function": {"name": "two", "arguments": '{"a": "sorrelpatch"}'}},
    ]
    return _talk(
        "20250104_090000_ffff01",
        300_000,
        _user("Run the tools"),
        _calls("terminal", {"command": command}, "zwirbelfoot", "書", "文書管理", absent=("nzwirbelfoot", "u66f8")),
        _result("terminal", output, "glimmerash", "漢", absent=("nglimmerash", "u6f22")),
        _calls("plumbline_lookup", {"q": "C:\\new\\tables", "who": "Đặng Dungarvon"}, "Dungarvon", text=""),
        _result("plumbline_lookup", found_row, "pepperwhistle"),
        _result("read_file", {"text": f"quillhead\n{long_text}\nquilltail"}, "quillhead", "quilltail"),
        _result("broken_tool", '{"output": "cut off in the middle of a driftspindle', "driftspindle"),
        _calls("two", {}, "sorrelpatch", tool_calls=json.dumps(two_calls)),
        _says("Done with the tools: cobblestar", "cobblestar"),
        model="openai/gpt-5",
        system_prompt=PROMPT,
    )


def _oddities(*, big: bool) -> Row:
    """NULL and empty texts, a NUL, text that looks like stored parts, an unknown role, and a huge paste."""
    messages = [
        _says("An undergrowthy answer before any question", "undergrowthy"),
        _says(None),
        _says(""),
        _user("Ordinary after a while: junipercoil", "junipercoil"),
        _user("a NUL:\x00quartzling", "quartzling"),
        _user('[{"type": "text", "text": "pasted saffronette"}]', "saffronette"),
        {"role": "developer", "content": "A role nobody knows: umberfield", "find": ("umberfield",)},
    ]
    if big:
        paste = " ".join(f"pebble{number % 997:03d}" for number in range(300_000))
        messages.append(_user(f"bigopening {paste} bigclosing", "bigopening", "bigclosing"))
    more: Row = {"source": "discord", "user_id": "u-1", "model_config": "{}"}
    return _talk("20250105_090000_9999aa", 400_000, *messages, **more)


def _bulk(number: int) -> Row:
    """50 plain messages that one word finds, whichever field it is in."""
    word, start = f"batch{number:04d}", 500_000 + number * 100
    messages = []
    for place in range(BULK_SIZE):
        text = f"{word} message {place}: the weather over needle{number:04d}{place:02d} is fair, 天気{place}"
        if place % 10 == 8:
            messages.append(_calls("forecast", {"note": f"x\n{text}"}, word))
        elif place % 10 == 9:
            messages.append(_result("forecast", {"note": f"x\n{text}"}, word))
        else:
            messages.append(_user(text, word) if place % 2 == 0 else _says(text, word))
    end, title = (start + 90, "user_exit"), f"bulk talk {number}"
    return _talk(f"20250106_{number:06d}_bulk", start, *messages, end=end, title=title)
