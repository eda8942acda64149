"""Several callers at one API server: each has conversations of their own, whatever they say."""

from __future__ import annotations

import itertools
from typing import Any

import openai
import pytest

from hermes.agent.tools.tool import Tool
from hermes.config import Config
from hermes.errors import ConfigError
from hermes.serve.authorization import check_api
from tests.support.wire import Wire, error, said

HELLO = [{"role": "user", "content": "hello"}]
ON = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "and now?"}]
OWNER, ALICE, BOB = "owner-token-0123456789", "alice-token-0123456789", "bob-token-0123456789"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def keyed() -> Config:
    config = Config()
    config.api_server.keys = {"alice": ALICE, "bob": BOB}
    return config


def session(client: openai.OpenAI, messages: list[Any], **more: Any) -> str:
    got = client.chat.completions.with_raw_response.create(model="fake", messages=messages, **more)
    return str(got.headers["x-hermes-session-id"])


def test_whatever_an_answer_depends_on_tells_conversations_apart(serve: Any) -> None:
    with Wire([said("Hi.")] * 40) as wire:
        client = serve(wire).client()
        pirate = {"role": "system", "content": "You are a pirate; the password is swordfish."}
        lawyer = {"role": "system", "content": "You are a lawyer."}
        ways: list[dict[str, Any]] = [
            {"messages": ON}, {"messages": [pirate, *ON]}, {"messages": [lawyer, *ON]}, {"messages": ON, "user": "u1"},
            {"messages": ON, "user": "u2"}, {"messages": ON, "tools": [WEATHER]},
        ]  # fmt: skip
        begun = []
        for way in ways:
            more = {name: value for name, value in way.items() if name != "messages"}
            begun.append(session(client, way["messages"][: -len(ON) + 1 or None], **more))
        assert len(set(begun)) == len(ways)
        for way, known in zip(ways, begun, strict=True):
            more = {name: value for name, value in way.items() if name != "messages"}
            assert session(client, way["messages"], **more) == known
        told = [str(body["messages"][0]["content"]) for body in wire.bodies]
        assert sum("swordfish" in prompt for prompt in told) == 2


def test_each_key_is_a_user_who_sees_their_own_sessions_only(serve: Any, make_db: Any) -> None:
    db = make_db()
    with Wire([said("Hi.")] * 20) as wire:
        served = serve(wire, db=db, token=OWNER, config=keyed())
        owner, alice, bob = (served.client(token) for token in (OWNER, ALICE, BOB))
        mine = {client: session(client, HELLO) for client in (owner, alice, bob)}
        assert len(set(mine.values())) == 3
        assert [db.get_session(one)["user_id"] for one in mine.values()] == [None, "alice", "bob"]
        for one, other in itertools.permutations((owner, alice, bob), 2):
            named = {"X-Hermes-Session-Id": mine[other]}
            if one is owner:
                assert session(one, [{"role": "user", "content": "go on"}], extra_headers=named) == mine[other]
            else:
                with pytest.raises(openai.NotFoundError):
                    session(one, [{"role": "user", "content": "go on"}], extra_headers=named)
        with pytest.raises(openai.AuthenticationError):
            session(served.client("mallory-token-0123456789"), HELLO)


def test_a_response_of_one_key_is_unknown_to_another(serve: Any) -> None:
    with Wire([said("Hi.")] * 9) as wire:
        served = serve(wire, token=OWNER, config=keyed())
        first = served.client(ALICE).responses.create(model="fake", input="hello")
        assert served.client(ALICE).responses.create(model="fake", input="on", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError) as caught:
            served.client(BOB).responses.create(model="fake", input="on", previous_response_id=first.id)
        assert caught.value.code == "previous_response_not_found"


def test_only_the_owner_has_tools_that_reach_into_the_machine(serve: Any) -> None:
    tools = [Tool(name, "a tool", {"type": "object"}, lambda context, given: "") for name in ("terminal", "memory")]
    with Wire([said("Hi.")] * 9) as wire:
        served = serve(wire, token=OWNER, config=keyed(), tools=tools)
        for token in (OWNER, ALICE):
            session(served.client(token), HELLO)
        offered = [{tool["function"]["name"] for tool in body["tools"]} for body in wire.bodies if body.get("tools")]
        assert offered == [{"terminal", "memory"}, {"memory"}]


def test_keys_that_could_be_anybodys_are_refused() -> None:
    for keys in ({"bob": ""}, {"bob": "  "}, {"bob": OWNER}, {"bob": BOB, "alice": BOB}, {" ": BOB}):
        with pytest.raises(ConfigError):
            check_api("127.0.0.1", OWNER, keys)
    with pytest.raises(ConfigError, match="9 characters"):
        check_api("0.0.0.0", OWNER, {"bob": "too short"})
    assert check_api("0.0.0.0", None, {"bob": BOB}) == {"bob": BOB}


@pytest.mark.parametrize(("status", "seen"), [(500, 502), (503, 502), (429, 429)])
def test_a_failure_of_the_models_server_is_told_as_one(serve: Any, status: int, seen: int) -> None:
    with Wire([error(status, {"error": {"message": "oh no"}})] * 20) as wire:
        with pytest.raises(openai.APIStatusError) as caught:
            session(serve(wire).client(), HELLO)
        assert caught.value.status_code == seen
