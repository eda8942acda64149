"""`hermes web` over real requests: who gets in, what is shown, and that nothing in a message becomes part of the page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from hermes_state import SessionDB
from tests.support import program

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> [x](javascript:alert(3)) \x1b[31m ‮rtl"
SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciPjxzY3JpcHQ+YWxlcnQoMSk8L3NjcmlwdD48L3N2Zz4="


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command":"<b>ls</b>"}'}}
    with SessionDB(home / "state.db") as db:
        db.create_session("s1", "cli")
        db.set_session_title("s1", "The <b>parser</b>")
        db.append_message("s1", "user", f"about the tokenizer {HOSTILE}")
        db.append_message("s1", "assistant", "```python\nprint('<i>')\n```", reasoning="<u>hm</u>", tool_calls=[call])
        db.append_message("s1", "tool", "<h1>out</h1>", tool_call_id="c1", tool_name="terminal")
        picture = {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{SVG}"}}
        db.append_message("s1", "user", [{"type": "text", "text": "see"}, picture])
        db.create_session("t1", "telegram", user_id="42")
        db.append_message("t1", "user", "the tokenizer on the phone")
    return home


@pytest.fixture
def page(home: Path) -> Iterator[httpx.Client]:
    with serving(home) as client:
        yield client


class serving:
    """`hermes web` as a process, and a client that came by its link."""

    def __init__(self, home: Path, *options: str) -> None:
        self._words = ("web", "--no-browser", *options)
        self._home = home

    def __enter__(self) -> httpx.Client:
        self._process: subprocess.Popen[str] = program.start(*self._words, home=self._home)
        assert self._process.stdout is not None
        self.link = self._process.stdout.readline().strip()
        parts = urlsplit(self.link)
        self._client = httpx.Client(base_url=f"http://{parts.netloc}", timeout=30, follow_redirects=True)
        assert self._client.get(f"/?{parts.query}").status_code == 200
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.communicate(timeout=30)


def test_only_the_link_lets_in_and_only_this_page_changes_something(home: Path) -> None:
    with serving(home) as page:
        address = str(page.base_url)
        assert httpx.get(address + "/api/sessions").status_code == 401
        assert httpx.get(address + "/?token=wrong").status_code == 401
        assert page.get("/api/sessions", headers={"Host": "evil.test"}).status_code == 403
        assert page.get("/api/sessions", headers={"Origin": "http://evil.test"}).status_code == 403
        origin = {"Origin": address}
        assert page.post("/api/do/pin/s1", json={}).status_code == 403
        assert page.post("/api/do/pin/s1", json={}, headers={"Origin": "http://127.0.0.1:1"}).status_code == 403
        assert page.post("/api/do/pin/s1", json={}, headers=origin).json() == {"done": True}
        policy = page.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
    with SessionDB(home / "state.db", read_only=True) as db:
        row = db.get_session("s1")
        assert row is not None and row["pinned_at"] is not None


def test_find_and_read(page: httpx.Client) -> None:
    listed = page.get("/api/sessions").json()
    assert {one["id"] for one in listed["sessions"]} == {"s1", "t1"} and listed["sources"] == {"cli": 1, "telegram": 1}
    found = page.get("/api/search", params={"q": "tokenizer"}).json()["groups"]
    assert {one["session"]["id"] for one in found} == {"s1", "t1"}
    assert all("<mark>tokenizer</mark>" in one["hits"][0]["html"] for one in found)
    only = page.get("/api/search", params={"q": "tokenizer", "source": "telegram"}).json()["groups"]
    assert [one["session"]["id"] for one in only] == ["t1"]
    told = page.get("/api/messages/s1").json()
    assert (told["from"], told["total"]) == (0, 4)
    assert page.get("/api/messages/s1", params={"around": told["messages"][2]["id"]}).json()["total"] == 4
    assert page.get("/api/session/nothing").status_code == 404
    assert page.get("/api/insights").json()


def test_what_was_said_never_becomes_part_of_the_page(page: httpx.Client) -> None:
    told = page.get("/api/messages/s1").json()["messages"]
    html = "".join(one["html"] for one in told)
    for bad in ("<script", "<img src=x", 'href="javascript', "<b>ls", "<h1>out", "<u>hm", "print('<i>"):
        assert bad not in html
    assert "&lt;script&gt;" in html and "<details class=output>" in html
    hits = page.get("/api/search", params={"q": "tokenizer"}).json()["groups"]
    assert "<script" not in json.dumps([hit["html"] for group in hits for hit in group["hits"]])
    digest = html.split('src="/attachment/')[1][:64]
    file = page.get(f"/attachment/{digest}")
    assert (
        file.headers["content-type"] == "application/octet-stream"
        and "attachment" in file.headers["content-disposition"]
    )
    assert page.get("/attachment/" + "0" * 64).status_code == 404
    assert page.get("/attachment/..%2f..%2fstate.db").status_code == 404


def test_a_user_sees_what_is_theirs_and_changes_nothing(home: Path) -> None:
    with serving(home, "--user", "telegram:42") as page:
        assert [one["id"] for one in page.get("/api/sessions").json()["sessions"]] == ["t1"]
        assert page.get("/api/messages/s1").status_code == 404
        assert page.post("/api/do/pin/t1", json={}, headers={"Origin": str(page.base_url)}).status_code == 403


def test_a_message_of_another_process_is_seen_live(home: Path, page: httpx.Client) -> None:
    with page.stream("GET", "/api/live/s1") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "data: 4"
        with SessionDB(home / "state.db") as db:
            db.append_message("s1", "user", "new")
        assert next(line for line in lines if line.startswith("data:")) == "data: 5"


def test_the_page_does_what_its_buttons_say(home: Path, page: httpx.Client) -> None:
    origin = {"Origin": str(page.base_url)}
    for action, body in (
        ("title", {"title": "New"}),
        ("tag", {"tag": "x"}),
        ("archive", {}),
        ("unarchive", {}),
        ("trash", {}),
        ("restore", {}),
    ):
        assert page.post(f"/api/do/{action}/s1", json=body, headers=origin).status_code == 200, action
    branch = page.post("/api/do/branch/s1", json={}, headers=origin).json()["done"]
    assert page.get(f"/api/messages/{branch}").json()["total"] == 4
    assert page.post("/api/do/explode/s1", json={}, headers=origin).status_code == 404
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.get_session_title("s1") == "New" and db.get_tags("s1") == ["x"]
        assert any(one["by"] == "hermes web" for one in db.audit_log())
