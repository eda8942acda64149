"""Slack waits three seconds: what is acknowledged before the store has it survives a kill, and is kept once and in order."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from aiohttp import web

from hermes.gateway.events import Event
from hermes.gateway.spool import Spool
from hermes.store.redact import redact
from tests.support.labs.slack import Lab
from tests.support.labs.slack_scenes import HOME, connected, eventually, fresh_lab, one_workspace, run  # noqa: F401


def spooled(lab: Lab) -> list[Path]:
    return sorted((HOME[lab] / "slack" / "unkept").glob("*"))


async def never(event: Event) -> None:
    await asyncio.Event().wait()


def test_a_store_that_hangs_holds_up_no_acknowledgement_and_the_next_start_has_the_message(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            link.before_keeping = never
            lab.say("first")
            lab.say("second")
            lab.slash("title My trip")
            await eventually(lambda: len(lab.state.acknowledged) == 3)
            files = spooled(lab)
            assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
            assert not any("response_url" in file.read_text() for file in files)
        assert link.events == []  # the process ends here; Slack sends none of it again
        assert lab.state.unacknowledged == {}
        async with connected(lab) as (_, link):
            await link.heard(3)
            assert [event.text for event in link.events] == ["first", "second", "/title My trip"]
            await eventually(lambda: spooled(lab) == [])
        async with connected(lab) as (_, link):
            lab.say("third")
            assert [event.text for event in await link.heard(1)] == ["third"]

    run(scene())


@pytest.mark.parametrize("masking", [True, False])
def test_what_lies_in_the_spool_is_masked_as_the_store_masks(lab: Lab, masking: bool) -> None:
    secret, words = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD", "my key is {} <ok> & done"

    async def scene() -> None:
        HOME[lab].mkdir(parents=True, exist_ok=True)
        (HOME[lab] / "config.yaml").write_text(f"privacy:\n  redact_secrets: {str(masking).lower()}\n")
        async with connected(lab) as (_, link):
            link.before_keeping = never
            lab.say(words.format(secret))
            lab.slash(f"title {words.format(secret)}")
            await eventually(lambda: len(lab.state.acknowledged) == 2)
            assert [secret in file.read_text() for file in spooled(lab)] == [not masking] * 2
        async with connected(lab) as (_, link):
            texts = [event.text for event in await link.heard(2)]
            assert [redact(text) for text in texts] == [
                redact(words.format(secret)),
                "/title " + redact(words.format(secret)),
            ]
            assert (texts[0] == words.format(secret)) is not masking

    run(scene())


def test_what_was_acknowledged_early_comes_before_what_is_said_later(lab: Lab) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            link.before_keeping = never
            lab.say("early")
            await eventually(lambda: len(lab.state.acknowledged) == 1)
        lab.say("late")
        async with connected(lab) as (_, link):
            assert [event.text for event in await link.heard(2)] == ["early", "late"]

    run(scene())


def test_a_store_that_wakes_up_keeps_each_message_once_and_in_order(lab: Lab) -> None:
    async def scene() -> None:
        awake = asyncio.Event()

        async def slowly(event: Event) -> None:
            await awake.wait()

        async with connected(lab) as (_, link):
            link.before_keeping = slowly
            for number in range(5):
                lab.say(str(number))
            await eventually(lambda: len(lab.state.acknowledged) == 5)
            awake.set()
            await link.heard(5)
            await eventually(lambda: spooled(lab) == [])
            assert [event.text for event in link.events] == list("01234")
        assert len(lab.state.acknowledged) == 5

    run(scene())


def test_a_store_that_refuses_is_asked_again_without_slacks_help(lab: Lab) -> None:
    async def scene() -> None:
        tries: list[str] = []

        async def fails_twice(event: Event) -> None:
            tries.append(event.text)
            if len(tries) < 3:
                raise OSError("the disk is full")

        async with connected(lab) as (_, link):
            link.before_keeping = fails_twice
            lab.say("hello")
            await link.heard(1)
            await eventually(lambda: lab.state.acknowledged)
            await eventually(lambda: spooled(lab) == [])
        assert tries == ["hello"] * 3

    run(scene())


def test_where_the_disk_takes_nothing_either_the_message_is_not_acknowledged(lab: Lab) -> None:
    async def scene() -> None:
        (HOME[lab] / "slack").write_text("a file where the folder should be")
        seen: list[str] = []

        async def notes(event: Event) -> None:
            seen.append(event.text)
            await asyncio.Event().wait()

        async with connected(lab) as (_, link):
            link.before_keeping = notes
            lab.say("hello")
            await eventually(lambda: seen)
            await asyncio.wait([asyncio.create_task(asyncio.sleep(1.5))])  # past the second it would be acknowledged in
            assert (lab.state.acknowledged, len(lab.state.unacknowledged)) == ([], 1)
        async with connected(lab) as (_, link):
            assert [event.text for event in await link.heard(1)] == ["hello"]

    run(scene())


def test_slack_that_is_slow_to_tell_names_holds_up_no_acknowledgement(lab: Lab) -> None:
    async def scene() -> None:
        lab.answer_next("conversations.open", lambda: web.Response(status=503), times=2)
        async with connected(lab) as (_, link):
            lab.slash("how are you?", chat="CFOREIGN1")
            await eventually(lambda: lab.state.acknowledged)
            assert (await link.heard(1))[0].text == "how are you?"

    run(scene())


def test_an_envelope_that_can_not_be_read_is_not_acknowledged_and_holds_up_no_other(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with connected(lab) as (_, link):
            lab.announce({"type": "message", "channel": lab.chat_id("dm"), "channel_type": "im", "user": "UALICE001"})
            lab.say("hello")
            assert [event.text for event in await link.heard(1)] == ["hello"]
            await eventually(lambda: len(lab.state.acknowledged) == 1)
            assert len(lab.state.unacknowledged) == 1
        assert "can't be read" in caplog.text

    run(scene())


# ------------------------------------------------------------------------------------------------ the spool itself


def test_a_torn_file_and_a_strange_one_hold_up_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        spool = Spool(tmp_path / "spool")
        assert spool.waiting() == []
        names = [await spool.put({"number": number, "text": "ä\ud800"}) for number in range(3)]
        (tmp_path / "spool" / "0.json").write_text('{"torn')
        (tmp_path / "spool" / "1.json").write_text(json.dumps([1]))
        (tmp_path / "spool" / "2.json.part").write_text("{}")
        assert [content["number"] for _, content in spool.waiting()] == [0, 1, 2]
        assert spool.waiting()[0][1]["text"] == "ä\ud800"
        spool.drop(names[1])
        spool.drop(names[1])
        assert [name for name, _ in Spool(tmp_path / "spool").waiting()] == [names[0], names[2]]
        spool.close()

    asyncio.run(scene())
