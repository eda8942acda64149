"""The gateway's logs are JSON lines that any program can read, without secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config.loading import parse_config
from hermes.gateway import logs
from hermes.gateway.logs import MASK, Masking, start_logging
from hermes.gateway.settings import PlatformSettings
from hermes.gateway.startup import secrets_of
from tests.support.labs.plain import Plain

TOKEN = 's3cr:t/"of this bot'


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error, captured."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.fixture
def log(hermes_home: Path, screen: io.StringIO, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A started log (a parameter is the size of its files), and the process as it was afterwards."""
    root, hook, level = logging.getLogger(), threading.excepthook, logging.getLogger().level
    before = list(root.handlers)
    path = start_logging(hermes_home, [TOKEN, "abc"], file_bytes=getattr(request, "param", logs.FILE_BYTES))
    made = [one for one in root.handlers if one not in before]
    yield path
    for handler in made:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.captureWarnings(False)
    logging.raiseExceptions = True
    threading.excepthook = hook


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_is_an_object_with_time_level_place_and_text(log: Path) -> None:
    logging.getLogger("hermes.gateway.telegram").info("connected as %s", "@bot")
    logging.getLogger("hermes.gateway").error("two\nlines and \x1b[31mcolours")
    first, second = lines(log)
    assert set(first) == {"at", "level", "from", "text"}
    assert (first["level"], first["from"], first["text"]) == ("info", "hermes.gateway.telegram", "connected as @bot")
    assert first["at"].endswith("Z")
    assert second["text"] == "two\nlines and \x1b[31mcolours"


def test_half_a_character_is_no_reason_to_fail() -> None:
    record = logging.LogRecord("x", logging.INFO, "file", 1, "half \ud800", None, None)
    assert json.loads(logs.Json().format(record).encode())["text"] == "half ?"


@pytest.mark.filterwarnings("default")
def test_no_secret_gets_through_whoever_logs_it_and_however(log: Path, screen: io.StringIO) -> None:
    library = logging.getLogger("some.library")
    library.setLevel(logging.DEBUG)
    library.debug("POST https://api.example/bot%s/send", TOKEN)
    library.debug("GET https://api.example/?token=%s", quote(TOKEN, safe=""))
    library.debug("body: %s", json.dumps({"token": TOKEN}))
    library.warning("Authorization: Bearer sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH")
    library.warning("broken %d format", TOKEN)
    library.warning("where from?", stack_info=True)
    try:
        raise ValueError(f"the token {TOKEN} was rejected")
    except ValueError:
        library.exception("failed")
    warnings.warn(f"{TOKEN} is deprecated", UserWarning, stacklevel=1)

    def dies() -> None:
        raise RuntimeError(f"died with {TOKEN}")

    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    told = log.read_text() + screen.getvalue()
    for form in (TOKEN, quote(TOKEN, safe=""), json.dumps(TOKEN)[1:-1], json.dumps(json.dumps(TOKEN)[1:-1])[1:-1]):
        assert form not in told
    assert "abcdefghijklmnopqrstuvwxyz0123456789" not in told
    assert len(lines(log)) == 9
    assert sum(MASK in one["text"] for one in lines(log)) == 7
    assert any("ValueError" in one["text"] for one in lines(log))
    assert any("thread died" in one["text"] for one in lines(log))


def test_a_screen_that_is_gone_is_no_reason_to_tell_secrets(log: Path, screen: io.StringIO) -> None:
    """A handler that fails would print the whole record, and the exception it was about, on standard error."""
    broken = logging.StreamHandler((log.parent / "gone").open("w"))
    broken.stream.close()
    logging.getLogger().addHandler(broken)
    try:
        raise ValueError(TOKEN)
    except ValueError:
        logging.getLogger("some.library").exception("failed")
    logging.getLogger().removeHandler(broken)
    assert TOKEN not in screen.getvalue()
    assert "ValueError" in lines(log)[-1]["text"]


def test_what_others_wrote_can_do_nothing_to_the_terminal(log: Path, screen: io.StringIO) -> None:
    logging.getLogger("hermes.gateway").info("no access: %s", "\x1b]0;owned\x07\x1b[2Jmallory\u202e")
    shown = screen.getvalue()
    assert "mallory" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.mark.parametrize("log", [2_000], indirect=True)
def test_only_its_owner_can_read_it_and_it_does_not_grow_for_ever(log: Path) -> None:
    for number in range(200):
        logging.getLogger("hermes.gateway").info("line %d %s", number, "x" * 60)
    files = sorted(log.parent.iterdir())
    assert len(files) == logs.FILES + 1
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert lines(log)[-1]["text"].startswith("line 199 ")


def test_every_secret_of_the_configuration_and_the_environment_is_known() -> None:
    text = """
model: {api_key: key-of-the-model}
auxiliary: {title: {api_key: key-of-the-title}}
platforms: {plain: {port: 1, token: token-of-plain}}
api_server: {token: token-of-the-server}
webhooks: {routes: {a: {secret: secret-of-a, prompt: x}}}
mcp_servers: {one: {url: 'http://x', headers: {X-Thing: header-of-mcp}}, two: {command: c, env: {A_TOKEN: env-of-mcp}}}
"""
    config = parse_config(text, Path("config.yaml"))
    adapter = Plain({"port": 1, "token": "token-of-plain"}, Path("/nowhere"))
    variables = {"SOME_API_KEY": "key-of-the-environment", "LANG": "C.UTF-8", "EDITOR": "not-a-secret"}
    found = secrets_of([(adapter, PlatformSettings("plain"))], config, variables)
    assert set(found) == {
        "key-of-the-model", "key-of-the-title", "token-of-plain", "token-of-the-server", "secret-of-a", "header-of-mcp",
        "env-of-mcp", "key-of-the-environment",
    }  # fmt: skip


@given(st.text(min_size=6, max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_a_known_secret_is_masked_wherever_it_stands(secret: str, before: str, after: str) -> None:
    said = before + secret + after
    masked = Masking([secret]).masked(said)
    assert MASK in masked or "[masked:" in masked
    if secret not in (before + MASK + after) and not set(secret) <= set(MASK + "[masked:]"):
        assert secret not in masked
