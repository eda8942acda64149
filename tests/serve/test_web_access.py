"""`hermes web` for others than the person at the machine: the password, a reverse proxy's users, and who gets nothing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from hermes_state import SessionDB
from tests.support import program
from tests.support.page import Page, fill
from tests.support.ports import free_port
from tests.support.waiting import until

PASSWORD = "correct horse battery staple"
SECRET = {"X-Hermes-Proxy-Secret": "a secret of the proxy alone"}
PROXY = """
web:
  url: https://hermes.example.com
  user_header: X-Forwarded-User
  proxy_secret: a secret of the proxy alone
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
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie
        kept = {**there, "Cookie": cookie.partition(";")[0]}
        assert stranger.get(address + "/api/sessions", headers=kept).status_code == 200
        assert stranger.post(address + "/api/do/pin/s1", json={}, headers=kept).status_code == 403
        assert stranger.post(address + "/api/do/pin/s1", json={}, headers={**kept, **ours}).status_code == 200


def test_the_proxys_users_see_what_is_theirs(home: Path, stranger: httpx.Client) -> None:
    with Page(of(home, PROXY)) as page:

        def ask(path: str, **headers: str) -> httpx.Response:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            return stranger.get(page.address + path, headers={"Host": "hermes.example.com", **SECRET, **told})

        assert ask("/api/messages/s1", X_Forwarded_User="ann").status_code == 200
        assert [one["id"] for one in ask("/api/sessions", X_Forwarded_User="bob").json()["sessions"]] == ["media"]
        assert ask("/api/messages/s1", X_Forwarded_User="bob").status_code == 404
        assert ask("/api/sessions", X_Forwarded_User="eve").status_code == 403
        assert ask("/api/sessions").status_code == 401
        two = [
            *SECRET.items(),
            ("Host", "hermes.example.com"),
            ("X-Forwarded-User", "bob"),
            ("X-Forwarded-User", "ann"),
        ]
        assert stranger.get(page.address + "/api/sessions", headers=two).status_code == 401
        # A page of another site whose name resolves to this machine can send the header, but not under our name.
        for host in ("evil.test", page.address.removeprefix("http://")):
            assert ask("/api/sessions", Host=host, X_Forwarded_User="ann").status_code in (401, 403), host

        def pin(user: str, origin: str) -> int:
            headers = {**SECRET, "Host": "hermes.example.com", "Origin": origin, "X-Forwarded-User": user}
            return stranger.post(page.address + "/api/do/pin/s1", json={}, headers=headers).status_code

        assert pin("ann", "https://evil.test") == 403 and pin("bob", "https://hermes.example.com") == 403
        assert pin("ann", "https://hermes.example.com") == 200
    with SessionDB(home / "state.db", read_only=True) as db:
        assert [(one["action"], one["by"]) for one in db.audit_log()] == [("pin", "hermes web (ann)")]


def test_a_user_of_this_machine_is_not_the_proxy(home: Path, stranger: httpx.Client) -> None:
    with Page(of(home, PROXY)) as page:
        for secret in ({}, {"X-Hermes-Proxy-Secret": ""}, {"X-Hermes-Proxy-Secret": "a secret of the proxy alon"}):
            headers = {"Host": "hermes.example.com", "X-Forwarded-User": "ann", **secret}
            assert stranger.get(page.address + "/api/sessions", headers=headers).status_code == 401, secret


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("web: {password: short}", "16 or more"),
        ("web: {user_header: X-User, users: {a: owner}}", "web.url"),
        ("web: {user_header: X-User, url: 'https://a.example', users: {a: owner}}", "web.proxy_secret"),
        ("web: {user_header: X-User, url: 'https://a.example', users: {a: owner}, proxy_secret: short}", "16"),
        ("web: {user_header: X-User, url: 'https://a.example', proxy_secret: 0123456789abcdef}", "web.users"),
        (
            "web: {user_header: X-User, url: 'https://a.example', proxy_secret: 0123456789abcdef, users: {a: bob}}",
            "SOURCE:ID",
        ),
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
        process.communicate(timeout=120)


# ------------------------------------------------------------------------------------------------ passwords


def _login(client: httpx.Client, page: Page, password: str, **headers: str) -> httpx.Response:
    told = {"Origin": page.address, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.post(page.address + "/login", data={"password": password, "next": "/"}, headers=told)


@pytest.mark.thorough
def test_wrong_passwords_of_one_address_hold_up_no_other(home: Path) -> None:
    """Behind a proxy, which says whose they are; without its secret, what it says is worth nothing."""
    settings = f"web: {{password: {PASSWORD}, proxy_secret: a secret of the proxy alone}}"
    with (
        Page(of(home, settings)) as page,
        httpx.Client(trust_env=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)) as client,
        ThreadPoolExecutor(24) as many,
    ):
        guesses = [
            many.submit(_login, client, page, "guess", X_Forwarded_For="203.0.113.9", **SECRET) for _ in range(24)
        ]
        opened = _login(client, page, PASSWORD, X_Forwarded_For="198.51.100.7", **SECRET)
        in_time = not all(one.done() for one in guesses)  # the right password did not wait for the wrong ones
        assert opened.status_code == 303 and in_time
        cookie = {"Cookie": opened.headers["set-cookie"].partition(";")[0]}
        assert client.get(page.address + "/api/sessions", headers=cookie).status_code == 200
        statuses = Counter(one.result().status_code for one in guesses)
        assert set(statuses) == {401, 429} and statuses[401] <= 12
        network = [
            many.submit(_login, client, page, "guess", X_Forwarded_For=f"2001:db8::{n}", **SECRET) for n in range(16)
        ]
        own = [many.submit(_login, client, page, "guess", X_Forwarded_For=f"203.0.113.{n}") for n in range(16)]
        assert any(one.result().status_code == 429 for one in network)
        assert any(one.result().status_code == 429 for one in own)


# ------------------------------------------------------------------------------------------------ the link


def test_a_link_in_a_mail_opens_the_page_and_nothing_else_comes_from_elsewhere(home: Path) -> None:
    with Page(of(home, "")) as page:
        visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert page.client.get("/s/s1", headers=visit).status_code == 200
        for path in ("/api/sessions", "/export/jsonl/s1", "/attachment/1/x", "/text/1", "/static/app.js"):
            assert page.client.get(path, headers=visit).status_code == 403, path
        for dest in ("image", "iframe", "empty", "script"):
            for site in ("cross-site", "same-site"):  # another port of this machine is the same site
                headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": dest}
                assert page.client.get("/s/s1", headers=headers).status_code == 403, headers
        evil = {**visit, "Origin": "http://evil.test"}
        assert page.client.post("/api/do/pin/s1", json={}, headers=evil).status_code == 403


def test_a_stranger_reads_how_to_get_in(home: Path, stranger: httpx.Client) -> None:
    with Page(of(home, "")) as page:
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        for path in ("/", "/s/s1", "/?token=wrong", "/api/sessions"):
            refused = stranger.get(page.address + path, headers=browser)
            assert refused.status_code == 401 and "<code>hermes web</code>" in refused.text, path
            assert refused.headers["content-type"].startswith("text/html")
        asked = stranger.get(page.address + "/api/sessions")
        assert asked.status_code == 401 and "link" in asked.json()["error"]
        assert stranger.get(page.address + "/static/style.css").status_code == 200
        assert stranger.get(page.address + "/static/icon.svg").status_code == 200
        assert stranger.get(page.address + "/static/app.js").status_code == 401


def test_the_page_as_a_service_has_a_link_that_stays(home: Path, tmp_path: Path, stranger: httpx.Client) -> None:
    """A stand-in for systemctl writes down how it was called: the machine's own may have no user session."""
    fill(home)
    tools, calls, units = tmp_path / "tools", tmp_path / "calls", tmp_path / "configuration" / "systemd" / "user"
    tools.mkdir()
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tools / "systemctl").chmod(0o755)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "configuration"), "HOME": str(tmp_path), "PATH": f"{tools}:/usr/bin:/bin"}
    port = free_port()
    done = program.run("web", "--install", "--port", port, "--read-only", home=home, env=env)
    assert done.status == 0, done.err
    (unit,) = units.iterdir()
    assert unit.name.startswith("hermes-web") and f"enable --now {unit.name}" in calls.read_text()
    (link,) = [line.split()[-1] for line in done.out.splitlines() if "token=" in line]
    (kept,) = [
        file for file in home.rglob("*") if file.is_file() and link.rpartition("=")[2] in file.read_text("latin-1")
    ]
    assert kept.stat().st_mode & 0o777 == 0o600
    again = program.run("web", "--install", "--port", port, "--read-only", home=home, env=env)
    assert link in again.out
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2])[3:]
    for _ in range(2):  # also after the machine was started again
        process = program.start(*words, home=home)
        try:
            assert process.stdout is not None and "token" not in process.stdout.readline()  # that is a log
            opened = stranger.get(link)
            assert opened.status_code == 303
            cookie = {"Cookie": opened.headers["set-cookie"].partition(";")[0]}
            address = link.partition("/?")[0]
            assert stranger.get(address + "/api/sessions", headers=cookie).status_code == 200
            assert (
                "read"
                in stranger.post(address + "/api/do/pin/s1", json={}, headers={**cookie, "Origin": address}).json()[
                    "error"
                ]
            )
        finally:
            process.terminate()
            process.communicate(timeout=120)
    done = program.run("web", "--uninstall", home=home, env=env)
    assert done.status == 0 and not list(units.iterdir()) and not kept.exists()
    assert f"disable --now {unit.name}" in calls.read_text()
    gone = program.run("web", "--uninstall", home=home, env=env)
    assert gone.status == 1 and "--install" in gone.err


# ------------------------------------------------------------------------------------------------ hostile requests


def test_deeply_nested_json_is_a_bad_request(home: Path) -> None:
    with Page(of(home, "")) as page:
        before = page.get("/api/session/s1")
        for depth in (101, 300, 960, 1000, 100_000):
            for deep in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
                for path in ("/api/do/title/s1", "/api/do/pin/s1", "/api/answer/x", "/api/talk"):
                    refused = page.client.post(path, content=f'{{"title": {deep}, "text": "x"}}')
                    assert refused.status_code == 400 and "levels deep" in refused.text, (depth, path, refused.text)
        for value in ([], {}, ["x"], 7, True):
            assert page.do("/api/do/title/s1", title=value or [1]).status_code == 400
        assert page.get("/api/session/s1") == before
