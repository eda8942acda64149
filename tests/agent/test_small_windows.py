"""No dead end in a small window: a turn goes through whatever the conversation holds, or the error names what is too long."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from hermes.agent.history import SUMMARY_MARK
from hermes.agent.loop import Agent
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.tools.tool import Tool
from hermes.agent.turn import Done, Followed, Notice
from hermes.config import Config
from hermes.errors import ContextTooLong
from hermes_state import SessionDB
from tests.support.sizes import size
from tests.support.wire import Answer, Wire, call, delta, end, error, said, sse

NOTES = "## Goal\n- to go on"
PICTURE = "data:image/png;base64,iVBORw0KGgo" + "A" * 4_000
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


class Window:
    """A model server with a window: it counts in its own manner, and refuses what is longer, also from the side tasks."""

    def __init__(self, tokens: int, characters: float = 4.0, calls: int = 0) -> None:
        self.tokens, self.characters, self.calls = tokens, characters, calls
        self.refused = 0
        self.wire = Wire(self.answer)

    def count(self, body: dict[str, Any]) -> int:
        total = len(json.dumps(body.get("tools", [])))
        pictures = 0
        for message in body["messages"]:
            content = message.get("content")
            for part in content if isinstance(content, list) else []:
                pictures += part.get("type") == "image_url"
                total += len(part.get("text", ""))
            total += len(content) if isinstance(content, str) else 0
            total += sum(len(str(call["function"])) for call in message.get("tool_calls") or [])
        return int(total / self.characters) + 4 * len(body["messages"]) + 1_000 * pictures

    def answer(self, body: dict[str, Any]) -> Answer:
        count = self.count(body)
        if count > self.tokens:
            self.refused += 1
            words = f"This model's maximum context length is {self.tokens} tokens; your messages have {count}."
            return error(400, {"error": {"message": words, "code": "context_length_exceeded"}})
        for message in body["messages"]:
            for one in message.get("tool_calls") or []:
                json.loads(one["function"]["arguments"])  # as strict as the strictest endpoint
        if "max_tokens" in body:
            return said(NOTES)
        if self.calls:
            self.calls -= 1
            asks = [call("look", '{"path": "a.py"}', index=n, id=f"c{self.calls}.{n}") for n in range(2)]
            return sse(delta(tool_calls=asks), end("tool_calls"), "[DONE]")
        return said("On we go.", prompt_tokens=count, completion_tokens=4)


def agent_of(db: SessionDB, window: Window, folder: Path, output: str = "ok") -> Agent:
    look = Tool("look", "looks at a file", NOTHING, lambda context, arguments: output)
    model = EndpointModel("small", window.wire.base_url, "key", window.tokens)
    agent = Agent(db, Config(), model, session_id="s", tools=[look], home=folder, cwd=folder)
    agent.titles, agent.first_wait = False, 0.01
    return agent


def text_of(number: int, tokens: float) -> str:
    """About as many tokens of text that tells where it comes from."""
    words = f"[{number}] the quick brown fox jumps over the lazy dog; "
    return (words * (int(tokens * 4) // len(words) + 1))[: max(4, int(tokens * 4))]


# A length: tokens, or a share of the window.
lengths = st.one_of(st.integers(1, 400), st.sampled_from([0.02, 0.1, 0.3, 0.9, 2.0]))
steps = st.lists(st.tuples(lengths, lengths), max_size=3)
exchanges = st.tuples(lengths, st.integers(0, 2), steps, st.one_of(st.none(), lengths))


@st.composite
def lives(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "window": int(2 ** draw(st.floats(11, 17.6))),
        "characters": draw(st.sampled_from([2.2, 3.0, 4.0, 5.5])),
        "system": draw(st.sampled_from([0, 0.05, 0.2, 0.5, 1.5])),
        "exchanges": draw(st.lists(exchanges, max_size=10)),
        "question": draw(lengths),
        "pictures": draw(st.integers(0, 2)),
        "calls": draw(st.integers(0, 3)),
        "output": draw(lengths),
    }


def stored(db: SessionDB, life: dict[str, Any], tokens: Any) -> None:
    """The conversation so far."""
    prompt = "You are Hermes. " + text_of(0, tokens(life["system"])) if life["system"] else "You are Hermes."
    db.create_session("s", "cli", system_prompt=prompt)
    for number, (asked, pictures, worked, replied) in enumerate(life["exchanges"]):
        db.append_message("s", "user", content_of(text_of(number, tokens(asked)), pictures))
        for at, (arguments, result) in enumerate(worked):
            made = {"name": "look", "arguments": json.dumps({"path": text_of(number, tokens(arguments))})}
            calls = [{"id": f"h{number}.{at}", "type": "function", "function": made}]
            db.append_message("s", "assistant", None, tool_calls=calls)
            db.append_message(
                "s", "tool", text_of(number, tokens(result)), tool_call_id=f"h{number}.{at}", tool_name="look"
            )
        if replied is not None:
            db.append_message("s", "assistant", text_of(number, tokens(replied)))


def content_of(text: str, pictures: int) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": PICTURE}}] * pictures
    return [{"type": "text", "text": text}, *parts] if pictures else text


@settings(max_examples=size(6, 300), deadline=None)
@given(lives())
def test_a_turn_always_goes_through_or_the_error_names_what_is_too_long(life: dict[str, Any]) -> None:
    window = Window(life["window"], life["characters"], life["calls"])

    def tokens(length: float) -> float:
        return length * life["window"] if isinstance(length, float) else length

    with TemporaryDirectory() as name, window.wire, SessionDB(db_path=Path(name) / "state.db") as db:
        stored(db, life, tokens)
        before = [row["content"] for row in db.get_messages("s")]
        agent = agent_of(db, window, Path(name), text_of(77, tokens(life["output"])))
        question = "QUESTION " + text_of(99, tokens(life["question"]))
        for asked in (question, "and then?"):
            window.calls = life["calls"]
            events, refusal = [], ""
            try:
                events = list(agent.turn(content_of(asked, life["pictures"])))
            except ContextTooLong as problem:
                refusal = str(problem)
            if refusal:
                note(refusal)
                bare = {"messages": [{"content": db.get_session("s")["system_prompt"]}]}
                assert window.count(bare) > window.tokens - 500, "it would have fitted"
                assert "the longest part is the system prompt, about " in refusal
                return
            assert events[-1] == Done("On we go.")
            assert window.refused <= 40
        sent = window.wire.bodies[-1]["messages"]
        if window.count({"messages": sent[:1]}) < 0.7 * window.tokens:
            assert "and then?" in json.dumps(sent), "in the notes, if only the last steps of the turn fit"
        assert [row["content"] for row in db.get_messages("s")][: len(before)] == before, "the record is whole"
        chain = [row["content"] for one in db.get_compression_chain("s") for row in db.get_messages(one)]
        assert content_text_in(question, chain)
        agent.close()


def content_text_in(text: str, contents: list[Any]) -> bool:
    return any(
        content == text or (isinstance(content, list) and content[0].get("text") == text) for content in contents
    )


def test_twelve_long_messages_in_a_window_of_8192_tokens(db: Any, tmp_path: Path) -> None:
    window = Window(8_192)
    with window.wire:
        agent = agent_of(db, window, tmp_path)
        for number in range(12):
            assert list(agent.turn(f"message {number} " + "words " * 400))[-1] == Done("On we go.")
        assert window.refused == 0
    assert len(db.get_compression_chain("s")) > 1


@pytest.mark.parametrize("believed", [8_192, 200_000])
def test_a_message_that_is_too_long_alone_is_cut_in_the_middle_for_sending_and_whole_in_the_record(
    db: Any, tmp_path: Path, believed: int
) -> None:
    window = Window(8_192)
    text = "BEGIN " + "".join(f"line {n}\n" for n in range(20_000)) + " END"
    with window.wire:
        agent = agent_of(db, window, tmp_path)
        agent.model.context_length = believed  # the server may have a smaller window than it is known for
        events = list(agent.turn(text))
        sent = window.wire.bodies[-1]["messages"][-1]["content"]
    assert events[-1] == Done("On we go.")
    told = [event.text for event in events if isinstance(event, Notice)]
    assert any("too long" in line and "cut in the middle" in line for line in told)
    assert sent.startswith("BEGIN") and sent.endswith("END") and "characters left out" in sent
    assert len(sent) > 10_000, "as much as fits, not as little as possible"
    assert db.get_messages("s")[0]["content"] == text


def test_long_arguments_of_a_call_are_cut_and_stay_valid(db: Any, tmp_path: Path) -> None:
    window = Window(4_096)
    written = json.dumps({"path": "src/big.py", "content": 'print("line")\n' * 4_000})
    db.create_session("s", "cli", system_prompt="be good")
    db.append_message("s", "user", "write it")
    calls = [{"id": "w", "type": "function", "function": {"name": "write_file", "arguments": written}}]
    db.append_message("s", "assistant", None, tool_calls=calls, reasoning_content="hmm " * 5_000)
    db.append_message("s", "tool", "written", tool_call_id="w", tool_name="write_file")
    with window.wire:
        agent = agent_of(db, window, tmp_path)
        assert list(agent.resume())[-1] == Done("On we go.")
        sent = window.wire.bodies[-1]["messages"]
    (made,) = [message for message in sent if message.get("tool_calls")]
    arguments = json.loads(made["tool_calls"][0]["function"]["arguments"])
    assert arguments["path"] == "src/big.py" and "characters left out" in arguments["content"]


def test_a_turn_of_many_steps_keeps_its_question_in_the_notes(db: Any, tmp_path: Path) -> None:
    window = Window(8_192, calls=12)
    db.create_session("s", "cli", system_prompt="be good")
    for n in range(4):
        db.append_message("s", "user", f"earlier {n}")
        db.append_message("s", "assistant", "yes")
    with window.wire:
        agent = agent_of(db, window, tmp_path, "result " * 300)
        events = list(agent.turn("Rename the flag --fast to --quick everywhere, tests too."))
        sent = window.wire.bodies[-1]["messages"]
    assert events[-1] == Done("On we go.") and any(isinstance(event, Followed) for event in events)
    (notes,) = [one["content"] for one in sent if str(one["content"]).startswith(SUMMARY_MARK)]
    assert "Rename the flag --fast to --quick everywhere, tests too." in notes


def test_a_model_whose_window_has_no_room_for_the_tools_answers_without_them(db: Any, tmp_path: Path) -> None:
    window = Window(2_048)
    with window.wire:
        agent = agent_of(db, window, tmp_path)
        agent.tools = {"look": Tool("look", "looks at files " * 600, NOTHING, lambda context, arguments: "ok")}
        events = list(agent.turn("hello"))
        assert list(agent.turn("words " * 3_000))[-1] == Done("On we go.")
        assert "tools" not in window.wire.bodies[-1]
    assert events[-1] == Done("On we go.")
    (notice,) = [event.text for event in events if isinstance(event, Notice)]
    assert "tools" in notice and "small" in notice


def test_every_message_of_a_turn_has_its_tokens_in_the_record(db: Any, tmp_path: Path) -> None:
    window = Window(32_000, calls=1)
    with window.wire:
        agent = agent_of(db, window, tmp_path, "a result of some words")
        list(agent.turn("a question of some words"))
    rows = db.get_messages("s")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool", "assistant"]
    assert all(2 <= row["token_count"] <= 60 for row in rows), [row["token_count"] for row in rows]
    assert rows[-1]["token_count"] == 4, "as the endpoint counted"
