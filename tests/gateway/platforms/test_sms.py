"""SMS by Twilio: signatures, segments, STOP and START, media, refusals."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms.sms import Sms, addresses, signature
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import outbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.sms import NUMBER, Lab


def test_the_signature_is_the_one_of_twilios_documentation() -> None:
    fields = [
        ("To", "+18005551212"), ("CallSid", "CA1234567890ABCDE"), ("Digits", "1234"), ("From", "+14158675309"),
        ("Caller", "+14158675309"),
    ]  # fmt: skip
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    assert signature("12345", url, fields) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ("https://x.org/sms?a=1:2", "https://x.org:443/sms?a=1:2"), ("http://x.org", "http://x.org:80"),
        ("https://x.org:8443/sms", "https://x.org/sms"), ("https://[::1]/sms", "https://[::1]:443/sms"),
        ("https://[::1]:8443/sms", "https://[::1]/sms"), ("https://u:p@x.org:1/", "https://u:p@x.org/"),
    ],
)  # fmt: skip
def test_the_address_is_signed_with_or_without_its_port(known: str, other: str) -> None:
    assert addresses(known) == (known, other)


@given(st.text(max_size=60).map("http://".__add__) | st.text(max_size=60))
def test_any_host_header_makes_addresses(url: str) -> None:
    assert addresses(url)[0] == url


def test_a_captured_message_cannot_be_sent_again_under_another_id(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        number = lab.say("mine")
        until(lambda: lab.shown() == ["echo: mine"])
        moved = {**lab._said[number], "MessageSid": f"{number}NumMedia0"}  # signed alike: names and values are joined
        del moved["NumMedia"]
        lab.deliver(moved)
        lab.deliver(
            {**lab._said[number], "MessageSid": "SM" + "f" * 32, "AccountSid": "AC" + "9" * 32}
        )  # another account's
        lab.say("after")
        until(lambda: lab.shown()[-1:] == ["echo: after"])
        assert lab.shown() == ["echo: mine", "echo: after"]


def test_a_number_is_not_the_owner_unless_numbers_are_trusted(lab: Lab, model: Echo) -> None:
    command = 'call=terminal {"command": "echo pwned"}'
    trusting = {"sms": {"trust_numbers": False}}
    with running(lab, model, platforms=trusting) as gateway:
        lab.say(command)
        until(lambda: any("no tool" in text for text in lab.shown()), str(lab.shown()))
        lab.say("/sethome")
        until(lambda: any("only the owner" in text.lower() for text in lab.shown()), str(lab.shown()))
        (row,) = gateway.db.list_sessions_rich(source="sms")
        assert "pwned\n" not in str(gateway.db.get_messages(row["id"]))


def test_what_a_person_writes_who_has_stopped_at_twilio_delays_no_others(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.unsubscribed.add(lab.user_id("alice"))
        lab.say("hello")
        until(lambda: gateway.store.mail_counts().get("sms", {}).get("failed"))
        lab.say("hi", who="bob")
        until(lambda: lab.shown(who="bob") == ["echo: hi"])
        lab.unsubscribed.clear()
        lab.say("again")
        until(lambda: "echo: again" in lab.shown())


@pytest.mark.parametrize("word", [" stop ", "START"])
def test_twilios_own_words_do_not_reach_the_agent(lab: Lab, model: Echo, word: str) -> None:
    for text in ("hello", "and now"):  # by the webhook, and out of the list after a restart
        lab.say(word)
        with running(lab, model):
            lab.say(word)
            lab.say(text)
            until(lambda text=text: lab.shown()[-1:] == [f"echo: {text}"])
    assert lab.shown() == ["echo: hello", "echo: and now"]


@pytest.mark.parametrize("kind", ["STOP", "START", "HELP"])
def test_words_that_twilio_has_handled_do_not_reach_the_agent(lab: Lab, model: Echo, kind: str) -> None:
    with running(lab, model):
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])  # the list, which does not tell of it, has been read
        lab.say("info please", OptOutType=kind, who="bob")
        lab.say("and again")
        until(lambda: lab.shown() == ["echo: hello", "echo: and again"])
        assert lab.shown(who="bob") == []


def test_a_reply_is_plain_text_in_the_gsm_alphabet(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("**“bold”** – `code` … done")
        until(lambda: lab.shown())
        assert lab.shown() == ['echo: "bold" - code .. done']


def test_the_login_goes_to_twilio_alone(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.attach(b"the word is Zebra", "a.txt", "text/plain", text="read")
        until(lambda: any("Zebra" in text for text in lab.shown()))
        lab.say("look", NumMedia="1", MediaUrl0="http://127.0.0.1:1/secret", MediaContentType0="text/plain", who="bob")
        until(lambda: lab.shown(who="bob"))
        assert "not stored at Twilio" in str(gateway.db.search_messages("look")) + str(model.requests[-1]["messages"])
        assert all(login.startswith("Basic ") for _, login in lab.logins)


def test_messages_sent_while_the_gateway_was_down_are_answered_once(lab: Lab, model: Echo, hermes_home: Path) -> None:
    """Twilio calls the webhook once; its list has what the webhook missed, and what it did not."""
    lab.page_size = 2
    with running(lab, model):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
    for number in range(5):
        lab.say(f"down {number}")
    lab.attach(b"the word is Zebra", "a.txt", "text/plain", text="read", who="bob")
    for _ in range(2):
        with running(lab, model) as gateway:
            until(lambda: any("Zebra" in text for text in lab.shown(who="bob")), str(lab.shown(who="bob")))
            said = "".join(lab.shown())
            until(lambda: "down 4" in "".join(lab.shown()) and not gateway.store.read(outbox.unsent), said)
    assert _said(hermes_home, lab.user_id("alice")) == ["one", *(f"down {number}" for number in range(5))]
    assert len(lab.shown(who="bob")) == 1


def _said(home: Path, user_id: str) -> list[str]:
    """The messages of a person in the store."""
    with SessionDB(home / "state.db") as db:
        rows = db.list_sessions_rich(source="sms", visible_to=("sms", user_id))
        return [str(one["content"]) for row in rows for one in db.get_messages(row["id"]) if one["role"] == "user"]


class Impatient(Sms):
    look_again = 0.2


class OftenAsked(Lab):
    adapter = Impatient


def test_a_lost_webhook_of_a_running_gateway_is_made_up_for(model: Echo) -> None:
    with closing(OftenAsked()) as lab, running(lab, model):
        until(lambda: lab.listed)
        lab.silent = True  # the proxy in front of the gateway is down
        lab.say("hello?")
        until(lambda: lab.shown() == ["echo: hello?"])
        looks = len(lab.listed)
        lab.fail()
        lab.rate_limit(0)
        lab.say("and now?")
        until(lambda: lab.shown() == ["echo: hello?", "echo: and now?"])
        until(lambda: len(lab.listed) > looks + 3)
        assert len(lab.shown()) == 2
        assert lab.problems() == []


def test_what_comes_while_older_messages_are_looked_up_is_answered_after_them(model: Echo) -> None:
    with closing(Lab()) as lab:
        with running(lab, model):
            lab.say("one")
            until(lambda: lab.shown() == ["echo: one"])
        lab.say("while it was down")
        lab.lists.clear()
        with running(lab, model, display={"busy": "queue"}):
            lab.say("while it looks")
            until(lambda: lab.statuses.count(200) == 2)
            lab.lists.set()
            until(lambda: len(lab.shown()) == 3)
            assert lab.shown()[1:] == ["echo: while it was down", "echo: while it looks"]


@pytest.mark.parametrize("hours", [-30, 30])
def test_twilios_clock_counts_not_ours(lab: Lab, model: Echo, hours: int) -> None:
    lab.moved = hours * 3600.0
    with running(lab, model):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
    lab.say("down")
    with running(lab, model):
        until(lambda: lab.shown() == ["echo: one", "echo: down"])


def test_the_first_start_answers_nothing_old_and_nothing_of_others(lab: Lab, model: Echo) -> None:
    lab.silent, lab.moved = True, -3600.0
    lab.say("an hour ago")
    lab.moved = 0.0
    lab.say("to another number", To="+15005550007")
    lab.say("of another account", AccountSid="AC" + "9" * 32)
    lab.say("a minute ago")
    with running(lab, model):
        until(lambda: lab.shown())
        lab.silent = False
        lab.say("now", who="bob")
        until(lambda: lab.shown(who="bob") == ["echo: now"])
    assert lab.listed[0]["To"] == NUMBER
    assert lab.shown() == ["echo: a minute ago"]


GSM = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿"
    "abcdefghijklmnopqrstuvwxyzäöñüà"
)
GSM_EXTENDED = frozenset("^{}\\[~]|€\f")


def segments(text: str) -> int:
    """How many short messages carriers count: 160 characters of the GSM alphabet or 70 others, less where there are several."""
    if all(sign in GSM or sign in GSM_EXTENDED for sign in text):
        return parts([2 if sign in GSM_EXTENDED else 1 for sign in text], 160, 153)
    return parts([utf16_units(sign) for sign in text], 70, 67)


def parts(sizes: list[int], alone: int, each: int) -> int:
    if sum(sizes) <= alone:
        return 1
    count, room = 1, each
    for size in sizes:  # a character is never divided
        if size > room:
            count, room = count + 1, each
        room -= size
    return count


@given(st.text(max_size=800))
def test_a_part_that_fits_takes_ten_segments_at_most(text: str) -> None:
    capabilities = Sms.capabilities
    cut = text
    while capabilities.measure(cut) > capabilities.longest:
        cut = cut[:-1]
    assert utf16_units(cut) <= 670
    assert segments(cut) <= 11  # a character of two units is never divided: 66 units in a segment
