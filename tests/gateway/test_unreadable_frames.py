"""Frames that can't be read: one line in the log with the platform, the size and the reason, never the content; the next is read."""

from __future__ import annotations

import json
import logging
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp")


from hermes.gateway.platforms._shared.receipt import read_object
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import Lab, until

pytestmark = pytest.mark.mechanism

SECRET = "Kardamom"
BAD = [f'{{"cmd": "{SECRET}', f'["{SECRET}"]', f'"{SECRET}"', '{"a":' * 100_000 + f'"{SECRET}"']
TITLES = {"wecom": "WeCom", "dingtalk": "DingTalk", "mattermost": "Mattermost", "qqbot": "QQ", "feishu": "Feishu"}


def pushed(lab: Any, text: str) -> None:
    """Write a text to the gateway's WebSocket."""
    found = getattr(lab, "_socket", None) or next(iter(getattr(lab, "_sockets", ())), None)
    socket = lab._sockets[found] if isinstance(getattr(lab, "_sockets", None), dict) else found
    work = socket.send_bytes(text.encode()) if lab.platform == "feishu" else socket.send_str(text)
    lab._call(work)


@pytest.mark.parametrize("name", TITLES)
def test_a_frame_that_cannot_be_read_is_logged_without_its_content(
    name: str, model: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    lab: Lab = import_module(f"tests.support.labs.{name}").Lab()
    try:
        with running(lab, model):
            lab.say("before")
            until(lambda: lab.shown() == ["echo: before"])
            for text in BAD:
                pushed(lab, text)
            lab.say("after")
            until(lambda: lab.shown() == ["echo: before", "echo: after"])
        lines = [one.getMessage() for one in caplog.records if "can't be read and is dropped" in one.getMessage()]
        assert len(lines) == len(BAD), lines
        for line, text in zip(lines, BAD, strict=True):
            assert line.startswith(f"{TITLES[name]}: a frame of {len(text)} bytes")
        assert SECRET not in caplog.text
    finally:
        lab.close()


@given(st.binary(max_size=200) | st.text(max_size=200) | st.recursive(st.none(), st.lists).map(json.dumps))
def test_any_frame_is_an_object_or_one_line(data: bytes | str) -> None:
    lines: list[logging.LogRecord] = []
    log = logging.Logger("frames")
    log.addFilter(lambda record: not lines.append(record))  # type: ignore[func-returns-value]
    found = read_object(data, "Vendor", log)
    assert (found is None) == (len(lines) == 1)
