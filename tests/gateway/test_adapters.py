"""What the gateway relies on in every adapter, each on its platform's lab: logins, storing before acknowledging, leaving, secrets."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import HermesError, PlatformRefused
from hermes.gateway.adapter import Adapter
from hermes.gateway.events import as_json
from hermes.gateway.platforms import adapter_class
from hermes.gateway.startup import made_adapter
from tests.gateway.test_conformance import PLATFORMS
from tests.support.gateway import configured
from tests.support.labs.base import Lab
from tests.support.labs.recording import Recorder, connected
from tests.support.sizes import THOROUGH

# Home Assistant is a real server that takes minutes to start: tests/real asks it the same.
VENDORS = [one for one in PLATFORMS if one not in ("plain", "homeassistant")]


@pytest.fixture(scope="module", params=VENDORS)
def place(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made: Lab = import_module(f"tests.support.labs.{request.param}").Lab()
    yield made
    made.close()


@pytest.fixture
def lab(place: Lab) -> Iterator[Lab]:
    place.reset()
    yield place
    place.reset()


def adapter_for(lab: Lab, home: Path, **settings: Any) -> Adapter:
    config = configured([lab], platforms={lab.platform: settings})
    kind = getattr(lab, "adapter", None) or adapter_class(lab.platform)
    return made_adapter(config, lab.platform, {}, home, kind)[0]


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged, but for addresses that httpx logs: the gateway's own log masks them (test_logs.py)."""
    return "\n".join(one.getMessage() for one in caplog.records if not one.name.startswith(("httpx", "httpcore")))


# the module of a lab → settings with a wrong login, and words of the refusal
WRONG_LOGINS: dict[str, list[tuple[dict[str, str], str]]] = {
    "telegram": [({"token": "4242:another-token"}, "token")],
    "discord": [({"token": "MTAw.wrong.token-nobody-has"}, "bot token"), ({"token": "two\nlines"}, "bot token")],
    "slack": [({"bot_token": "xoxb-secret-of-mine"}, "bot_token"), ({"app_token": "xapp-secret-of-mine"}, "app_token")],
    "matrix": [({"password": "not-the-password"}, ""), ({"access_token": "not-a-token"}, "")],
    "feishu": [({"app_secret": "wrong-secret-77"}, "app_id and app_secret")],
    "teams": [({"app_secret": "wrong-secret-77"}, "Invalid client secret")],
    "dingtalk": [({"client_secret": "wrong-secret-1"}, "client_id and client_secret")],
    "wecom": [({"secret": "wrong-secret-1"}, "bot_id and secret")],
    "whatsapp": [({"access_token": "wrong-token-1"}, "access_token")],
    "whatsapp_bridge": [({"bridge_token": "wrong-token-1"}, "bridge_token")],
    "sms": [({"auth_token": "wrong-token-1"}, "account_sid")],
    "mattermost": [({"token": "wrong-token-1"}, "token")],
    "bluebubbles": [({"password": "wrong-password"}, "password")],
    "qqbot": [({"client_secret": "wrong-secret-1"}, "app_id")],
    "weixin": [({"token": "wrong-token-1"}, "hermes gateway setup weixin")],
}


async def test_a_wrong_login_is_refused_by_name_and_not_shown(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert await adapter_for(lab, tmp_path / "right").check()
    for number, (wrong, words) in enumerate(WRONG_LOGINS.get(type(lab).__module__.rpartition(".")[2], [])):
        adapter = adapter_for(lab, tmp_path / str(number), **wrong)
        with pytest.raises(PlatformRefused) as refused:
            await adapter.check()
        assert words in str(refused.value)
        await adapter.disconnect()
        (value,) = wrong.values()
        assert value not in f"{refused.value!r} {logged(caplog)}"


ADDRESS = "must be an address"
CLOUD = {"phone_number_id": "1", "access_token": "t", "app_secret": "s", "verify_token": "v"}
TWILIO = {"account_sid": "AC" + "1" * 32, "auth_token": "x", "phone_number": "+1500"}
WRONG_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("feishu", {"domain": "wechat"}, "domain must be"),
    ("feishu", {"base_url": "open.feishu.cn"}, ADDRESS),
    ("teams", {"login_url": "http://login.example"}, "login_url must be"),
    ("dingtalk", {"client_id": "c", "client_secret": "s", "base_url": "api.dingtalk.com"}, ADDRESS),
    ("dingtalk", {"client_id": "c", "client_secret": "s", "old_url": "ftp://x"}, ADDRESS),
    ("mattermost", {"url": "", "token": "x"}, ADDRESS),
    ("mattermost", {"url": "ftp://chat.example.org", "token": "x"}, ADDRESS),
    ("bluebubbles", {"url": "mac.local:1234", "password": "x"}, ADDRESS),
    ("wecom", {"bot_id": "b", "secret": "s", "websocket_url": "https://x"}, "websocket_url must be"),
    ("whatsapp", {**CLOUD, "app_secret": ""}, "app_secret missing"),
    ("whatsapp", {**CLOUD, "phone_number_id": "+49151"}, "not '+49151'"),
    ("whatsapp", {**CLOUD, "mode": "x"}, "mode must be"),
    ("whatsapp", {"mode": "bridge"}, "needs bridge_command, or"),
    ("whatsapp", {"mode": "bridge", "bridge_url": "http://127.0.0.1:1"}, "needs bridge_command, or"),
    ("whatsapp", {"mode": "bridge", "bridge_url": "http://x.example:1", "bridge_token": "x"}, "on this machine"),
    ("sms", {**TWILIO, "account_sid": "SK1"}, "must begin with AC"),
    ("sms", {**TWILIO, "account_sid": "AC1"}, "32 digits"),
    ("sms", {**TWILIO, "messaging_service_sid": "MG1"}, "must begin with MG"),
    ("sms", {**TWILIO, "phone_number": "0151 123"}, "must be written as"),
    ("sms", {**TWILIO, "phone_number": " "}, "is missing"),
]


@pytest.mark.parametrize(("platform", "values", "words"), WRONG_SETTINGS)
def test_settings_that_can_not_work_are_named(
    platform: str, values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(PlatformRefused, match=re.escape(words)):
        adapter_class(platform)(values, tmp_path).validate()


async def test_what_could_not_be_stored_comes_again(lab: Lab, tmp_path: Path) -> None:
    """Whatever the platform offers for that: no acknowledgement, its list of messages, or a file of our own."""
    adapter, link = adapter_for(lab, tmp_path), Recorder()
    where = "channel" if "channel" in lab.places else "dm"
    async with connected(adapter, link):
        link.refuse = OSError("the disk is full")
        await asyncio.to_thread(lambda: lab.say("precious", where=where))
        await link.until(lambda: link.refused)
        assert link.events == []
    link.refuse = None
    async with connected(adapter, link):  # as the gateway does, or its next process
        await link.until(lambda: any("precious" in text for text in link.texts))
        await asyncio.to_thread(lambda: lab.say("after it", where=where))
        await link.until(lambda: any("after it" in text for text in link.texts))
        assert len({event.id for event in link.events if "precious" in event.text}) == 1


async def test_nothing_is_left_running_and_leaving_twice_is_fine(lab: Lab, tmp_path: Path) -> None:
    adapter, link, tasks = adapter_for(lab, tmp_path), Recorder(), asyncio.all_tasks()
    await adapter.disconnect()
    async with connected(adapter, link):
        await asyncio.to_thread(lab.say, "hello")
        await link.until(lambda: link.events)
    async with asyncio.timeout(5):
        await adapter.disconnect()
    await link.until(lambda: asyncio.all_tasks() == tasks, "a task is left")
    assert link.losses == []


async def test_secrets_and_private_words_reach_no_log_and_no_error(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    adapter, link, told = adapter_for(lab, tmp_path), Recorder(), list[BaseException | None]()
    secrets = [str(adapter.values.get(one.name) or "") for one in adapter.settings if one.secret]
    async with connected(adapter, link):
        await asyncio.to_thread(lab.say, "very private words")
        (event,) = (await link.heard(1))[:1]
        for trouble in ({"fail", "rate_limit"} if THOROUGH else {"fail"}) & lab.can:
            lab.fail() if trouble == "fail" else lab.rate_limit(0.05)
            try:
                more = {"context": event.reply_context} if event.reply_context else {}
                await adapter.send(event.chat, "our answer", nonce=trouble, **more)
            except HermesError as error:
                told += [error, error.__cause__, error.__context__]
        if "drop" in lab.can:
            lab.drop()
            await asyncio.to_thread(lab.say, "once more")
            await link.until(lambda: link.losses or any("once more" in text for text in link.texts))
    written = logged(caplog) + "".join(f"{one!r} {one}" for one in (*told, *link.losses))
    for secret in ("very private words", "our answer", *filter(None, secrets)):
        assert secret not in written
    assert not any(secret and secret in as_json(event) for event in link.events for secret in secrets)
