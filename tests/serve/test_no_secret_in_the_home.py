"""Secrets that come in over the API, in any field, and what the model says of them: no file of the home holds one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from hermes.store.api.session_db import SessionDB
from tests.support.secret_kinds import SECRETS, everything, leaks
from tests.support.wire import Wire, delta, end, error, said, sse

GITHUB = next(secret for kind, _, secret in SECRETS if kind == "github")
TOOL = {"name": "deploy", "description": everything(), "parameters": {"type": "object", "properties": {}}}


def test_in_every_field_of_both_apis(serve: Any, hermes_home: Path) -> None:
    hermes_home.mkdir(parents=True, exist_ok=True)
    thinking = delta(reasoning_content=everything(), content="")
    replies = [
        sse(thinking, delta(content=everything()), end(), "[DONE]"),
        said(everything()),
        error(400, everything()),
        said("fine"),
        said("fine"),
    ]
    with SessionDB(hermes_home / "state.db") as db, Wire(replies) as wire:
        served = serve(wire, db=db)
        client = served.client()
        asked: dict[str, Any] = {
            "model": "fake", "user": "someone",
            "messages": [{"role": "system", "content": everything()}, {"role": "user", "content": everything()}],
        }  # fmt: skip
        assert GITHUB in "".join(
            piece.choices[0].delta.content or ""
            for piece in client.chat.completions.create(**asked, stream=True)
            if piece.choices
        )
        tools: Any = [{"type": "function", "function": TOOL}]
        client.chat.completions.create(
            **{**asked, "messages": [{"role": "user", "content": f"two {everything()}"}]}, tools=tools
        )
        with pytest.raises(openai.APIError):
            client.chat.completions.create(
                **{**asked, "messages": [{"role": "user", "content": f"three {everything()}"}]}
            )
        client.responses.create(
            model="fake", instructions=everything(), input=everything(), metadata={"note": GITHUB},
            tools=[{"type": "function", "strict": False, **TOOL}],
        )  # fmt: skip
        client.responses.create(
            model="fake", input=[{"role": "user", "content": [{"type": "input_text", "text": everything()}]}]
        )
        assert leaks(hermes_home) == []
        kept = json.dumps([db.export_session(session_id) for session_id in served.sessions()], default=str)
        assert len(served.sessions()) >= 4
    assert not [kind for kind, _, secret in SECRETS if len(secret) >= 12 and json.dumps(secret)[1:-1] in kept]
    assert leaks(hermes_home) == []
