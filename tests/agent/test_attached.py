"""Pictures and recordings: the model gets them with the message they came in, and a word about them ever after."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.prompt import prepared
from hermes.agent.turn import Done, Notice
from hermes.errors import ModelRefused
from hermes.texts import estimate_tokens
from tests.support.wire import Wire, call, delta, end, error, said, sse

from .test_turns import tool

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
SOUND = b"RIFF\x00\x00\x00\x00WAVE" + bytes(range(256))


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def picture(data: bytes = PICTURE) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(data)}"}}


def recording() -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64_of(SOUND), "format": "wav"}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_bytes_go_with_their_own_turn_only(make_agent: Any) -> None:
    content = [words("what is this?"), picture(), recording()]
    with Wire([said("A test card."), said("You are welcome.")]) as wire:
        agent = make_agent(wire)
        list(agent.turn(content))
        assert wire.bodies[0]["messages"][-1]["content"] == content
        list(agent.turn("thank you"))
        assert base64_of(PICTURE) not in str(wire.bodies[1]) and base64_of(SOUND) not in str(wire.bodies[1])
        first, seen, heard = wire.bodies[1]["messages"][1]["content"]
    assert first == words("what is this?")
    for part, name in ((seen, "picture"), (heard, "recording")):
        assert part["type"] == "text" and part["text"].startswith(f"[{name}, sent earlier: attachments/")
        lies = part["text"].partition("attachments/")[2].rstrip("]")
        assert (Path(agent.db.attachments_dir) / lies).read_bytes() in (PICTURE, SOUND)


def test_they_are_there_for_every_round_of_their_turn_and_when_it_is_taken_up(db: Any, make_agent: Any) -> None:
    asks = sse(delta(tool_calls=[call("look", "{}", index=0, id="c")]), end("tool_calls"))
    with Wire([asks, said("A card."), said("A test card.")]) as wire:
        agent = make_agent(wire, db=db, tools=[tool("look", lambda context, arguments: "ok")])
        list(agent.turn([words("what is this?"), picture()]))
        list(agent.retry())
        assert all(body["messages"][1]["content"][1] == picture() for body in wire.bodies)
        assert len(wire.bodies) == 3


def test_a_picture_whose_file_is_gone_does_not_stop_the_turn(db: Any, make_agent: Any) -> None:
    db.create_session("s1", "telegram")
    db.append_message("s1", "user", [words("look"), picture()])
    for file in Path(db.attachments_dir).rglob("*"):
        if file.is_file():
            file.unlink()
    with Wire([said("I can't see it.")]) as wire:
        list(make_agent(wire, db=db).resume())
        assert wire.bodies[0]["messages"][1]["content"] == [words("look"), words("[picture, which is no longer there]")]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "messages[1].content must be a string"),
        (404, "No endpoints found that support image input"),  # OpenRouter
        (500, "image input is not supported - hint: you may need to provide the mmproj"),  # llama.cpp
    ],
)
def test_a_model_that_refuses_the_picture_gets_the_message_without_it_and_the_user_is_told(
    make_agent: Any, status: int, message: str
) -> None:
    refusal = error(status, {"error": {"message": message}})
    with Wire([refusal, said("I can't see it."), said("Still not.")]) as wire:
        agent = make_agent(wire)
        events = list(agent.turn([words("what is this?"), picture()]))
        assert events[-1] == Done("I can't see it.")
        (notice,) = [event.text for event in events if isinstance(event, Notice)]
        assert "no pictures" in notice and "\n" not in notice
        sent = wire.bodies[1]["messages"][-1]["content"]
        assert sent == "what is this?\n[picture left out: image/png, the model takes no pictures]"
        assert agent.db.get_messages("s1")[0]["content"][1]["type"] == "image_url", "the record has it"
        named = {"type": "file", "file": {"filename": "plan.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
        events = list(agent.turn([words("and this?"), named, {**picture(), "name": "map.png"}]))
        assert events[-1] == Done("Still not.") and len(wire.bodies) == 3, "it is not tried again"
        assert sum(isinstance(event, Notice) for event in events) == 1, "the user is told each time"
        sent = wire.bodies[2]["messages"][-1]["content"]
        assert "[file left out: plan.pdf, the model takes no files]" in sent
        assert "[picture left out: map.png, the model takes no pictures]" in sent


def test_a_refusal_that_is_not_about_a_picture_ends_the_turn(make_agent: Any) -> None:
    with Wire([error(400, {"error": {"message": "this model does not support image input"}})]) as wire:
        with pytest.raises(ModelRefused):
            list(make_agent(wire).turn("no picture here"))
        assert len(wire.bodies) == 1


@pytest.mark.parametrize("more", [{}, {"text": "a picture"}])
@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://169.254.169.254/latest/meta-data/"])
def test_an_imported_conversation_makes_no_model_open_a_file_or_an_address_of_this_network(
    db: Any, make_agent: Any, address: str, more: dict[str, str]
) -> None:
    part = {"type": "image_url", "image_url": {"url": address}, **more}
    db.import_session(
        {
            "id": "s1", "source": "codex", "started_at": 1.0,
            "messages": [
                {"role": "user", "content": [words("look"), part], "timestamp": 1.0},
                {"role": "assistant", "content": "I see.", "timestamp": 2.0},
                {"role": "user", "content": [words("and this"), part], "timestamp": 3.0},
            ],
        }
    )  # fmt: skip
    with Wire([said("Nothing to see.")]) as wire:
        list(make_agent(wire, db=db).resume())
        sent = wire.bodies[0]["messages"]
        assert address not in str(sent) and sent[-1]["content"][0] == words("and this")


def test_bytes_another_program_left_in_the_record_are_not_replayed_either() -> None:
    history = [{"role": "user", "content": [picture(), recording()]}, {"role": "user", "content": "now"}]
    sent = prepared(history, system_prompt=None)[0]["content"]
    assert sent == [words("[picture, sent earlier]"), words("[recording, sent earlier]")]


def test_a_long_recording_is_not_taken_for_a_long_conversation() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "A" * 4_000_000, "format": "wav"}}
    assert estimate_tokens([{"role": "user", "content": [part]}]) < 5_000
