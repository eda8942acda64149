"""`hermes doctor`: each thing broken in turn, and the line it gets."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.faults import can_mount, need
from tests.support.program import ONLY_OLLAMA, PROGRAM, environment, run

QUIET = {
    "http_proxy": "", "https_proxy": "", "no_proxy": "*",
}  # fmt: skip


@pytest.fixture
def home(hermes_home: Path) -> Path:
    """A home with a little history, where all is well."""
    with SessionDB(db_path=hermes_home / "state.db") as db:
        db.create_session("one", "cli")
        db.append_message("one", role="user", content="hello")
    return hermes_home


def doctor(home: Path, **env: str) -> tuple[int, list[dict[str, str]]]:
    """The exit status and the findings."""
    done = run("doctor", "--json", home=home, env=QUIET | env)
    assert done.err == "", done.err
    said = json.loads(done.out)
    assert said["ok"] == (done.status == 0)
    return done.status, said["checks"]


def about(found: list[dict[str, str]], name: str) -> list[tuple[str, str, str]]:
    return [(one["state"], one["text"], one["hint"]) for one in found if one["name"] == name]


def only(home: Path, name: str, **env: str) -> tuple[str, str, str]:
    """The one line about a thing; a wrong one must give exit status 1, and no other thing may be wrong."""
    status, found = doctor(home, **env)
    (line,) = about(found, name)
    assert status == (1 if line[0] == "wrong" else 0), found
    if line[0] != "well":
        assert line[2], "a hint says what to do"
    assert [one for one in found if one["state"] == "wrong" and one["name"] != name] == []
    return line


def config(home: Path, text: str) -> Path:
    path = home / "config.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def snapshot(home: Path) -> dict[str, tuple[int, int, str]]:
    found = {}
    for path in sorted(home.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(home))] = (path.stat().st_mode, path.stat().st_mtime_ns, content)
    return found


# ── when all is well ──


def test_all_is_well_and_nothing_is_changed(home: Path) -> None:
    config(home, "model: {default: extractive}\n")
    before = snapshot(home)
    done = run("doctor", home=home, env=QUIET)
    assert done.status == 0, done.out
    assert done.err == ""
    assert snapshot(home) == before
    lines = done.out.splitlines()
    assert f"✓ store            {home / 'state.db'}: 1 session, 1 message, " in done.out
    assert f"✓ config           {home / 'config.yaml'} is fine" in lines
    assert any(line.startswith("✓ model ") for line in lines)
    assert "\x1b" not in done.out


def test_a_fresh_machine_is_well_and_stays_empty(hermes_home: Path) -> None:
    status, found = doctor(hermes_home)
    assert status == 0
    ((state, text, hint),) = about(found, "home")
    assert (state, hint) == ("well", "") and str(hermes_home) in text
    assert about(found, "store")[0][0] == "well"
    assert not hermes_home.exists()


def test_one_wrong_thing_is_one_line_with_a_hint(home: Path) -> None:
    config(home, "timezone: Berlin\n")
    done = run("doctor", home=home, env=QUIET)
    assert done.status == 1
    wrong = [line for line in done.out.splitlines() if line.startswith("✗")]
    (line,) = wrong
    assert f"{home / 'config.yaml'} line 1: timezone: " in line and "'Berlin'; did you mean Europe/Berlin?" in line
    assert "→ `hermes config edit`" in line
    assert done.out.endswith("\n1 problem (✗).\n")


# ── files ──


def test_a_home_others_can_enter(home: Path) -> None:
    home.chmod(0o755)
    state, text, hint = only(home, "home")
    assert (state, hint) == ("remark", f"chmod 700 {home}") and "0755" in text


def test_a_file_where_the_home_should_be(hermes_home: Path) -> None:
    hermes_home.write_text("x")
    state, text, _ = only(hermes_home, "home")
    assert state == "wrong" and f"{hermes_home} is a file" in text


def test_every_mistake_in_the_configuration_has_its_line(home: Path) -> None:
    path = config(home, "modle: x\nsessions:\n  retention_days: soon\n")
    status, found = doctor(home)
    hint = "`hermes config edit` opens and checks it"
    assert status == 1
    first, second = about(found, "config")
    assert (first[0], first[2]) == ("remark", "hermes config unset modle")
    assert f"{path} line 1: " in first[1] and "modle; did you mean model?" in first[1]
    assert (second[0], second[2]) == ("wrong", hint) and f"{path} line 3: sessions.retention_days: " in second[1]


def test_a_configuration_that_cant_be_read(home: Path) -> None:
    (home / "config.yaml").mkdir()
    assert "is a folder" in only(home, "config")[1]


def test_a_variable_that_is_set_nowhere(home: Path) -> None:
    path = config(home, "api_server: {token: ${NO_SUCH_TOKEN}, host: ${HOST_OF:-127.0.0.1}}\n")
    said = "api_server.token needs ${NO_SUCH_TOKEN}, which is not set: the parts that use it do not start"
    assert only(home, "config") == ("wrong", said, f"put it into {path.parent / '.env'}")
    assert only(home, "config", NO_SUCH_TOKEN="x")[0] == "well"


# ── the record ──


def test_a_store_that_is_no_database(home: Path) -> None:
    (home / "state.db").write_bytes(b"not a database at all " * 100)
    line = only(home, "store")
    assert line[0] == "wrong" and "can't be read" in line[1] and "hermes sessions repair" in line[2]


def test_a_database_of_another_program(home: Path) -> None:
    for path in home.glob("state.db*"):
        path.unlink()
    with sqlite3.connect(home / "state.db") as other:
        other.execute("CREATE TABLE birds(name)")
    other.close()
    text = only(home, "store")[1]
    assert str(home / "state.db") in text and "another program" in text


def test_a_damaged_store(home: Path) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        for number in range(300):
            db.append_message("one", role="user", content=f"{number} " + "words and more words " * 60)
    path = home / "state.db"
    content = bytearray(path.read_bytes())
    for page in range(10, len(content) // 4096, 3):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path.write_bytes(content)
    status, found = doctor(home)
    lines = about(found, "store")
    assert status == 1
    assert lines and all(line[0] == "wrong" and "damaged" in line[1] and "repair" in line[2] for line in lines)


def test_a_store_of_a_newer_version_can_only_be_read(home: Path) -> None:
    with sqlite3.connect(home / "state.db") as newer:
        newer.execute("PRAGMA user_version = 9999")
    newer.close()
    status, found = doctor(home)
    assert status == 0
    assert about(found, "store")[0][0] == "remark"
    assert "newer" in about(found, "store")[0][1]


def test_an_index_that_is_far_behind(home: Path) -> None:
    with sqlite3.connect(home / "state.db") as other:
        rows = ((number,) for number in range(6000))
        other.executemany(
            "INSERT INTO messages(session_id, role, content, timestamp) VALUES('one', 'user', 'x', ?)", rows
        )
    other.close()
    line = only(home, "index")
    assert line[0] == "remark" and "6000" in line[1] and line[2] == "hermes sessions optimize"


def test_who_has_the_store_open(home: Path) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        db.append_message("one", role="user", content="again")
        ((state, text, _),) = about(doctor(home)[1], "in use")
        assert state == "well" and f"process {os.getpid()}" in text


def test_a_store_url_that_leads_nowhere(home: Path) -> None:
    config(home, "store: {url: 'postgresql://me:secret@127.0.0.1:1/db'}\n")
    line = only(home, "store")
    assert line[0] == "wrong" and "can't be reached" in line[1] and "store.url" in line[2] and "secret" not in line[1]
    config(home, "store: {url: 'mysql://me:secret@127.0.0.1/db'}\n")
    line = only(home, "store")
    assert line[0] == "wrong" and "postgresql://" in line[1] and "secret" not in line[1]


# ── models ──


class Server:
    """A little HTTP server that answers as told and remembers who asked."""

    def __init__(self) -> None:
        self.status, self.body, self.delay = 200, b'{"data": [{"id": "gpt-5"}, {"id": "small"}]}', 0.0
        self.key: str | None = None
        self.seen: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.seen.append((self.path, self.headers.get("Authorization")))
                time.sleep(server.delay)
                refused = server.key is not None and self.headers.get("Authorization") != f"Bearer {server.key}"
                body = b"{}" if refused else server.body
                self.send_response(401 if refused else server.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


def test_an_endpoint_that_is_well(home: Path, server: Server) -> None:
    server.key = "sk-right"
    config(home, f"model: {{default: gpt-5, base_url: '{server.url}', api_key: sk-right}}\n")
    assert only(home, "model") == ("well", f"gpt-5 at {server.url}, 2 listed", "")
    assert server.seen == [("/v1/models", "Bearer sk-right")]


@pytest.mark.parametrize(
    ("status", "body", "state", "said"),
    [
        (401, b"{}", "wrong", "does not accept the key"),
        (403, b"{}", "wrong", "does not accept the key"),
        (500, b"oops", "wrong", "failed (HTTP 500)"),
        (404, b"{}", "remark", "does not say which models it has (HTTP 404)"),
        (200, b"<html>", "remark", "does not say which models it has"),
        (200, b'{"data": "no"}', "remark", "does not say which models it has"),
        (200, b'{"data": [{"id": "gpt-4"}, {}, 3]}', "wrong", "does not list gpt-5; did you mean gpt-4?"),
        (200, b'{"data": []}', "wrong", "does not list gpt-5"),
    ],
)
def test_an_endpoint_with_something_wrong(
    home: Path, server: Server, status: int, body: bytes, state: str, said: str
) -> None:
    server.status, server.body = status, body
    config(home, f"model: {{default: gpt-5, base_url: '{server.url}', api_key: sk-secret-of-mine}}\n")
    line = only(home, "model")
    assert line[0] == state and said in line[1]
    assert "sk-secret" not in line[1] + line[2]


def test_an_endpoint_without_a_key(home: Path, server: Server) -> None:
    server.key = "k"
    config(home, f"model: {{default: gpt-5, base_url: '{server.url}'}}\n")
    state, text, hint = only(home, "model")
    assert state == "wrong" and f"{server.url} requires a key" in text and hint == "hermes config set model.api_key"


def test_an_endpoint_nobody_listens_at(home: Path) -> None:
    config(home, "model: {default: gpt-5, base_url: 'http://me:pw@127.0.0.1:9/v1'}\n")
    state, text, _ = only(home, "model")
    assert state == "wrong" and "http://127.0.0.1:9/v1" in text


def test_an_endpoint_that_does_not_answer_in_time(home: Path, server: Server) -> None:
    server.delay = 8
    config(home, f"model: {{default: gpt-5, base_url: '{server.url}'}}\n")
    state, text, _ = only(home, "model")
    assert state == "wrong" and server.url in text and "4 seconds" in text


def test_a_local_server_is_found(home: Path, server: Server) -> None:
    status, found = doctor(home, **ONLY_OLLAMA, OLLAMA_HOST=f"127.0.0.1:{server.port}")
    assert status == 0
    assert about(found, "model") == [("well", f"gpt-5 at {server.url}, 2 listed", "")]


def test_auxiliary_models_each_have_a_line(home: Path, server: Server) -> None:
    config(
        home,
        f"auxiliary: {{title: {{model: small, base_url: '{server.url}'}}, summary: {{model: huge, base_url: '{server.url}'}}}}\n",
    )
    status, found = doctor(home)
    assert status == 1
    assert about(found, "auxiliary title") == [("well", f"small at {server.url}, 2 listed", "")]
    (line,) = about(found, "auxiliary summary")
    assert line[0] == "wrong" and "huge" in line[1] and line[2].startswith("hermes config set auxiliary.summary.model")


# ── MCP servers ──


def test_mcp_servers(home: Path, server: Server) -> None:
    with serving() as refusing, serving() as lost:
        server.status, refusing.key, lost.status = 405, "k", 404
        config(
            home,
            f"""
mcp_servers:
  here: {{command: sh}}
  gone: {{command: no-such-program-anywhere}}
  web: {{url: '{server.url}'}}
  keyed: {{url: '{refusing.url}', headers: {{Authorization: Bearer k}}}}
  closed: {{url: '{refusing.url}'}}
  lost: {{url: '{lost.url}'}}
  dead: {{url: 'http://127.0.0.1:9/mcp'}}
""",
        )
        status, found = doctor(home)
    assert status == 1
    states = {one["name"]: one["state"] for one in found if one["name"].startswith("MCP ")}
    assert states == {
        "MCP here": "well", "MCP gone": "wrong", "MCP web": "well", "MCP keyed": "well", "MCP closed": "wrong",
        "MCP lost": "wrong", "MCP dead": "wrong",
    }  # fmt: skip
    ((state, text, hint),) = about(found, "MCP gone")
    assert state == "wrong" and "no-such-program-anywhere" in text and "mcp_servers.gone.command" in hint


# ── the screen ──


# ── the machine ──


@pytest.mark.parametrize(("size", "state"), [("20m", "wrong"), ("300m", "remark")])
def test_a_disk_with_little_room(home: Path, size: str, state: str) -> None:
    need(can_mount(), "file systems can't be mounted here (it takes root, or user namespaces)")
    script = 'mount -t tmpfs -o size="$1",mode=700 faults "$2" && shift 2 && exec "$@"'
    flag = "-m" if os.getuid() == 0 else "-rm"
    words = ["unshare", flag, "sh", "-c", script, "sh", size, str(home), *PROGRAM, "doctor", "--json"]
    done = subprocess.run(words, env=environment(home, QUIET), capture_output=True, text=True, check=False)
    assert done.returncode == (1 if state == "wrong" else 0), done.stderr
    (line,) = about(json.loads(done.stdout)["checks"], "home")
    assert line[0] == state and line[1].startswith(f"{home}: only ") and " MB " in line[1] and line[2]


def test_a_home_that_cant_be_written() -> None:
    root = Path(tempfile.mkdtemp(prefix="hermes-doctor-"))  # tmp_path lies below a folder only root can enter
    home, other = root / "home", root / "other"
    home.mkdir(mode=0o555)
    root.chmod(0o755)
    program = f"""
import io, os, sys
from contextlib import redirect_stdout
from hermes.cli.main import main
os.environ["HERMES_HOME"] = {str(other)!r}
with redirect_stdout(io.StringIO()):
    main(["doctor", "--json"])   # loads all it needs, while it can be read
os.environ["HERMES_HOME"] = {str(home)!r}
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
sys.exit(main(["doctor", "--json"]))
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment(home, QUIET), capture_output=True, text=True, check=False
        )
    finally:
        home.chmod(0o700)
        shutil.rmtree(root)
    assert done.returncode == 1, done.stderr
    (line,) = about(json.loads(done.stdout)["checks"], "home")
    assert line[:2] == ("wrong", f"{home} can't be written")
