"""The conformance suite of every platform: the real gateway, the platform's real adapter, and a model over a socket."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hermes.config.settings_schema import ANSWERS_ONLY
from hermes.gateway.platforms import adapter_class
from hermes.gateway.platforms._shared.http import TooLarge, no_more_than
from hermes.gateway.settings import Timings
from hermes.gateway.startup import made_adapter
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import approvals, inbox, routes
from tests.support.echo import Echo
from tests.support.gateway import configured, running
from tests.support.labs.base import Lab, until
from tests.support.labs.recording import connected
from tests.support.sizes import THOROUGH

PLATFORMS = (
    "plain", "telegram", "discord", "slack", "matrix", "email", "signal", "homeassistant", "whatsapp", "whatsapp_bridge", "sms",
    "mattermost", "feishu", "dingtalk", "wecom", "weixin", "bluebubbles", "qqbot", "teams",
)  # fmt: skip
# A quick run tries on every platform that a message is answered once, though it comes twice, that strangers are not, and
# that nobody gets the words of another; all else on these: real servers and labs, with and without each ability.
# HERMES_TEST_SIZE=all tries everything everywhere.
QUICK = ("plain", "telegram", "matrix", "email")
LONG = 9000
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db00000"
    "000049454e44ae426082"
)


def everywhere(test: Any) -> Any:
    """On every platform also in a quick run."""
    test.everywhere = True
    return test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        whole = THOROUGH or hasattr(metafunc.function, "everywhere")
        metafunc.parametrize("place", PLATFORMS if whole else QUICK, indirect=True, scope="module")


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made: Lab = import_module(f"tests.support.labs.{request.param}").Lab()
    yield made
    made.close()


@pytest.fixture
def lab(place: Lab) -> Iterator[Lab]:
    place.reset()
    yield place
    assert place.problems() == []


def needs(lab: Lab, *what: str) -> None:
    missing = [one for one in what if one not in lab.can | lab.places]
    if missing:
        pytest.skip(f"{lab.platform} has no {', '.join(missing)}")


def plain(texts: list[str]) -> list[str]:
    """The texts without surrounding white space."""
    return [text.strip() for text in texts]


def answered(lab: Lab, *texts: str, where: str = "dm", who: str = "alice") -> None:
    """These, in this order, and nothing else, was said there."""

    def there() -> bool:
        shown = plain(lab.shown(where, who=who))
        return len(shown) >= len(texts) and all(b in a for a, b in zip(shown, texts, strict=False))

    until(there, f"wanted {texts}, there is {plain(lab.shown(where, who=who))}")
    assert len(lab.shown(where, who=who)) == len(texts)


@everywhere
def test_a_message_is_answered_once_and_kept(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("hello there")
        answered(lab, "echo: hello there")
        (row,) = gateway.db.list_sessions_rich(source=lab.platform)
        said = [(m["role"], m["content"].strip()) for m in gateway.db.get_messages(row["id"])]
        assert [role for role, _ in said] == ["user", "assistant"]
        assert said[0][1].endswith("hello there")
        assert re.fullmatch(r"\d{8}_\d{6}_[0-9a-f]{8}", row["id"])


def test_what_one_person_says_is_answered_in_order(lab: Lab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}):
        for number in range(5):
            lab.say(f"number {number}")
        answered(lab, *(f"number {number}" for number in range(5)))


def test_a_long_reply_comes_in_parts_that_fit(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say(f"long={LONG}")
        (connection,) = gateway.connections.values()
        longest = connection.adapter.capabilities.longest

        def whole() -> bool:
            text = "".join(lab.shown())
            return f"Paragraph {LONG // 160 - 2}:" in text and "▉" not in text

        until(whole)
        parts = lab.shown()
        assert len(parts) >= (LONG // longest if longest < LONG else 1)
        numbers = [int(n) for n in re.findall(r"Paragraph (\d+):", "\n".join(parts))]
        assert numbers == sorted(set(numbers))
        assert numbers[0] == 0


@everywhere
def test_a_redelivered_event_is_answered_once(lab: Lab, model: Echo) -> None:
    needs(lab, "redeliver")
    with running(lab, model):
        number = lab.say("only once")
        answered(lab, "echo: only once")
        lab.redeliver(number)
        lab.say("after it")
        answered(lab, "echo: only once", "echo: after it")
    with running(lab, model):
        lab.redeliver(number)
        lab.say("after a restart")
        answered(lab, "echo: only once", "echo: after it", "echo: after a restart")


def _shown_to_the_model(model: Echo, text: str) -> list[str]:
    """The user messages in the last request to the model that contains this text."""
    (*_, request) = [one for one in model.requests if text in str(one["messages"])]
    return [str(one["content"]) for one in request["messages"] if one["role"] == "user"]


def test_an_edited_message_is_replaced_and_a_deleted_one_hidden(lab: Lab, model: Echo) -> None:
    needs(lab, "change")
    with running(lab, model) as gateway:
        (connection,) = gateway.connections.values()
        told = connection.adapter.capabilities
        assert (told.tells_edits, told.tells_deletions) == (True, "take_back" in lab.can)
        first = lab.say("the first albatross")
        answered(lab, "echo: the first albatross")
        second = lab.say("the second bittern")
        answered(lab, "echo: the first albatross", "echo: the second bittern")
        (row,) = gateway.db.list_sessions_rich(source=lab.platform)

        def said() -> list[str]:
            return [str(one["content"]).strip() for one in gateway.db.get_messages(row["id"]) if one["role"] == "user"]

        lab.change(first, "the first cormorant")
        until(lambda: said() == ["the first cormorant", "the second bittern"], str(said()))
        lab.change(first, "the first dunlin")
        until(lambda: said() == ["the first dunlin", "the second bittern"], str(said()))
        if "take_back" in lab.can:
            lab.take_back(second)
            until(lambda: said() == ["the first dunlin"], str(said()))
        lab.say("the third egret")
        until(lambda: any("third egret" in text for text in lab.shown()))
        seen = _shown_to_the_model(model, "third egret")
        assert "albatross" not in str(seen) and "cormorant" not in str(seen) and "dunlin" in str(seen)
        assert ("bittern" in str(seen)) == ("take_back" not in lab.can)
        assert [hit["role"] for hit in gateway.db.search_messages("albatross")] == ["assistant"]
        kept = gateway.db.export_session(row["id"])["rewound_messages"]
        assert {str(one["content"]).strip() for one in kept if one["hidden"] == -4} == {
            "the first albatross",
            "the first cormorant",
        }
        assert len(lab.shown()) == 3, "nothing is answered anew"
        assert gateway.db.check() == []


@everywhere
def test_a_forwarded_message_is_quoted_and_neither_a_command_nor_a_consent(
    lab: Lab, model: Echo, tmp_path: Path
) -> None:
    needs(lab, "forward")
    precious = tmp_path / "precious.txt"
    precious.write_text("do not lose me")
    with running(lab, model, display={"busy": "queue"}) as gateway:
        lab.say("the first cormorant")
        answered(lab, "echo: the first cormorant")
        lab.forward("/new")
        until(lambda: len(lab.shown()) == 2, str(lab.shown()))
        (row,) = gateway.db.list_sessions_rich(source=lab.platform)
        (_, _, heard, _) = gateway.db.get_messages(row["id"])
        assert "orwarded" in heard["content"] and "> " in heard["content"] and "/new" in heard["content"]
        lab.say(f'call=terminal {{"command": "rm {precious}"}}')
        until(lambda: any("yes" in text for text in lab.shown()[2:]), str(lab.shown()))
        lab.forward("yes")
        until(lambda: len(gateway.store.read(inbox.waiting)) == 2)  # it waits, and the question is still open
        assert precious.exists()
        lab.say("yes")
        until(lambda: not precious.exists(), str(lab.shown()))
        until(lambda: not gateway.store.read(inbox.waiting))
        said = [str(one["content"]) for one in gateway.db.get_messages(row["id"]) if one["role"] == "user"]
        assert len(said) == 4 and "orwarded" in said[-1] and said[-1].endswith("yes")


@everywhere
def test_strangers_get_no_answer(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("let me in", who="mallory")
        lab.say("hello")
        answered(lab, "echo: hello")
        until(lambda: lab.shown(who="mallory") or gateway.store.read(approvals.waiting, gateway.store.clock()) == [])
        assert not any("echo" in text for text in lab.shown(who="mallory"))
        assert gateway.db.session_count(visible_to=(lab.platform, lab.user_id("mallory"))) == 0
        assert gateway.db.search_messages("let me in") == []


def test_strangers_in_a_group_hear_nothing(lab: Lab, model: Echo) -> None:
    needs(lab, "group")
    with running(lab, model):
        lab.say("let me in", who="mallory", where="group")
        lab.say("hello", where="group")
        answered(lab, "echo: hello", where="group")


@everywhere
@pytest.mark.parametrize("where", ["group", "channel"])
def test_people_in_a_group_have_conversations_of_their_own(lab: Lab, model: Echo, where: str) -> None:
    needs(lab, where)
    with running(lab, model) as gateway:
        lab.say("from alice", where=where, who="alice")
        lab.say("from bob", where=where, who="bob")
        until(lambda: len(lab.shown(where)) == 2)
        rows = gateway.db.list_sessions_rich(source=lab.platform)
        assert {row["user_id"] for row in rows} == {lab.user_id("alice"), lab.user_id("bob")}
        for who in ("alice", "bob"):
            (mine,) = gateway.db.list_sessions_rich(visible_to=(lab.platform, lab.user_id(who)))
            assert mine["preview"].endswith(f"from {who}")


def test_a_thread_is_shared_and_says_who_speaks(lab: Lab, model: Echo) -> None:
    needs(lab, "thread")
    with running(lab, model) as gateway:
        lab.say("one", where="thread", who="alice")
        until(lambda: len(lab.shown("thread")) == 1)
        lab.say("two", where="thread", who="bob")
        until(lambda: len(lab.shown("thread")) == 2)
        (row,) = gateway.db.list_sessions_rich(source=lab.platform)
        users = [m["content"] for m in gateway.db.get_messages(row["id"]) if m["role"] == "user"]
        assert all(re.match(r"\[.+\] ", text) for text in users)
        assert len({text.split("]")[0] for text in users}) == 2
        for who in ("alice", "bob"):
            assert gateway.db.get_session(row["id"], visible_to=(lab.platform, lab.user_id(who))) is not None
        assert gateway.db.get_session(row["id"], visible_to=(lab.platform, lab.user_id("mallory"))) is None


def test_wait_is_obeyed_and_nothing_lost(lab: Lab, model: Echo) -> None:
    needs(lab, "rate_limit")
    with running(lab, model):
        lab.rate_limit(0.3, times=2)
        lab.say("patience")
        answered(lab, "echo: patience")


def test_a_failing_server_is_asked_again(lab: Lab, model: Echo) -> None:
    needs(lab, "fail")
    with running(lab, model):
        lab.fail(times=2)
        lab.say("persist")
        until(lambda: any("persist" in text for text in lab.shown()))
        answered(lab, "echo: persist")


def test_a_dropped_connection_is_taken_up_again(lab: Lab, model: Echo) -> None:
    needs(lab, "drop")
    with running(lab, model) as gateway:
        lab.say("before")
        answered(lab, "echo: before")
        lab.drop()
        (connection,) = gateway.connections.values()
        until(lambda: connection.delivery.connected.is_set())
        lab.say("after")
        answered(lab, "echo: before", "echo: after")


def test_a_picture_reaches_the_model_once(lab: Lab, model: Echo) -> None:
    needs(lab, "attach")
    with running(lab, model) as gateway:
        model.requests.clear()
        lab.attach(PNG, "dot.png", "image/png", text="look at this")
        until(lambda: len(lab.shown()) == 1)
        lab.say("and now")
        until(lambda: len(lab.shown()) == 2)
        talks = [r for r in model.requests if r.get("tools") or r["messages"][0]["role"] == "system"]
        with_picture = [r for r in talks if "data:image/png;base64," in str(r)]
        assert len(with_picture) == 1
        (row,) = gateway.db.list_sessions_rich(source=lab.platform)
        files = [path for path in gateway.db.attachments_dir.rglob("*") if path.is_file()]
        assert [path.read_bytes() for path in files] == [PNG]
        assert "attachment:sha256:" in str(gateway.db.get_messages(row["id"])[0]["content"])


async def test_a_file_is_read_no_further_than_what_is_kept(lab: Lab, hermes_home: Path) -> None:
    """Whatever size was announced; and one of the largest size arrives whole, however the vendor encodes it."""
    needs(lab, "attach")
    if lab.platform == "plain":
        pytest.skip("plain fetches over no vendor's API")
    data = random.Random(7).randbytes(70_000)
    kind = getattr(lab, "adapter", None) or adapter_class(lab.platform)
    adapter, _ = made_adapter(configured([lab]), lab.platform, {}, hermes_home, kind)
    async with connected(adapter) as link:
        await asyncio.to_thread(lab.attach, data, "data.bin", "application/octet-stream", text="keep it")
        await link.until(lambda: any(event.attachments for event in link.events))
        (file,) = next(event.attachments for event in link.events if event.attachments)
        assert await asyncio.create_task(no_more_than(80_000, adapter.fetch(file))) == data
        with pytest.raises(TooLarge, match=r"larger than 0\.05 MB"):
            await asyncio.create_task(no_more_than(50_000, adapter.fetch(file)))


def test_a_text_file_is_read_in(lab: Lab, model: Echo) -> None:
    needs(lab, "attach")
    with running(lab, model) as gateway:
        lab.attach("the secret word is Zwölfkämpfer".encode(), "note.txt", "text/plain", text="read it")
        until(lambda: any("Zwölfkämpfer" in text for text in lab.shown()), str(lab.shown()))
        assert gateway.db.search_messages("Zwölfkämpfer")


def test_the_agent_sends_a_picture_and_a_document(lab: Lab, model: Echo, tmp_path: Path) -> None:
    needs(lab, "files")
    (tmp_path / "dot.png").write_bytes(PNG)
    (tmp_path / "Zürich list.txt").write_text("one\ntwo\n", "utf-8")
    with running(lab, model, display={"busy": "queue"}) as gateway:
        (connection,) = gateway.connections.values()
        assert connection.adapter.capabilities.files
        lab.say(f'call=send_file {{"path": "{tmp_path}/dot.png", "caption": "a dot"}}')
        until(lambda: lab.sent_files(), str(lab.shown()))
        lab.say(f'call=send_file {{"path": "{tmp_path}/Zürich list.txt"}}')
        until(lambda: len(lab.sent_files()) == 2, str(lab.shown()))
        assert lab.sent_files() == [("dot.png", PNG, "a dot"), ("Zürich list.txt", b"one\ntwo\n", "")]
        until(lambda: sum("the tool said" in text for text in lab.shown()) == 2, str(lab.shown()))


def test_a_question_and_a_menu_are_answered_by_buttons(lab: Lab, model: Echo, tmp_path: Path) -> None:
    needs(lab, "choices")
    precious = tmp_path / "precious.txt"
    precious.write_text("do not lose me")
    with running(lab, model, display={"busy": "queue"}) as gateway:
        assert next(iter(gateway.connections.values())).adapter.capabilities.choices
        lab.say(f'call=terminal {{"command": "rm {precious}"}}')
        until(lambda: lab.buttons() == ["Yes", "No"], str(lab.shown()))
        lab.press("Yes")
        until(lambda: any("the tool said" in text for text in lab.shown()), str(lab.shown()))
        assert not precious.exists()
        lab.say("/title gardening")
        until(lambda: gateway.db.get_session_by_title("gardening"))
        lab.say("/new")
        until(lambda: any("A new session" in text for text in lab.shown()))
        lab.say("/resume")
        until(lambda: any(label.startswith("gardening") for label in lab.buttons()), str(lab.buttons()))
        lab.press(next(label for label in lab.buttons() if label.startswith("gardening")))
        until(lambda: any("Continuing" in text and "gardening" in text for text in lab.shown()), str(lab.shown()))


def test_a_button_answers_its_own_question_and_no_newer_one(lab: Lab, model: Echo, tmp_path: Path) -> None:
    needs(lab, "choices")
    where = next(one for one in ("group", "channel", "dm") if one in lab.places)
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.touch(), second.touch()
    with running(lab, model, display={"busy": "queue"}) as gateway:

        def shown() -> str:
            return str(lab.shown(where))

        def asked(text: str, times: int) -> None:
            lab.say(text, where=where)
            until(lambda: shown().count("Reply") == times, shown())

        asked(f'call=terminal {{"command": "rm {first}"}}', 1)
        lab.say("no", where=where)
        until(lambda: shown().count("the tool said") == 1, shown())
        lab.press("Yes", where=where, which=0)  # nothing is open
        until(lambda: shown().count("no longer open") == 1, shown())
        asked(f'call=terminal {{"command": "rm {second}"}}', 2)
        lab.press("Yes", where=where, which=0)  # the first question's button, while the second waits
        until(lambda: shown().count("no longer open") == 2, shown())
        if where != "dm":
            lab.press("Yes", where=where, who="bob")
            until(lambda: "Only the person who was asked" in shown(), shown())
        assert shown().count("the tool said") == 1  # it waits still
        assert first.exists() and second.exists()
        lab.press("Yes", where=where)
        until(lambda: shown().count("the tool said") == 2, shown())
        assert first.exists() and not second.exists()
        until(lambda: not gateway.store.read(inbox.waiting))
        rows = gateway.db.list_sessions_rich(source=lab.platform)
        said = [one["content"] for row in rows for one in gateway.db.get_messages(row["id"]) if one["role"] == "user"]
        assert len(said) == 2 and not any("/yes" in text for text in said)


def test_commands_work_in_the_chat(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("something to keep")
        answered(lab, "echo: something to keep")
        lab.say("/title my talk")
        until(lambda: any('called "my talk"' in text.replace("“", '"') for text in lab.shown()), str(lab.shown()))
        lab.say("/new")
        until(lambda: any("A new session" in text for text in lab.shown()))
        lab.say("another")
        until(lambda: any("echo: another" in text for text in lab.shown()))
        assert gateway.db.session_count() == 2
        lab.say("/resume my talk")
        until(lambda: gateway.db.get_session_by_title("my talk")["ended_at"] is None)
        lab.say("back here")
        until(lambda: any("echo: back here" in text for text in lab.shown()))
        row = gateway.db.get_session_by_title("my talk")
        assert gateway.db.get_messages(row["id"])[-1]["content"].endswith("echo: back here")


def test_typing_is_shown_while_a_reply_is_written(lab: Lab, model: Echo) -> None:
    where = getattr(lab, "typing_place", "dm")  # Slack shows it in threads only
    with running(lab, model) as gateway:
        (connection,) = gateway.connections.values()
        if not connection.adapter.capabilities.typing:
            pytest.skip(f"{lab.platform} can't show typing")
        lab.say("pause=1 please", where=where)
        until(lambda: lab.typed(where) > 0)
        answered(lab, "pause=1 please", where=where)


def test_a_reply_grows_in_one_message(lab: Lab, model: Echo) -> None:
    needs(lab, "edits")
    streaming = {"streaming": {"edit_interval": 0.2, "buffer_threshold": 20}}
    with running(lab, model, gateway={**streaming}):
        seen: set[str] = set()
        lab.say("slow=2 " + "grow " * 40)

        def whole() -> bool:
            seen.update(plain(lab.shown()))
            texts = lab.shown()
            return bool(texts) and texts[0].count("grow") == 40 and "▉" not in texts[0]

        until(whole)
        assert len(lab.shown()) == 1
        assert len(seen) > 1  # how many states are seen on the way is a matter of the machine
        assert any(text.endswith("▉") for text in seen)


def test_stopping_in_the_middle_of_a_turn_loses_nothing(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, model, timings=Timings(turns_end=0.5)) as gateway:
        lab.say("slow=30 take your time " + "x " * 60)

        def answers() -> bool:
            agents = [gateway.agents.get(event.key) for event in gateway.store.read(inbox.waiting)]
            return any(agent is not None and agent.busy for agent in agents)

        until(answers)
    model.latency = 0.0
    with SessionDB(hermes_home / "state.db") as db:
        assert db.check() == []
        row = db.list_sessions_rich(source=lab.platform)[0]
        users = [m for m in db.get_messages(row["id"]) if m["role"] == "user"]
        assert len(users) == 1


def _named(entry: Any) -> str:
    """The command of an entry of a menu, as the vendor's protocol has it."""
    return str(entry.get("command") or entry.get("name") if isinstance(entry, dict) else entry[0])


def test_a_menu_of_commands_is_shown(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        (connection,) = gateway.connections.values()
        if not connection.adapter.capabilities.menu:
            pytest.skip(f"{lab.platform} has no menu")
        until(lambda: {"new", "title", "resume"} <= {_named(one) for one in lab.menu})


def test_a_handed_over_session_goes_on_here(lab: Lab, model: Echo, hermes_home: Path) -> None:
    if lab.platform in ANSWERS_ONLY:
        pytest.skip(f"{lab.platform} takes answers only")
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("20260101_000000_abcdef", "cli")
        db.set_session_title("20260101_000000_abcdef", "from the desk")
        db.append_message("20260101_000000_abcdef", "user", "we were talking about tulips")
        db.append_message("20260101_000000_abcdef", "assistant", "yes, about tulips")
    where = "channel" if "channel" in lab.places else "group" if "thread" in lab.places else "dm"
    with running(lab, model) as gateway:
        lab.say("first", where=where)
        until(lambda: lab.shown(where))
        lab.say("/sethome", where=where)
        until(lambda: gateway.store.read(approvals.home, lab.platform))
        assert gateway.db.request_handoff("20260101_000000_abcdef", lab.platform)
        until(lambda: gateway.db.get_handoff_state("20260101_000000_abcdef")["state"] in ("completed", "failed"))
        assert gateway.db.get_handoff_state("20260101_000000_abcdef")["state"] == "completed"
        said = gateway.db.get_messages("20260101_000000_abcdef")
        assert said[-2]["content"].startswith("[From the gateway")
        assert said[-1]["role"] == "assistant"
        route = gateway.store.read(routes.of_session, "20260101_000000_abcdef")
        assert route is not None
        if gateway.connections[lab.platform].adapter.capabilities.threads:
            assert lab.threads() == ["from the desk"]
