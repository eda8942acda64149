"""`hermes web` for others than the person at the machine: the password, a reverse proxy's users, and who gets nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hermes_state import SessionDB
from tests.support import program
from tests.support.page import Page, fill
from tests.support.waiting import until

PASSWORD = "correct horse battery staple"
PROXY = """
web:
  url: https://hermes.example.com
  user_header: X-Forwarded-User
  users: {ann: owner, bob: 'telegram:42'}
"""


def of(home: Path, settings: str) -> Path:
    fill(home)
    (home / "config.yaml").write_text(settings)
    return home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stranger() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def test_a_password_lets_in_from_elsewhere(home: Path, stranger: httpx.Client) -> None:
    with Page(of(home, f"web: {{password: {PASSWORD}}}"), "--host", "0.0.0.0") as page:
        port = page.address.rpartition(":")[2]
        there = {"Host": f"hermes.lan:{port}"}
        address = f"http://127.0.0.1:{port}"
        asked = stranger.get(address + "/s/s1", headers=there)
        assert asked.status_code == 401 and 'name="password"' in asked.text
        assert stranger.get(address + "/api/sessions", headers=there).status_code == 401
        assert stranger.get(address + "/static/style.css", headers=there).status_code == 200
        form = {"password": PASSWORD, "next": "/s/s1"}
        ours = {**there, "Origin": f"http://hermes.lan:{port}"}
        assert stranger.post(address + "/login", data=form, headers=there).status_code == 403
        elsewhere = {**there, "Origin": "http://evil.test"}
        assert stranger.post(address + "/login", data=form, headers=elsewhere).status_code == 403
        wrong = stranger.post(address + "/login", data={**form, "password": "guess"}, headers=ours)
        assert wrong.status_code == 401 and "not the password" in wrong.text and "set-cookie" not in wrong.headers
        away = stranger.post(address + "/login", data={**form, "next": "//evil.test/x"}, headers=ours)
        assert away.headers["location"] == "/evil.test/x"
        opened = stranger.post(address + "/login", data=form, headers=ours)
        assert opened.status_code == 303 and opened.headers["location"] == "/s/s1"
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        kept = {**there, "Cookie": cookie.partition(";")[0]}
        assert stranger.get(address + "/api/sessions", headers=kept).status_code == 200
        assert stranger.post(address + "/api/do/pin/s1", json={}, headers=kept).status_code == 403
        assert stranger.post(address + "/api/do/pin/s1", json={}, headers={**kept, **ours}).status_code == 200


def test_the_proxys_users_see_what_is_theirs(home: Path, stranger: httpx.Client) -> None:
    with Page(of(home, PROXY)) as page:

        def ask(path: str, **headers: str) -> httpx.Response:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            return stranger.get(page.address + path, headers={"Host": "hermes.example.com", **told})

        assert ask("/api/messages/s1", X_Forwarded_User="ann").status_code == 200
        assert [one["id"] for one in ask("/api/sessions", X_Forwarded_User="bob").json()["sessions"]] == ["media"]
        assert ask("/api/messages/s1", X_Forwarded_User="bob").status_code == 404
        assert ask("/api/sessions", X_Forwarded_User="eve").status_code == 403
        assert ask("/api/sessions").status_code == 401
        two = [("Host", "hermes.example.com"), ("X-Forwarded-User", "bob"), ("X-Forwarded-User", "ann")]
        assert stranger.get(page.address + "/api/sessions", headers=two).status_code == 401
        # A page of another site whose name resolves to this machine can send the header, but not under our name.
        for host in ("evil.test", page.address.removeprefix("http://")):
            assert ask("/api/sessions", Host=host, X_Forwarded_User="ann").status_code in (401, 403), host

        def pin(user: str, origin: str) -> int:
            headers = {"Host": "hermes.example.com", "Origin": origin, "X-Forwarded-User": user}
            return stranger.post(page.address + "/api/do/pin/s1", json={}, headers=headers).status_code

        assert pin("ann", "https://evil.test") == 403 and pin("bob", "https://hermes.example.com") == 403
        assert pin("ann", "https://hermes.example.com") == 200
    with SessionDB(home / "state.db", read_only=True) as db:
        assert [(one["action"], one["by"]) for one in db.audit_log()] == [("pin", "hermes web (ann)")]


def test_only_the_proxys_address_is_believed(home: Path, stranger: httpx.Client) -> None:
    with Page(of(home, PROXY + "  proxies: [192.0.2.7]\n")) as page:
        headers = {"Host": "hermes.example.com", "X-Forwarded-User": "ann"}
        assert stranger.get(page.address + "/api/sessions", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("web: {password: short}", "16 or more"),
        ("web: {user_header: X-User, users: {a: owner}}", "web.url"),
        ("web: {user_header: X-User, url: 'https://a.example'}", "web.users"),
        ("web: {user_header: X-User, url: 'https://a.example', users: {a: bob}}", "SOURCE:ID"),
        ("web: {password: '${NOT_SET_ANYWHERE}'}", "NOT_SET_ANYWHERE"),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(home: Path, settings: str, words: str) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(settings)
    refused = program.run("web", "--no-browser", "--host", "0.0.0.0", home=home)
    assert refused.status == 1 and words in refused.err and "Traceback" not in refused.err


def test_the_link_that_the_browser_is_started_with_is_good_for_one_visit(tmp_path: Path) -> None:
    """Every user of the machine sees what processes are started with."""
    home, started = tmp_path / "home", tmp_path / "started"
    fill(home)
    starter = tmp_path / "browser"
    starter.write_text(f'#!/bin/sh\nprintf %s "$1" > "{started}.part" && mv "{started}.part" "{started}"\n')
    starter.chmod(0o755)
    process = program.start("web", home=home, env={"BROWSER": f"{starter} %s"})
    try:
        assert process.stdout is not None
        printed = process.stdout.readline().strip()
        until(started.exists, "the browser is started")
        link = started.read_text()
        assert link != printed and link.partition("?")[0] == printed.partition("?")[0]
        statuses = [httpx.get(one, trust_env=False).status_code for one in (link, link, printed, printed)]
        assert statuses == [303, 401, 303, 303]
    finally:
        process.terminate()
        process.communicate(timeout=30)
