"""`hermes web` over real requests: who gets in, what is shown, and that nothing in a message becomes part of the page."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hermes_state import SessionDB
from tests.support.page import Page, fill, png
from tests.support.sizes import size


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    fill(home)
    return home


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page for tests that only look."""
    home = tmp_path_factory.mktemp("seen") / "home"
    fill(home)
    with Page(home) as page:
        yield page


@pytest.fixture
def page(home: Path) -> Iterator[Page]:
    with Page(home) as page:
        yield page


def test_only_the_link_lets_in_and_only_this_page_changes_something(home: Path, page: Page) -> None:
    for path in (
        "/",
        "/api/sessions",
        "/api/messages/s1",
        "/api/events?session=s1",
        "/export/jsonl/s1",
        "/static/app.js",
    ):
        assert httpx.get(page.address + path, trust_env=False).status_code == 401, path
    assert httpx.get(page.address + "/?token=wrong", trust_env=False).status_code == 401
    client = page.client
    assert client.get("/api/sessions", headers={"Host": "evil.test"}).status_code == 403
    for origin in (
        "http://evil.test",
        "null",
        "http://127.0.0.1:1",
        f"http://localhost:{page.address.rpartition(':')[2]}",
    ):
        assert client.post("/api/do/pin/s1", json={}, headers={"Origin": origin}).status_code == 403, origin
        assert client.post("/api/talk", json={"text": "hi"}, headers={"Origin": origin}).status_code == 403, origin
    del client.headers["Origin"]
    assert client.post("/api/do/pin/s1", json={}).status_code == 403
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.request(method, "/api/do/pin/s1", headers={"Origin": page.address})
        assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    with SessionDB(home / "state.db", read_only=True) as db:
        row = db.get_session("s1")
        assert row is not None and row["pinned_at"] is None


def test_two_pages_of_one_machine_do_not_log_each_other_out(home: Path, page: Page) -> None:
    with Page(home) as other, httpx.Client(follow_redirects=True, trust_env=False) as jar:
        for one in (page, other):
            assert jar.get(one.link).status_code == 200
        assert jar.get(page.address + "/api/sessions").status_code == 200
        assert jar.get(other.address + "/api/sessions").status_code == 200


def test_find(seen: Page) -> None:
    assert {one["id"] for one in seen.get("/api/sessions")["sessions"]} == {"s1", "media", "new", "branch", "hostile"}
    for one in seen.get("/api/sessions")["sessions"]:  # what a branch or a compressed one carries over is counted
        stored = seen.get(f"/api/messages/{one['id']}")["stored"]
        assert one["message_count"] == stored == seen.get(f"/api/session/{one['id']}")["message_count"]
    facets = seen.get("/api/facets")
    assert facets["sources"] == {"cli": 5, "telegram": 1} and facets["tags"] == {"work": 1}
    assert facets["tools"] == {"terminal": 1} and facets["folders"] == {"/home/ann/src/parser": 1}
    assert [one["id"] for one in seen.get("/api/sessions", q="PARSER")["sessions"]] == ["s1"]
    assert seen.get("/api/sessions", q="parser", source="telegram")["sessions"] == []
    for signs, ids in (('"', []), ("-", []), ("\u202e", []), ("<", ["hostile"])):  # no words: these signs
        assert [one["id"] for one in seen.get("/api/sessions", q=signs)["sessions"]] == ids, signs
    found = seen.get("/api/search", q="tokenizer")["groups"]
    assert {one["session"]["id"] for one in found} == {"s1", "media"}
    assert all("<mark>tokenizer</mark>" in one["hits"][0]["html"] for one in found)
    for name, value, ids in (
        ("source", "telegram", ["media"]), ("tag", "work", ["s1"]), ("model", "gpt-5-mini", ["s1", "media"]),
        ("folder", "/home/ann", ["s1"]), ("folder", "/home/an", []), ("since", "2001-01-01", ["s1", "media"]),
        ("until", "2001-01-01", []), ("role", "assistant", []),
    ):  # fmt: skip
        groups = seen.get("/api/search", q="tokenizer", **{name: value})["groups"]
        assert sorted(one["session"]["id"] for one in groups) == sorted(ids), (name, value)
        if name != "role":
            listed = {one["id"] for one in seen.get("/api/sessions", **{name: value})["sessions"]}
            assert set(ids) <= listed and (ids or not listed), (name, value)
    tools = seen.get("/api/search", q="out", tool="terminal")["groups"]
    assert [one["session"]["id"] for one in tools] == ["s1"]
    assert seen.client.get("/api/sessions", params={"since": "someday"}).status_code == 400


def test_read(seen: Page) -> None:
    told = seen.get("/api/messages/s1")
    assert (told["from"], told["total"], told["stored"]) == (0, 3, 4)  # the tool's result is with its call
    called = told["messages"][1]["html"]
    assert "exit 2" in called and "&lt;h1&gt;out" in called and "Reasoning" in called and "&lt;b&gt;ls" in called
    result = int(called.split('id="m')[1].split('"')[0])
    assert seen.get("/api/messages/s1", around=result)["messages"][1]["html"] == called
    assert told["messages"][1]["tokens"][:2] == [1200, 80] and told["messages"][1]["cost"] == 0.004
    assert seen.client.get("/api/session/nothing").status_code == 404
    session = seen.get("/api/session/new")
    assert session["previous"] == "old" and session["part"] == [2, 2] and session["summary"]
    assert {one["id"]: one["parent"] for one in session["family"]} == {"old": None, "new": "old", "branch": "new"}
    assert seen.get("/api/insights")["by_weekday_hour"]


def test_files_changed_lead_to_the_conversations_that_changed_them(home: Path, page: Page) -> None:
    for number, session in enumerate(("s1", "media", "s1")):
        given = json.dumps({"path": "/home/ann/src/parser/lexer.py", "content": f"a line, number {number}"})
        call = {"id": f"w{number}", "type": "function", "function": {"name": "write_file", "arguments": given}}
        with SessionDB(home / "state.db") as db:
            made = db.append_message(session, "assistant", "I write it.", tool_calls=[call])
    (file,) = page.get("/api/session/s1")["files"]
    assert file == {"path": "/home/ann/src/parser/lexer.py", "changes": 2, "message_id": made}
    assert page.get("/api/session/new")["files"] == []
    assert [one["id"] for one in page.get("/api/sessions", file=file["path"])["sessions"]] == ["s1", "media"]
    assert page.get("/api/sessions", file="/etc/passwd")["sessions"] == []
    assert {one["session"]["id"] for one in page.get("/api/search", q="tokenizer", file=file["path"])["groups"]} == {
        "s1",
        "media",
    }
    assert page.get("/api/search", q="tokenizer", file="other.py")["groups"] == []
    with Page(home, "--user", "telegram:42") as other:
        assert [one["id"] for one in other.get("/api/sessions", file=file["path"])["sessions"]] == ["media"]


def test_files_are_those_of_messages_one_may_see(home: Path, page: Page) -> None:
    html = page.get("/api/messages/media")["messages"][0]["html"]
    places = [part.split('"')[0] for part in html.split('src="')[1:]]
    assert "<img" in html and "<audio" in html and len(places) == 2
    shown = page.client.get(places[0])
    assert shown.content == png() and shown.headers["content-type"] == "image/png"
    part = page.client.get(places[1], headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"RIFF")
    digest = places[0].rpartition("/")[2]
    with SessionDB(home / "state.db", read_only=True) as db:
        other = db.get_messages("s1")[0]["id"]
    for path in (f"/attachment/{other}/{digest}", f"/attachment/999999/{digest}", f"{places[0][:-64]}{'0' * 64}",
                 f"/attachment/{other}/..%2f..%2fstate.db"):  # fmt: skip
        assert page.client.get(path).status_code == 404, path
    with Page(home, "--user", "telegram:42") as theirs:
        assert theirs.client.get(places[0]).content == png()
    with Page(home, "--user", "telegram:43") as nobody:
        assert nobody.client.get(places[0]).status_code == 404
    for form, begins in (("jsonl", b"{"), ("markdown", b"#"), ("html", b"<!")):
        told = page.client.get(f"/export/{form}/s1")
        assert told.content.lower().startswith(begins) and "attachment" in told.headers["content-disposition"]
        assert "html" not in told.headers["content-type"]
    assert page.client.get("/export/exe/s1").status_code == 404


def test_what_was_said_never_becomes_part_of_the_page(seen: Page) -> None:
    told = seen.get("/api/messages/hostile")["messages"]
    html = "".join(one["html"] for one in told)
    for bad in ("<script", "<img", 'href="javascript', "<svg", "<iframe", "<u>hm", "\x1b", "\u202e"):
        assert bad not in html, bad
    assert "&lt;script&gt;" in html and len(html) < 200_000
    hits = seen.get("/api/search", q="window")["groups"]
    assert hits and "<script" not in json.dumps([hit["html"] for group in hits for hit in group["hits"]])
    place = html.split('class=attachment><a href="')[1].split('"')[0]
    file = seen.client.get(place)
    assert file.headers["content-type"] == "application/octet-stream" and b"svg" in file.content
    assert "attachment" in file.headers["content-disposition"]
    whole = seen.client.get(html.split('href="/text/')[0] and "/text/" + html.split('href="/text/')[1].split('"')[0])
    assert whole.text.endswith("y" * 5_000_000) and whole.headers["content-type"].startswith("text/plain")


def test_texts_that_utf8_can_not_carry_break_nothing(home: Path, page: Page) -> None:
    half = "half \ud83d pair"
    with SessionDB(home / "state.db") as db:
        db.create_session("half", "cli", model=half, cwd="/srv/" + half)
        db.append_message("half", "user", f"okapi {half}", model=half)
    for path in ("sessions", "facets", "search?q=okapi", "session/half", "messages/half", "insights"):
        assert page.client.get(f"/api/{path}").status_code == 200, path
    assert page.client.get("/export/markdown/half").status_code == 200


def test_a_redacted_message_is_gone_from_the_page(home: Path, page: Page) -> None:
    assert "bracket" in json.dumps(page.get("/api/messages/s1"))
    with SessionDB(home / "state.db") as db:
        db.redact_message(db.get_messages("s1")[-1]["id"])
    assert "bracket" not in json.dumps(page.get("/api/messages/s1"))


def test_a_user_sees_what_is_theirs_and_changes_nothing(home: Path) -> None:
    with Page(home, "--user", "telegram:42") as page:
        assert [one["id"] for one in page.get("/api/sessions")["sessions"]] == ["media"]
        assert page.get("/api/facets")["sources"] == {"telegram": 1}
        assert page.get("/api/insights")["sessions"] == 1
        assert {one["session"]["id"] for one in page.get("/api/search", q="tokenizer")["groups"]} == {"media"}
        for path in ("messages", "session", "running"):
            assert page.client.get(f"/api/{path}/s1").status_code == 404, path
        assert next(page.events(session="s1")) == ("session=s1", None)
        assert page.client.get("/export/jsonl/s1").status_code == 404
        assert page.client.get("/api/trash").status_code == 404
        for path in ("/api/do/pin/media", "/api/talk/media", "/api/talk"):
            assert page.do(path, text="hi").status_code == 403, path


def test_a_message_of_another_process_is_seen_live_also_in_a_branch(home: Path, page: Page) -> None:
    for session_id in ("s1", "branch"):
        events = page.events(session=session_id)
        before = next(events)
        with SessionDB(home / "state.db") as db:
            db.append_message(session_id, "user", "new")
        assert before[0] == f"session={session_id}" and next(events)[1] not in (None, before[1])


def test_the_list_changes_for_those_who_may_see_what_changed(home: Path, page: Page) -> None:
    with Page(home, "--user", "telegram:42") as other, SessionDB(home / "state.db") as db:
        mine, theirs = page.events(list="1"), other.events(list="1")
        states = [next(mine)[1]]
        first = next(theirs)[1]
        for change in (
            lambda: db.set_session_title("s1", "Renamed elsewhere"), lambda: db.tag_session("s1", "more"),
            lambda: db.pin_session("s1"), lambda: db.trash_session("s1"), lambda: db.create_session("fresh", "cli"),
        ):  # fmt: skip
            change()
            states.append(next(mine)[1])
        assert len(set(states)) == 6
        db.set_session_title("media", "Renamed as well")
        assert next(theirs)[1] != first


def test_the_page_does_what_its_buttons_say_and_the_audit_log_has_it(home: Path, page: Page) -> None:
    for action, body in (
        ("title", {"title": "New"}), ("tag", {"tag": "x"}), ("untag", {"tag": "work"}), ("pin", {}), ("unpin", {}),
        ("archive", {}), ("unarchive", {}), ("trash", {}), ("restore", {}),
    ):  # fmt: skip
        assert page.do(f"/api/do/{action}/s1", **body).status_code == 200, action
        if action == "trash":
            assert [one["id"] for one in page.get("/api/trash")["sessions"]] == ["s1"]
    with SessionDB(home / "state.db", read_only=True) as db:
        first = db.get_messages("s1")[0]["id"]
    branch = page.do("/api/do/branch/s1", at_message=first).json()["done"]
    assert page.get(f"/api/messages/{branch}")["total"] == 1
    assert page.do("/api/do/explode/s1").status_code == 404
    assert page.do("/api/do/pin/nothing").status_code == 404 and page.do("/api/do/restore/s1").status_code == 404
    assert page.do("/api/do/title/media", title="New").status_code == 400  # the title is taken
    assert page.client.post("/api/do/pin/s1", content=b"[1").status_code == 400
    assert page.client.post("/api/do/title/s1", content=b"x" * 2_000_000).status_code == 413
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.get_session_title("s1") == "New" and db.get_tags("s1") == ["x"]
        done = [one["action"] for one in reversed(db.audit_log()) if one["by"] == "hermes web"]
    assert done == ["title", "tag", "untag", "pin", "unpin", "archive", "unarchive", "trash", "restore", "branch"]


@pytest.mark.thorough
def test_many_open_pages_do_not_stop_a_writer(home: Path, page: Page) -> None:
    many = size(50, 100)
    pages: list[socket.socket] = []
    try:
        for number in range(many):
            pages.append(_looking(page, "s1" if number % 2 else "media"))
        for one in pages:
            _until(one, b"session=")
        stored = []
        with SessionDB(home / "state.db") as db:
            for number in range(20):
                stored.append(db.append_message("s1", "user", f"while many look {number}"))
        assert len(set(stored)) == 20
        for one in pages[1::2]:
            _until(one, b"session=")
        assert page.get("/api/messages/s1")["stored"] == 24
    finally:
        for one in pages:
            one.close()


def _looking(page: Page, session_id: str) -> socket.socket:
    """A connection that watches a session, as a browser does."""
    cookie = "; ".join(f"{one.name}={one.value}" for one in page.client.cookies.jar)
    port = int(page.address.rpartition(":")[2])
    one = socket.create_connection(("127.0.0.1", port), timeout=60)
    one.sendall(
        f"GET /api/events?session={session_id} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n".encode()
    )
    return one


def _until(connection: socket.socket, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        some = connection.recv(4096)
        assert some, seen
        seen += some


def test_another_address_needs_a_password_and_a_port_in_use_is_said(home: Path, page: Page) -> None:
    from tests.support import program

    refused = program.run("web", "--host", "0.0.0.0", "--no-browser", home=home)
    assert refused.status == 1 and "web.password" in refused.err and "Traceback" not in refused.err
    taken = program.run("web", "--no-browser", "--port", page.address.rpartition(":")[2], home=home)
    assert taken.status == 1 and "--port" in taken.err and "Traceback" not in taken.err
    wrong = program.run("web", "--no-browser", "--user", "nobody", home=home)
    assert wrong.status != 0 and "SOURCE:ID" in wrong.err and "Traceback" not in wrong.err


def test_the_page_ends_with_open_pages_when_it_is_told_to(page: Page) -> None:
    with _looking(page, "s1") as one:
        _until(one, b"session=")
        page.process.terminate()
        assert page.process.wait(120) is not None
