"""Chat completions through OpenAI's own client: whole, in pieces, with errors, and the conversation goes on."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from hermes.serve.api import app, turns
from tests.serve.running import NOT_PUBLIC
from tests.support.labs.base import until
from tests.support.wire import CUT, STALL, Wire, delta, end, error, said, sse

HELLO = [{"role": "user", "content": "hello"}]


def test_a_reply_comes_whole_with_what_it_used(serve: Any) -> None:
    usage = {
        "prompt_tokens": 70, "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 20}, "completion_tokens_details": {"reasoning_tokens": 10},
    }  # fmt: skip
    with Wire([said("Hi there.", **usage)]) as wire:
        served = serve(wire)
        got = served.client().chat.completions.with_raw_response.create(model="fake", messages=HELLO)
        reply = got.parse()
        assert reply.choices[0].message.content == "Hi there."
        assert (reply.choices[0].finish_reason, reply.object, reply.model) == ("stop", "chat.completion", "fake")
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (70, 30, 100)
        assert reply.usage.prompt_tokens_details.cached_tokens == 20
        assert reply.usage.completion_tokens_details.reasoning_tokens == 10
        session_id = got.headers["x-hermes-session-id"]
        assert served.said(session_id) == [("user", "hello"), ("assistant", "Hi there.")]
        row = served.db.get_session(session_id)
        assert (row["source"], row["input_tokens"], row["output_tokens"]) == ("api-server", 50, 30)
        assert row["cache_read_tokens"] == 20


def test_a_reply_comes_in_pieces_as_the_model_says_it(serve: Any) -> None:
    with Wire([sse(delta(content="One "), delta(content="two "), delta(content="three."), end(), "[DONE]")]) as wire:
        served = serve(wire)
        with served.client().chat.completions.create(
            model="hermes", messages=HELLO, stream=True, stream_options={"include_usage": True}
        ) as stream:
            session_id = stream.response.headers["x-hermes-session-id"]
            pieces = list(stream)
        texts = [piece.choices[0].delta.content for piece in pieces if piece.choices and piece.choices[0].delta.content]
        assert texts == ["One ", "two ", "three."]
        assert pieces[0].choices[0].delta.role == "assistant"
        assert [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1] == "stop"
        assert pieces[-1].usage is not None and pieces[-1].choices == []
        assert served.said(session_id)[-1] == ("assistant", "One two three.")


def test_usage_in_a_stream_comes_only_when_it_is_wanted(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        pieces = list(serve(wire).client().chat.completions.create(model="fake", messages=HELLO, stream=True))
        assert all(piece.usage is None and piece.choices for piece in pieces)


def test_reasoning_is_passed_on_in_pieces(serve: Any) -> None:
    with Wire([sse(delta(reasoning_content="Hm."), delta(content="Yes."), end(), "[DONE]")]) as wire:
        pieces = list(serve(wire).client().chat.completions.create(model="fake", messages=HELLO, stream=True))
        assert "Hm." in [getattr(piece.choices[0].delta, "reasoning_content", None) for piece in pieces]


def test_a_client_that_sends_everything_each_time_stays_in_one_session(serve: Any) -> None:
    with Wire([said("First."), said("Second."), said("Third.")]) as wire:
        served = serve(wire)
        client = served.client()
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You are brief."}]
        for number, question in enumerate(("one?", "two?", "three?")):
            messages.append({"role": "user", "content": question})
            if number == 1:  # in pieces or whole, as a list or as a text: it is the same conversation
                pieces = client.chat.completions.create(model="fake", messages=messages, stream=True)
                text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            else:
                text = client.chat.completions.create(model="fake", messages=messages).choices[0].message.content
            messages.append({"role": "assistant", "content": [{"type": "text", "text": f" {text}\n"}]})
        (session_id,) = served.sessions()
        assert [text for _, text in served.said(session_id)] == [
            "one?",
            "First.",
            "two?",
            "Second.",
            "three?",
            "Third.",
        ]
        assert [message["role"] for message in wire.bodies[-1]["messages"]] == [
            "system", "user", "assistant", "user", "assistant", "user",
        ]  # fmt: skip
        assert wire.bodies[-1]["messages"][0]["content"].endswith("You are brief.")


def test_whatever_an_answer_depends_on_tells_conversations_apart(serve: Any) -> None:
    on = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "and now?"}]
    pirate, lawyer = ({"role": "system", "content": f"You are a {one}."} for one in ("pirate", "lawyer"))
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    ways: list[tuple[list[Any], dict[str, Any]]] = [
        ([], {}), ([pirate], {}), ([lawyer], {}), ([], {"user": "u1"}), ([], {"user": "u2"}), ([], {"tools": [weather]}),
    ]  # fmt: skip
    with Wire([said("Hi.")] * 40) as wire:
        client = serve(wire).client().chat.completions.with_raw_response

        def session(messages: list[Any], more: dict[str, Any]) -> str:
            return str(client.create(model="fake", messages=messages, **more).headers["x-hermes-session-id"])

        begun = [session([*system, *HELLO], more) for system, more in ways]
        assert len(set(begun)) == len(ways)
        assert [session([*system, *on], more) for system, more in ways] == begun
        assert sum("pirate" in str(body["messages"][0]["content"]) for body in wire.bodies) == 2


def test_another_answer_to_an_earlier_question_is_a_branch_that_copies_nothing(serve: Any) -> None:
    with Wire([said("First."), said("Second."), said("Another.")]) as wire:
        served = serve(wire)
        client = served.client()
        messages = [*HELLO, {"role": "assistant", "content": "First."}, {"role": "user", "content": "and?"}]
        client.chat.completions.create(model="fake", messages=HELLO)
        client.chat.completions.create(model="fake", messages=messages)
        before = served.db.message_count()
        client.chat.completions.create(model="fake", messages=messages)
        old, new = served.sessions()
        assert [text for _, text in served.said(old)] == ["hello", "First.", "and?", "Second."]
        assert [text for _, text in served.said(new)] == ["hello", "First.", "and?", "Another."]
        assert served.db.get_session(new)["parent_session_id"] == old
        assert served.db.message_count() == before + 2  # the question and its other answer


def test_a_conversation_from_elsewhere_is_stored_first_and_then_goes_on(serve: Any) -> None:
    with Wire([said("Fine."), said("Good.")]) as wire:
        served = serve(wire)
        client = served.client()
        messages = [*HELLO, {"role": "assistant", "content": "From elsewhere."}, {"role": "user", "content": "go on"}]
        client.chat.completions.create(model="fake", messages=messages)
        messages += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "more"}]
        client.chat.completions.create(model="fake", messages=messages)
        (session_id,) = served.sessions()
        assert [text for _, text in served.said(session_id)] == [
            "hello", "From elsewhere.", "go on", "Fine.", "more", "Good.",
        ]  # fmt: skip
        assert all(row["token_count"] for row in served.db.get_messages(session_id))


def test_an_edited_reply_keeps_what_came_before_it(serve: Any) -> None:
    with Wire([said("One."), said("Two."), said("Three.")]) as wire:
        served = serve(wire)
        client = served.client()
        talk = [*HELLO, {"role": "assistant", "content": "One."}, {"role": "user", "content": "b"}]
        client.chat.completions.create(model="fake", messages=HELLO)
        client.chat.completions.create(model="fake", messages=talk)
        edited = [*talk, {"role": "assistant", "content": "Two, but better."}, {"role": "user", "content": "c"}]
        client.chat.completions.create(model="fake", messages=edited)
        old, new = served.sessions()
        assert [text for _, text in served.said(new)] == ["hello", "One.", "b", "Two, but better.", "c", "Three."]
        assert served.db.get_session(new)["parent_session_id"] == old


def test_the_header_continues_a_session_of_any_source(serve: Any, make_db: Any) -> None:
    db = make_db()
    db.create_session("20260101_120000_abc123", "telegram", system_prompt="You are Hermes.")
    db.append_message("20260101_120000_abc123", "user", "buy milk")
    db.append_message("20260101_120000_abc123", "assistant", "Noted.")
    with Wire([said("You wanted milk.")]) as wire:
        served = serve(wire, db=db)
        got = served.client().chat.completions.with_raw_response.create(
            model="fake", messages=[{"role": "user", "content": "what did I want?"}],
            extra_headers={"X-Hermes-Session-Id": "20260101_120000_abc123"},
        )  # fmt: skip
        assert got.headers["x-hermes-session-id"] == "20260101_120000_abc123"
        assert [m["content"] for m in wire.bodies[0]["messages"]] == [
            "You are Hermes.", "buy milk", "Noted.", "what did I want?",
        ]  # fmt: skip


def test_a_session_may_have_a_name_in_any_script(serve: Any, make_db: Any) -> None:
    db = make_db()
    name = "Sitzung ü ☃"
    db.create_session(name, "cli")
    with Wire([said("Hi.")]) as wire:
        served = serve(wire, db=db)
        body = {"model": "fake", "messages": HELLO}
        with httpx.Client(trust_env=False) as client:
            got = client.post(
                f"{served.base_url}/chat/completions", json=body, headers={b"X-Hermes-Session-Id": name.encode()}
            )
        assert (b"x-hermes-session-id", name.encode()) in got.headers.raw
        assert served.said(name)[-1] == ("assistant", "Hi.")


def test_an_unknown_session_is_not_found(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        with pytest.raises(openai.NotFoundError) as caught:
            serve(wire).client().chat.completions.create(
                model="fake", messages=HELLO, extra_headers={"X-Hermes-Session-Id": "nobody"}
            )
        assert caught.value.code == "session_not_found"
        assert wire.bodies == []


def test_a_session_that_is_open_elsewhere_is_left_alone(serve: Any, make_db: Any) -> None:
    db = make_db()
    db.create_session("s1", "cli")
    db.hold_session("s1", "elsewhere:1:abc")
    with Wire([said("Hi.")]) as wire:
        with pytest.raises(openai.ConflictError) as caught:
            serve(wire, db=db).client().chat.completions.create(
                model="fake", messages=HELLO, extra_headers={"X-Hermes-Session-Id": "s1"}
            )
        assert caught.value.code == "session_busy"
        assert db.get_messages("s1") == []


def test_a_session_is_free_for_others_soon_after_its_turn(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "IDLE", 0.05)
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        served.client().chat.completions.create(model="fake", messages=HELLO)
        (session_id,) = served.sessions()
        until(lambda: not served.db.is_live(session_id), "the session is still held")


def test_instructions_of_the_client_that_change_are_those_of_today(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        client = served.client()
        messages = [{"role": "developer", "content": "It is Monday."}, *HELLO]
        first = client.chat.completions.with_raw_response.create(model="fake", messages=messages)
        named = {"X-Hermes-Session-Id": first.headers["x-hermes-session-id"]}
        later = [
            {"role": "system", "content": "It is Tuesday."}, *HELLO, {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "day?"},
        ]  # fmt: skip
        client.chat.completions.create(model="fake", messages=later, extra_headers=named)
        prompts = [body["messages"][0]["content"] for body in wire.bodies]
        assert "It is Monday." in prompts[0] and "It is Tuesday." not in prompts[0]
        assert "It is Tuesday." in prompts[1] and "It is Monday." not in prompts[1]
        assert prompts[0].split("It is")[0] == prompts[1].split("It is")[0]
        assert len(served.sessions()) == 1
        client.chat.completions.create(
            model="fake", messages=later
        )  # unnamed, and told otherwise: another conversation
        assert len(served.sessions()) == 2


def test_pictures_and_recordings_reach_the_model(serve: Any) -> None:
    pixel = (
        "data:image/png;base64,"
        + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
    )
    content = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": pixel}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD" * 40, "format": "wav"}},
    ]
    with Wire([said("A cat.")]) as wire:
        serve(wire).client().chat.completions.create(model="fake", messages=[{"role": "user", "content": content}])
        assert wire.bodies[0]["messages"][-1]["content"] == content


def test_addresses_that_only_this_machine_or_its_network_can_open_are_refused(serve: Any) -> None:
    later = [{"role": "assistant", "content": "?"}, {"role": "user", "content": "and now?"}]
    with Wire([said("A cat.")]) as wire:
        client = serve(wire).client()
        for address in NOT_PUBLIC:
            picture = {"type": "image_url", "image_url": {"url": address}}
            video = {"type": "video_url", "video_url": {"url": address}}
            pdf = {"type": "file", "file": {"file_data": address, "filename": "a: b.pdf"}}
            sound = {"type": "input_audio", "input_audio": {"data": address, "format": "wav"}}
            for part in (picture, video, *((pdf, sound) if ":" in address else ())):
                asked = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, part]}
                with pytest.raises(openai.BadRequestError) as caught:
                    client.chat.completions.create(model="fake", messages=[asked, *later])
                assert caught.value.param == "messages[0].content[1]", part
                assert "address" in caught.value.message
        assert wire.bodies == []


def test_only_known_fields_of_a_part_are_passed_on(serve: Any) -> None:
    parts = [
        {"type": "file", "file": {"file_data": "QUJD", "filename": "a: b.pdf", "path": "file:///etc/passwd"}},
        {
            "type": "image_url",
            "image_url": {"url": "https://pictures.example./a%20b.png?x=1#y", "local": "/etc/passwd"},
        },
    ]
    with Wire([said("A cat.")]) as wire:
        serve(wire).client().chat.completions.create(model="fake", messages=[{"role": "user", "content": parts}])
        assert wire.bodies[0]["messages"][-1]["content"] == [
            {"type": "file", "file": {"file_data": "QUJD", "filename": "a: b.pdf"}},
            {"type": "image_url", "image_url": {"url": "https://pictures.example./a%20b.png?x=1#y"}},
        ]


def test_what_cannot_be_honoured_is_accepted(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        reply = serve(wire).client().chat.completions.create(
            model="fake", messages=HELLO, temperature=0.1, max_tokens=5, top_p=0.5, seed=1, stop=["x"], user="me",
            presence_penalty=1.0, logit_bias={"1": 2}, response_format={"type": "json_object"}, n=1,
        )  # fmt: skip
        assert reply.choices[0].message.content == "Hi."


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": "hello"}, "messages"),
    ({"n": 2}, "n"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "magic"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"model": None}, "model"),
]


def test_a_request_that_makes_no_sense_is_refused_and_the_place_is_named(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        client = served.client()
        for change, param in BAD:
            with pytest.raises(openai.BadRequestError) as caught:
                client.post("/chat/completions", body={"model": "fake", "messages": HELLO, **change}, cast_to=object)
            assert (caught.value.param, caught.value.type) == (param, "invalid_request_error"), change
        assert wire.bodies == [] and served.sessions() == []


def test_trouble_with_the_model_has_a_fitting_status(serve: Any) -> None:
    refused = {"error": {"message": "no such model", "type": "invalid_request_error", "code": None}}
    long = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}
    slow = {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}
    with Wire([error(404, refused)]) as wire:
        client = serve(wire).client()
        with pytest.raises(openai.InternalServerError) as broken:
            client.chat.completions.create(model="fake", messages=HELLO)
        assert broken.value.status_code == 502 and "no such model" in str(broken.value)
        wire.answer_next(error(400, long))
        with pytest.raises(openai.BadRequestError) as full:
            client.chat.completions.create(model="fake", messages=HELLO, stream=True)
        assert full.value.code == "context_length_exceeded"
        wire.answer_next(error(429, slow, retry_after="600"))
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model="fake", messages=HELLO)
        assert limited.value.response.headers["retry-after"] == "600"


def test_a_request_that_failed_and_comes_again_is_not_stored_twice(serve: Any) -> None:
    with Wire([error(404, {"error": {"message": "gone"}})]) as wire:
        served = serve(wire)
        with pytest.raises(openai.InternalServerError):
            served.client(max_retries=1).chat.completions.create(model="fake", messages=HELLO)
        assert len(wire.bodies) == 2
        wire.answer_next(said("Back."))
        served.client().chat.completions.create(model="fake", messages=HELLO)
        (session_id,) = served.sessions()
        assert served.said(session_id) == [("user", "hello"), ("assistant", "Back.")]


def test_an_error_in_the_middle_of_a_stream_is_told_and_what_was_said_is_kept(serve: Any) -> None:
    with Wire([sse(delta(content="Half a "), {"error": {"message": "bad luck", "code": 400}})]) as wire:
        served = serve(wire)
        seen = []
        with pytest.raises(openai.APIError, match="bad luck"):
            for piece in served.client().chat.completions.create(model="fake", messages=HELLO, stream=True):
                seen.append(piece.choices[0].delta.content)
        assert "".join(text or "" for text in seen) == "Half a "
        (session_id,) = served.sessions()
        assert served.said(session_id) == [("user", "hello"), ("assistant", "Half a ")]


def test_a_reply_that_begins_anew_is_told_once_where_it_comes_whole(serve: Any) -> None:
    with Wire([sse(delta(content="Hel"), CUT), said("Hello."), said("Good.")]) as wire:
        served = serve(wire)
        reply = served.client().chat.completions.create(model="fake", messages=HELLO)
        assert reply.choices[0].message.content == "Hello."
        messages = [*HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "more"}]
        served.client().chat.completions.create(model="fake", messages=messages)
        assert len(served.sessions()) == 1


def test_a_client_that_goes_away_stops_the_turn_and_what_was_said_is_kept(serve: Any) -> None:
    with Wire([sse(delta(content="It was a dark "), STALL)]) as wire:
        served = serve(wire)
        stream = served.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
        for piece in stream:
            if piece.choices[0].delta.content:
                break
        stream.close()
        assert wire.hung_up.wait(120), "the model was not told to stop"
        (session_id,) = served.sessions()
        until(lambda: served.said(session_id)[1:] == [("assistant", "It was a dark ")])
        assert served.db.get_messages(session_id)[-1]["finish_reason"] == "interrupted"


def test_a_client_that_gives_up_waiting_for_the_whole_stops_the_turn_too(serve: Any) -> None:
    with Wire([sse(delta(content="Slowly "), STALL)]) as wire:
        served = serve(wire)
        with pytest.raises(openai.APITimeoutError):
            served.client(timeout=0.5).chat.completions.create(model="fake", messages=HELLO)
        assert wire.hung_up.wait(120), "the model was not told to stop"
        (session_id,) = served.sessions()
        until(lambda: served.said(session_id)[1:] == [("assistant", "Slowly ")])


def test_after_a_compression_the_same_conversation_is_still_one(serve: Any) -> None:
    with Wire([said("One."), said("Two.")]) as wire:
        served = serve(wire)
        client = served.client()
        client.chat.completions.create(model="fake", messages=HELLO)
        (session_id,) = served.sessions()
        last = served.db.get_messages(session_id)[-1]["id"]
        served.db.compress_session(session_id, "child", summary="short", tail_from=last)
        messages = [*HELLO, {"role": "assistant", "content": "One."}, {"role": "user", "content": "b"}]
        got = client.chat.completions.with_raw_response.create(model="fake", messages=messages)
        assert got.headers["x-hermes-session-id"] == "child"
        assert [text for _, text in served.said("child")] == ["short", "One.", "b", "Two."]
        by_name = client.chat.completions.with_raw_response.create(
            model="fake", messages=HELLO, extra_headers={"X-Hermes-Session-Id": session_id}
        )
        assert by_name.headers["x-hermes-session-id"] == "child"


def test_a_long_silence_is_filled_with_signs_of_life(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SILENCE", 0.05)
    with Wire([sse(0.5, delta(content="At last."), end())]) as wire:
        served = serve(wire)
        with httpx.Client(trust_env=False) as client:
            body = {"model": "fake", "messages": HELLO, "stream": True}
            text = client.post(f"{served.base_url}/chat/completions", json=body).text
        assert text.startswith("data: ") and "\n\n: still working\n\n" in text and text.endswith("data: [DONE]\n\n")
        pieces = served.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "At last."
