"""`hermes web` on a PostgreSQL store: found, read, changed, talked in, live; pictures that another machine stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import postgres
from tests.support.echo import Echo
from tests.support.page import Page, fill, png, talkative


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store that another machine has filled."""
    place = tmp_path_factory.mktemp("elsewhere")
    found = postgres.server().store(str(place))
    fill(place, found)
    yield found
    postgres.server().forget(str(place))


@pytest.fixture(scope="module")
def page(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    home = tmp_path_factory.mktemp("here") / "home"
    with Echo() as model:
        talkative(home, model.base_url, f"store: {{url: '{url}'}}\n")
        with Page(home) as page:
            yield page


def test_find(page: Page) -> None:
    assert {one["id"] for one in page.get("/api/sessions")["sessions"]} >= {"s1", "media", "new", "branch", "hostile"}
    facets = page.get("/api/facets")
    assert facets["sources"] == {"cli": 5, "telegram": 1} and facets["tags"] == {"work": 1}
    assert facets["tools"] == {"terminal": 1} and facets["folders"] == {"/home/ann/src/parser": 1}
    found = page.get("/api/search", q="tokenizer")["groups"]
    assert {one["session"]["id"] for one in found} == {"s1", "media"}
    assert all("<mark>tokenizer</mark>" in one["hits"][0]["html"] for one in found)
    for name, value, ids in (
        ("source", "telegram", ["media"]), ("tag", "work", ["s1"]), ("model", "gpt-5-mini", ["s1", "media"]),
        ("folder", "/home/ann", ["s1"]), ("folder", "/home/an", []), ("since", "2001-01-01", ["s1", "media"]),
        ("until", "2001-01-01", []), ("role", "assistant", []), ("not", "s1", ["media"]),
    ):  # fmt: skip
        groups = page.get("/api/search", q="tokenizer", **{name: value})["groups"]
        assert sorted(one["session"]["id"] for one in groups) == sorted(ids), (name, value)
    for words in ('"', "tok*", "tokenizer OR nothing", "a" * 1000, "\0", "%", "'", "\ud83d", "NOT tokenizer", "((("):
        answer = page.client.get("/api/search", params={"q": words.encode("utf-8", "surrogatepass")})
        assert answer.status_code in (200, 400), (words, answer.text)
    assert page.get("/api/insights")["by_weekday_hour"]
    for days in ("0", "-1", "x", "999999999999"):
        assert page.client.get("/api/insights", params={"days": days}).status_code == 200


def test_read(page: Page) -> None:
    told = page.get("/api/messages/s1")
    assert (told["from"], told["total"], told["stored"]) == (0, 3, 4)
    assert told["messages"][1]["tokens"][:2] == [1200, 80] and told["messages"][1]["cost"] == 0.004
    session = page.get("/api/session/new")
    assert session["previous"] == "old" and session["part"] == [2, 2] and session["compressed"] == 8
    assert [one["id"] for one in page.get("/api/compressed/new")["messages"]]
    for place in (
        "/api/session/nothing",
        "/api/messages/a%00b",
        "/text/99999999999999999999",
        "/attachment/1/" + "0" * 64,
    ):
        assert page.client.get(place).status_code == 404, place
    html = page.get("/api/messages/media")["messages"][0]["html"]
    assert page.client.get(html.split('src="')[1].split('"')[0]).content == png()
    for form in ("jsonl", "markdown", "html"):
        assert "tokenizer" in page.client.get(f"/export/{form}/s1").text


def test_change(page: Page, url: str, tmp_path: Path) -> None:
    for action, body in (
        ("title", {"title": "Brackets"}), ("tag", {"tag": "later"}), ("untag", {"tag": "work"}), ("pin", {}), ("archive", {}),
    ):  # fmt: skip
        assert page.do(f"/api/do/{action}/s1", **body).status_code == 200, action
    session = page.get("/api/session/s1")
    assert (
        session["title"] == "Brackets"
        and session["tags"] == ["later"]
        and session["pinned_at"]
        and session["archived_at"]
    )
    for action in ("unpin", "unarchive", "trash"):
        assert page.do(f"/api/do/{action}/s1").status_code == 200, action
    assert [one["id"] for one in page.get("/api/trash")["sessions"]] == ["s1"]
    assert page.do("/api/do/restore/s1").status_code == 200
    assert (
        page.do("/api/do/untag/s1", tag="later").status_code == page.do("/api/do/tag/s1", tag="work").status_code == 200
    )
    made = page.do("/api/do/branch/s1").json()["done"]
    assert page.get(f"/api/session/{made}")["parent"] == "s1"
    with SessionDB(tmp_path / "state.db", url=url) as db:
        assert {"title", "tag", "pin", "branch", "trash"} <= {row["action"] for row in db.audit_log(limit=50)}
        db.delete_session(made)


def test_live_and_talk(page: Page, url: str, tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db", url=url) as db:
        events = page.events(session="branch")
        first = next(events)
        db.append_message("branch", "user", "from another machine")
        assert next(events) != first
        events.close()
        assert "from another machine" in page.get("/api/messages/branch")["messages"][-1]["html"]
    told = page.do("/api/talk/branch", text="hello").json()
    assert [event["kind"] for event in page.turn(told["turn"])][-1] == "done"
    assert "echo: hello" in page.get("/api/messages/branch")["messages"][-1]["html"]


def test_a_user_sees_only_what_is_theirs(url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"store: {{url: '{url}'}}\n")
    with Page(home, "--user", "telegram:42") as theirs:
        assert [one["id"] for one in theirs.get("/api/sessions")["sessions"]] == ["media"]
        assert [one["session"]["id"] for one in theirs.get("/api/search", q="tokenizer")["groups"]] == ["media"]
        assert set(theirs.get("/api/facets")["sources"]) == {"telegram"}
        for kind in ("session", "messages", "compressed", "running"):
            assert theirs.client.get(f"/api/{kind}/s1").status_code == 404, kind
