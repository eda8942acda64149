"""Messages: what goes in comes back, in order and counted once."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.sizes import size, some

from . import found, ids, shown, talk

JSON_FIELDS = ["tool_calls", "reasoning_details", "codex_reasoning_items", "codex_message_items"]
TEXT_FIELDS = ["content", "reasoning", "reasoning_content", "finish_reason", "tool_call_id", "tool_name"]
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls -la"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a/b.py"}'}},
]


def any_text(**kw):
    """Every code point there is: NUL, lone surrogates, private use, unassigned."""
    return st.text(alphabet=st.characters(exclude_categories=()), **kw)


def json_values():
    leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | any_text(max_size=20)
    leaves |= st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        leaves,
        lambda deeper: st.lists(deeper, max_size=4) | st.dictionaries(any_text(max_size=8), deeper, max_size=4),
        max_leaves=12,
    )


def test_append_returns_growing_ids_and_counts_each_message(db):
    message_ids = talk(db, "s", "a", "b", "c")
    assert message_ids == sorted(set(message_ids))
    assert ids(db.get_messages("s")) == message_ids
    assert db.get_session("s")["message_count"] == 3
    assert db.message_count("s") == db.message_count() == 3


def test_tool_calls_are_counted_by_their_number_and_results_add_nothing(db):
    db.create_session("s", "cli")
    db.append_message("s", "assistant", None, tool_calls=CALLS)
    assert db.get_session("s")["tool_call_count"] == 2
    db.append_message("s", "tool", "a.txt", tool_name="terminal", tool_call_id="call_1")
    db.append_message("s", "tool", "text", tool_name="read_file", tool_call_id="call_2")
    row = db.get_session("s")
    assert (row["tool_call_count"], row["message_count"]) == (2, 3)
    db.append_message("s", "assistant", "done", tool_calls=[])
    assert db.get_session("s")["tool_call_count"] == 2


def test_every_field_comes_back(db):
    db.create_session("s", "cli")
    given_fields = {
        "content": "the answer", "tool_name": "terminal", "tool_calls": CALLS, "tool_call_id": "call_9", "token_count": 7,
        "finish_reason": "tool_calls", "reasoning": "thinking", "reasoning_content": "thinking aloud",
        "reasoning_details": [{"type": "summary", "text": "t", "signature": "c2lnbmVk"}],
        "codex_reasoning_items": [{"id": "rs_1", "encrypted_content": "Z0FBQUFB" * 20}],
        "codex_message_items": [{"id": "msg_1", "phase": "final"}], "model": "a-model", "input_tokens": 11,
        "output_tokens": 12, "cache_read_tokens": 13, "cache_write_tokens": 14, "cost_usd": 0.25,
        "platform_message_id": "p-1", "meta": {"a": [1]},
    }  # fmt: skip
    message_id = db.append_message("s", "assistant", **given_fields, timestamp=1000.25)
    (row,) = db.get_messages("s")
    assert {name: row[name] for name in given_fields} == given_fields
    assert row["id"] == message_id and row["session_id"] == "s"
    assert row["role"] == "assistant" and row["timestamp"] == 1000.25


def test_fields_may_be_given_by_position_in_the_documented_order(db):
    given_fields = {
        "content": "c", "tool_name": "tn", "tool_calls": [{"id": "1"}], "tool_call_id": "tcid", "token_count": 5,
        "finish_reason": "stop", "reasoning": "r", "reasoning_content": "rc", "reasoning_details": [1],
        "codex_reasoning_items": [2], "codex_message_items": [3],
    }  # fmt: skip
    db.create_session("s", "cli")
    db.append_message("s", "assistant", *given_fields.values())
    (row,) = db.get_messages("s")
    assert {name: row[name] for name in given_fields} == given_fields


def test_missing_fields_are_none_and_all_columns_are_there(db):
    db.create_session("s", "cli")
    db.append_message("s", "user")
    (row,) = db.get_messages("s")
    for name in [*TEXT_FIELDS, *JSON_FIELDS, "token_count"]:
        assert row[name] is None, name
    assert isinstance(row["timestamp"], float)


def test_order_within_a_session_is_insertion_not_timestamp(db):
    db.create_session("s", "cli")
    for stamp, text in [(300.0, "first"), (100.0, "second"), (200.0, "third")]:
        db.append_message("s", "user", text, timestamp=stamp)
    assert shown(db, "s") == ["first", "second", "third"]


# ------------------------------------------------------------------ any text


FIELDS = {name: any_text(max_size=60) for name in TEXT_FIELDS}
FIELDS |= {name: st.lists(json_values(), min_size=1, max_size=3) for name in JSON_FIELDS}


@given(fields=st.fixed_dictionaries(FIELDS), role=st.sampled_from(["user", "assistant", "tool", "system"]))
def test_anything_in_any_field_comes_back(db, fields, role):
    db.ensure_session("s")
    db.append_message("s", role, **fields)
    row = db.get_messages("s")[-1]
    db.clear_messages("s")
    assume("[masked:" not in repr(row))  # a key may be called "pass", and its value is masked then
    assert {name: row[name] for name in fields} == fields


@given(texts=st.lists(any_text(max_size=80), min_size=1, max_size=5))
def test_any_list_of_text_parts_comes_back(db, texts):
    parts = [{"type": "text", "text": text} for text in texts]
    db.ensure_session("s")
    db.append_message("s", "user", parts)
    assert db.get_messages("s")[-1]["content"] == parts
    assert db.get_messages_as_conversation("s")[-1]["content"] == parts
    db.clear_messages("s")


AWKWARD = {
    "nul": "a\x00b\x00",
    "only nul": "\x00",
    "lone surrogates": "a\ud800b\udfff",
    "surrogate pair taken apart": "\ud83d\ude00",
    "escape look-alike": "\\ud800 \\u0000 \\x00 %00",
    "json look-alike": '[{"type": "text", "text": "not parts"}]',
    "json list": "[]",
    "json null": "null",
    "marker look-alike": ">>>a<<<",
    "bom": "\ufeffa",
    "line ends": "a\r\nb\rc\n\u2028d\u0085",
    "empty": "",
    "blank": "  \t\n ",
    "noncharacter": "\uffff\ufffe\U0010ffff",
}


@pytest.mark.parametrize(("role", "times"), [("user", 1), ("tool", 3000)])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_text_comes_back_short_or_long(make_db, name, role, times):
    """Three thousand times over it is long enough to be compressed when it is tool output."""
    db = make_db(name="x")
    text = AWKWARD[name] * times
    db.create_session("s", "cli")
    db.append_message("s", role, text, reasoning=text)
    db.close()
    again = make_db(name="x")
    assert again.get_messages("s")[0]["content"] == text
    assert again.get_messages("s")[0]["reasoning"] == text
    assert again.export_session("s")["messages"][0]["content"] == text
    assert again.get_messages_as_conversation("s")[0]["content"] == text


@pytest.mark.parametrize("role", some(["user", "tool"], 1))
def test_megabytes_come_back_and_their_last_word_is_found(db, role):
    text = "lorem ipsum dolor sit amet\n" * size(80_000, 400_000) + "xylophone"
    db.create_session("s", "cli")
    message_id = db.append_message("s", role, text)
    assert db.get_messages("s")[0]["content"] == text
    assert found(db, "xylophone") == {message_id}
    (hit,) = db.search_messages("xylophone")
    assert len(hit["snippet"]) < 10_000


# ------------------------------------------------------------------ the conversation


def test_a_conversation_holds_exactly_the_documented_keys(db):
    db.create_session("s", "cli")
    db.append_message("s", "system", "be kind")
    db.append_message("s", "user", "hi", token_count=3, timestamp=5.0)
    replayed = {
        "tool_calls": CALLS, "finish_reason": "tool_calls", "reasoning": "r", "reasoning_content": "rc",
        "reasoning_details": [{"d": 1}], "codex_reasoning_items": [{"c": 1}], "codex_message_items": [{"m": 1}],
    }  # fmt: skip
    kept = {"token_count": 9, "model": "m", "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.1}
    db.append_message("s", "assistant", "let me look", **replayed, **kept)
    db.append_message("s", "tool", "out", tool_name="terminal", tool_call_id="call_1")
    db.append_message("s", "assistant", "bye")
    assert db.get_messages_as_conversation("s") == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "let me look", **replayed},
        {"role": "tool", "content": "out", "tool_name": "terminal", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "bye"},
    ]


def test_reasoning_is_replayed_for_assistant_turns_only(db):
    db.create_session("s", "cli")
    db.append_message("s", "user", "hi", reasoning="no", reasoning_details=[1], codex_reasoning_items=[2])
    assert db.get_messages_as_conversation("s") == [{"role": "user", "content": "hi"}]


def test_an_assistant_turn_without_text_keeps_its_content_key(db):
    db.create_session("s", "cli")
    db.append_message("s", "assistant", None, tool_calls=CALLS)
    assert db.get_messages_as_conversation("s") == [{"role": "assistant", "content": None, "tool_calls": CALLS}]


# ------------------------------------------------------------------ replace and clear


def test_replace_puts_the_new_messages_in_place_and_recounts(db):
    talk(db, "s", "old walrus", "old reply")
    db.append_message("s", "assistant", None, tool_calls=CALLS)
    reply = {"role": "assistant", "content": None, "tool_calls": CALLS[:1], "reasoning": "hm", "finish_reason": "stop"}
    output = {"role": "tool", "content": "out", "tool_call_id": "call_1", "tool_name": "terminal"}
    db.replace_messages("s", [{"role": "user", "content": "new narwhal"}, reply, output])
    assert shown(db, "s") == ["new narwhal", None, "out"]
    row = db.get_session("s")
    assert (row["message_count"], row["tool_call_count"]) == (3, 1)
    assert db.get_messages("s")[1]["tool_calls"] == CALLS[:1]
    assert db.get_messages("s")[1]["reasoning"] == "hm"
    assert found(db, "walrus") == set() and len(found(db, "narwhal")) == 1
    assert db.list_sessions_rich()[0]["preview"] == "new narwhal"


def test_a_conversation_put_back_by_replace_is_the_same_conversation(db):
    db.create_session("s", "cli")
    db.append_message("s", "user", [{"type": "text", "text": "hi"}])
    db.append_message("s", "assistant", "x", tool_calls=CALLS, reasoning_details=[{"d": 1}], finish_reason="stop")
    db.append_message("s", "tool", "o", tool_name="terminal", tool_call_id="call_1")
    before = db.get_messages_as_conversation("s")
    db.replace_messages("s", before)
    assert db.get_messages_as_conversation("s") == before


@pytest.mark.parametrize(
    "bad",
    [{"role": "assistant", "tool_calls": [object()]}, {"role": "user", "content": object()}, 42, None],
    ids=["unserialisable calls", "unserialisable content", "a number", "none"],
)
def test_replace_is_all_or_nothing(db, bad):
    from hermes.errors import HermesError

    talk(db, "s", "kept walrus", "kept reply")
    before, row = db.get_messages("s"), db.get_session("s")
    with pytest.raises((HermesError, TypeError)):
        db.replace_messages("s", [{"role": "user", "content": "new"}, bad, {"role": "user", "content": "newer"}])
    assert db.get_messages("s") == before
    assert db.get_session("s") == row
    assert len(found(db, "walrus")) == 1 and found(db, "newer") == set()
    db.append_message("s", "user", "still works")
    assert shown(db, "s")[-1] == "still works"


def test_clear_removes_messages_and_keeps_the_session(db):
    talk(db, "s", "walrus", "reply", model="m")
    db.append_message("s", "assistant", None, tool_calls=CALLS)
    db.set_session_title("s", "kept")
    db.clear_messages("s")
    row = db.get_session("s")
    assert shown(db, "s") == [] and db.message_count("s") == db.message_count() == 0
    assert (row["message_count"], row["tool_call_count"]) == (0, 0)
    assert (row["title"], row["model"]) == ("kept", "m")
    assert found(db, "walrus") == set()
    assert db.list_sessions_rich()[0]["preview"] == ""
    db.append_message("s", "user", "again")
    assert shown(db, "s") == ["again"] and db.get_session("s")["message_count"] == 1


def test_a_leaked_block_of_memory_before_a_prompt_is_not_replayed(db):
    leak = "<memory-context>\n[System note: recalled]\nlikes tea\n</memory-context>\n\n"
    prompts = [f"{leak}what shall I drink?", [{"type": "text", "text": f"{leak}and now?"}, {"type": "custom", "n": 1}],
               "what is <memory-context>x</memory-context>?", "<memory-context> without an end"]  # fmt: skip
    db.create_session("s", "cli")
    for prompt in prompts:
        db.append_message("s", "user", prompt)
    db.append_message("s", "assistant", f"{leak}as I said")
    replayed = [message["content"] for message in db.get_messages_as_conversation("s")]
    parts = [{"type": "text", "text": "and now?"}, {"type": "custom", "n": 1}]
    assert replayed == ["what shall I drink?", parts, *prompts[2:], f"{leak}as I said"]
    assert [message["content"] for message in db.get_messages("s")][:4] == prompts
