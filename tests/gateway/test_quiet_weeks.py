"""A quiet week: the queues are cleaned, and the next start reads from the vendor what it may have missed. Nothing is answered twice."""

from __future__ import annotations

from importlib import import_module

import pytest

from hermes.store.gateway import outbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import Lab, until
from tests.support.sizes import some

READ_BACK = (
    "bluebubbles",
    "discord",
    "mattermost",
    "matrix",
    "sms",
    "weixin",
)  # they ask the vendor for what was missed


@pytest.mark.parametrize("name", some(READ_BACK, 3))
def test_the_last_message_before_a_quiet_week_is_not_answered_again(name: str, model: Echo) -> None:
    lab: Lab = import_module(f"tests.support.labs.{name}").Lab()
    try:
        with running(lab, model) as gateway:
            lab.say("hello")
            until(lambda: len(lab.shown()) == 1)
            until(lambda: not gateway.store.read(outbox.unsent))
            gateway.store.forget_mail(0)
            lab.say("bye", who="bob")
            until(lambda: len(lab.shown(who="bob")) == 1)
            until(lambda: not gateway.store.read(outbox.unsent))
            gateway.store.forget_mail(0)
        with running(lab, model) as gateway:
            gateway.store.forget_mail(0)
            lab.say("again", who="bob")
            until(lambda: any("again" in text for text in lab.shown(who="bob")))
            assert (len(lab.shown()), len(lab.shown(who="bob"))) == (1, 2)
    finally:
        lab.close()
