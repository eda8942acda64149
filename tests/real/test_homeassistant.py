"""Home Assistant: a real one, with real users, scripts, helpers and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.events import Chat
from hermes.gateway.platforms.homeassistant import HomeAssistant
from tests.gateway.platforms import conftest as fixtures
from tests.support.labs import recording
from tests.support.labs.homeassistant import Lab
from tests.support.labs.recording import Recorder

lab, place = fixtures.lab, fixtures.place


@asynccontextmanager
async def connected(lab: Lab, **more: Any) -> AsyncIterator[tuple[HomeAssistant, Recorder]]:
    adapter, link = HomeAssistant({**lab.settings, **more}, Path("/nowhere")), Recorder()
    async with recording.connected(adapter, link):
        yield adapter, link
    assert asyncio.all_tasks() == {asyncio.current_task()}


def chat(lab: Lab, who: str = "alice") -> Chat:
    return Chat(platform="homeassistant", chat_id=lab.chat_id("dm", who))


# ------------------------------------------------------------------------------------------ logging in


def test_check_says_which_house_it_is(lab: Lab) -> None:
    assert asyncio.run(HomeAssistant(lab.settings, Path("/nowhere")).check()) == "The Lab (2025.4.4)"


def test_a_wrong_token_is_refused_and_stays_secret(lab: Lab) -> None:
    token = "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.wrong.token"
    with pytest.raises(PlatformRefused, match="token") as caught:
        asyncio.run(HomeAssistant({**lab.settings, "token": token}, Path("/nowhere")).connect(Recorder()))
    assert token not in str(caught.value)


def test_somebody_who_is_no_administrator_is_told_so(lab: Lab) -> None:
    values = {**lab.settings, "token": lab.house.guest()}
    for call in ("check", "connect"):
        adapter = HomeAssistant(values, Path("/nowhere"))
        with pytest.raises(PlatformRefused, match="administrator"):
            asyncio.run(adapter.check() if call == "check" else adapter.connect(Recorder()))


# ------------------------------------------------------------------------------------------ receiving


async def test_what_a_person_says_is_theirs(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        assert link.identities == ["The Lab (2025.4.4)"]
        lab.say("Is it warm?")
        lab.say("And here?", who="bob")
        lab.fire({"text": "In no conversation", "user": "somebody else"})
        await link.until(lambda: len(link.events) == 3)
        first, second, third = link.events
        assert (first.text, first.chat.type, first.chat.chat_id) == ("Is it warm?", "dm", lab.chat_id("dm", "alice"))
        assert (first.sender.user_id, first.sender.name) == (lab.user_id("alice"), "Alice")
        assert (second.sender.user_id, second.chat.chat_id) == (lab.user_id("bob"), lab.chat_id("dm", "bob"))
        assert (third.chat.chat_id, third.chat.name, third.sender.user_id) == ("home", "The Lab", lab.user_id("alice"))
        assert len({event.id for event in link.events}) == 3


async def test_what_a_script_says_is_of_whoever_ran_it(lab: Lab) -> None:
    async with connected(lab, event_type="hermes_from_script") as (_, link):
        headers = {"Authorization": f"Bearer {lab.house.people['bob'][1]}"}
        asked = lab.house.http.post("/api/services/script/ask", json={"text": "Good night"}, headers=headers)
        asked.raise_for_status()
        event = (await link.until(lambda: link.events))[0]
        assert (event.text, event.sender.user_id) == ("Good night", lab.user_id("bob"))


async def test_what_an_automation_says_is_the_houses_unless_it_names_somebody(lab: Lab) -> None:
    async with connected(lab, event_type="hermes_from_automation") as (_, link):
        lab.fire({}, event="hermes_bell")
        await link.until(lambda: len(link.events) == 2)
        assert link.texts == ["Somebody rang"] * 2
        assert [event.sender.user_id for event in link.events] == ["home-assistant", "door"]
        assert not any(event.sender.proven for event in link.events)
        assert link.events[0].id != link.events[1].id


@pytest.mark.parametrize("data", [{}, {"text": ""}, {"text": 7}, {"text": None}, {"text": ["a"]}, {"message": "hello"}])
async def test_an_event_without_a_text_is_left_alone(lab: Lab, data: dict[str, Any]) -> None:
    async with connected(lab) as (_, link):
        lab.fire(data)
        lab.fire({"text": "but this", "conversation_id": 42})
        await link.until(lambda: link.texts == ["but this"])
        assert "without a text" in link.logged and link.events[0].chat.chat_id == "42"


# ------------------------------------------------------------------------------------------ sending


async def test_a_reply_is_a_notification_and_an_event(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        text = "# It is **21 °C**\n\n<img src=x> ![p](http://t.example/p.png)"
        sent = await adapter.send(chat(lab), text, nonce="one", reply_to="whatever")
        await link.until(lambda: lab.shown() == [text])
        assert lab.shown(who="bob") == []
        shown = lab.notifications()[sent]
        assert shown["title"] == "Hermes" and shown["message"].startswith("# It is **21 °C**")
        assert "<img" not in shown["message"] and "![" not in shown["message"]
        assert lab.listener.events[0]["data"]["message_id"] == sent


async def test_the_same_nonce_again_is_still_one_notification(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        first = await adapter.send(chat(lab), "once", nonce="one")
        assert await adapter.send(chat(lab), "once", nonce="one") == first
        assert await adapter.send(chat(lab), "other", nonce="two") != first
        assert sorted(one["message"] for one in lab.notifications().values()) == ["once", "other"]


async def test_a_service_that_does_not_exist_is_refused_for_good(lab: Lab) -> None:
    async with connected(lab, notify_service="notify.mobile_app_nobody") as (adapter, _):
        with pytest.raises(SendRefused, match="mobile_app_nobody"):
            await adapter.send(chat(lab), "hello", nonce="one")
        assert lab.shown() == []


# ------------------------------------------------------------------------------------------ trouble


async def test_a_cut_connection_is_reported_once_and_can_be_taken_up_again(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        lab.drop()
        await link.until(lambda: link.losses)
        with pytest.raises(PlatformUnreachable):
            await adapter.send(chat(lab), "lost", nonce="one")
        await adapter.disconnect()
        await adapter.connect(link)
        lab.say("again")
        await link.until(lambda: link.texts == ["again"])
        await adapter.send(chat(lab), "here", nonce="two")
        await link.until(lambda: lab.shown() == ["here"])
        assert len(link.losses) == 1 and isinstance(link.losses[0], PlatformUnreachable)
        assert len(link.identities) == 2


async def test_the_token_is_in_no_error_and_no_log(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = lab.house.token
    async with connected(lab, notify_service=f"nowhere.{token[:20]}") as (adapter, link):
        lab.fire({"text": ""})
        with pytest.raises(SendRefused) as caught:
            await adapter.send(chat(lab), "hello", nonce="one")
        lab.drop()
        await link.until(lambda: link.losses)
        assert token not in f"{caught.value!r} {link.losses!r} {link.logged}"
    assert token not in caplog.text


async def test_an_event_that_could_not_be_kept_is_offered_again_before_later_ones(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        link.refusals = 2
        lab.say("first")
        lab.say("second")
        await link.until(lambda: link.texts == ["first", "second"])


@pytest.mark.thorough  # a cut connection is taken up again by the test above
async def test_a_house_that_restarts_is_found_again(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        lab.stop()
        await link.until(lambda: link.losses)
        await adapter.disconnect()
        with pytest.raises(PlatformUnreachable):
            await adapter.connect(link)
        lab.start()
        await adapter.connect(link)
        lab.say("welcome back")
        await link.until(lambda: link.texts == ["welcome back"])
        assert len(link.losses) == 1
