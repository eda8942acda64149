"""Slack: what was said while no gateway was connected is read from the conversations."""

from __future__ import annotations

from aiohttp import web

from hermes.gateway.platforms.slack.adapter import Slack
from hermes.store.gateway import outbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs import slack
from tests.support.labs.base import until


class Impatient(Slack):
    read_again = 0.1


class Lab(slack.Lab):
    adapter = Impatient


def test_what_was_said_while_no_gateway_was_connected_is_answered_once(model: Echo) -> None:
    """Slack gives up after a few minutes; the conversations have it."""
    lab = Lab()
    lab.server.page_size = 2
    try:
        with running(lab, model):
            lab.say("hello")
            until(lambda: lab.shown() == ["echo: hello"])
            lab.say("look here", where="channel")
            until(lambda: any("look here" in text for text in lab.shown("channel")))
            lab.say("in the thread", where="thread")
            until(lambda: any("in the thread" in text for text in lab.shown("thread")))
        for number in range(3):
            lab.say(f"missed {number}")
        lab.say("missed too", who="bob")
        lab.say("in the channel", where="channel")
        lab.say("not for us", where="channel", addressed=False)
        lab.say("more in the thread", where="thread")
        lab.server.do(lab.state.queue.clear)
        for _ in range(2):
            lab.answer_next("conversations.history", lambda: web.json_response({"ok": False}, status=503), 1)
            lab.answer_next(
                "conversations.history",
                lambda: web.json_response(
                    {"ok": False, "error": "ratelimited"}, status=429, headers={"Retry-After": "0"}
                ),
                1,
            )
            with running(lab, model, platforms={"slack": {"require_mention": True}}) as gateway:
                until(lambda: any("missed 2" in text for text in lab.shown()), str(lab.shown()))
                until(lambda: any("more in" in text for text in lab.shown("thread")), str(lab.shown("thread")))
                until(lambda: any("in the channel" in text for text in lab.shown("channel")))
                until(lambda: lab.shown(who="bob") == ["echo: missed too"])
                until(lambda: not gateway.store.read(outbox.unsent))
                rows = gateway.db.list_sessions_rich(source="slack", visible_to=("slack", lab.user_id("alice")))
                said = [
                    str(one["content"])
                    for row in rows
                    for one in gateway.db.get_messages(row["id"])
                    if one["role"] == "user"
                ]
                assert [text for text in said if "missed" in text] == [f"missed {number}" for number in range(3)]
                assert len([text for text in said if "more in the thread" in text]) == 1
        assert not any("not for us" in text for text in lab.shown("channel"))
        assert lab.problems() == []
    finally:
        lab.close()


def test_the_first_start_reads_nothing_and_no_old_message_is_answered(model: Echo) -> None:
    lab = Lab()
    try:
        lab.say("from before the bot")
        lab.server.do(lab.state.queue.clear)
        with running(lab, model):
            lab.say("hello")
            until(lambda: lab.shown() == ["echo: hello"])
        assert not any(method == "conversations.history" for method, _ in lab.state.calls)
    finally:
        lab.close()
