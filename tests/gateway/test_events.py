"""Every event can be written down and read back, whatever it consists of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.events import Attachment, Chat, Event, Sender, as_json, from_json, writable
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.wire import Wire
from tests.support.wire import said as answer

pytestmark = pytest.mark.mechanism

ANY = st.text(st.characters(), max_size=20)  # halves of characters as well
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | ANY, lambda one: st.lists(one, max_size=3)
)
EVENTS = st.builds(
    Event,
    id=ANY,
    chat=st.builds(Chat, platform=ANY, chat_id=ANY, thread_id=st.none() | ANY, name=st.none() | ANY),
    sender=st.builds(Sender, user_id=st.none() | ANY, stable_id=st.none() | ANY, name=st.none() | ANY),
    text=ANY,
    attachments=st.lists(
        st.builds(
            Attachment, kind=st.just("file"), name=st.none() | ANY, reference=st.dictionaries(ANY, JSON, max_size=2)
        ),
        max_size=2,
    ).map(tuple),
    sent_at=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(EVENTS)
def test_every_event_can_be_kept_and_read_back(event: Event) -> None:
    kept = writable(event)
    assert from_json(as_json(kept), Event) == kept
    assert writable(kept) is kept
    try:
        as_json(event)
    except UnicodeEncodeError:
        assert kept != event
    else:
        assert kept is event


def test_half_a_character_does_not_lose_a_message() -> None:
    lab = PlainLab()
    with Echo() as model, running(lab, model):
        lab.say("half \ud83d a smile")
        until(lambda: lab.shown() == ["echo: half � a smile"], str(lab.shown()))
        until(lambda: not lab.unacknowledged)
    lab.close()


def test_half_a_character_in_a_reply_does_not_lose_the_reply() -> None:
    lab = PlainLab()
    with Wire([answer("half \ud83d a reply")]) as model, running(lab, model):
        lab.say("hello")
        until(lambda: lab.shown() == ["half � a reply"], str(lab.shown()))
    lab.close()
