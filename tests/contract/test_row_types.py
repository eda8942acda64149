"""The dicts that reading calls give have the keys and the types that `hermes_state` names, on every engine, whatever was stored."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hermes_state
from hermes_state import SessionDB
from tests.support.sizes import size

NAMES = {name: getattr(hermes_state, name) for name in hermes_state.__all__}


def differences(value: Any, kind: Any, where: str) -> list[str]:
    """The places where a value is not exactly of this type: a bool is no int, an int is no float."""
    if kind is Any:
        return []
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        tried = [differences(value, one, where) for one in arguments]
        return [] if [] in tried else min(tried, key=len)
    if origin is typing.Literal:
        return [] if value in arguments else [f"{where}: {value!r} is none of {arguments}"]
    if typing.is_typeddict(kind):
        if type(value) is not dict:
            return [f"{where}: {value!r} is no dict"]
        hints = typing.get_type_hints(kind)
        wrong = [f"{where}.{key}: unknown" for key in value.keys() - hints.keys()]
        wrong += [f"{where}.{key}: missing" for key in kind.__required_keys__ - value.keys()]
        return wrong + [
            line
            for key in value.keys() & hints.keys()
            for line in differences(value[key], hints[key], f"{where}.{key}")
        ]
    if origin is list:
        if type(value) is not list:
            return [f"{where}: {value!r} is no list"]
        return [line for one in value for line in differences(one, arguments[0], f"{where}[]")]
    if origin is dict:
        if type(value) is not dict:
            return [f"{where}: {value!r} is no dict"]
        parts = [part for key, one in value.items() for part in ((key, arguments[0]), (one, arguments[1]))]
        return [line for part, of in parts for line in differences(part, of, f"{where}{{}}")]
    return [] if type(value) is (origin or kind) else [f"{where}: {value!r} is a {type(value).__name__}"]


def promised(name: str) -> Any:
    """The type that a call of SessionDB gives; one item of it, where it gives them one after the other."""
    words = str(inspect.signature(getattr(SessionDB, name)).return_annotation)
    words = re.sub(r"^Iterator\[", "list[", words)
    return eval(words, {**NAMES, "Any": Any})


def gives_dicts(name: str) -> bool:
    words = str(inspect.signature(getattr(SessionDB, name)).return_annotation)
    return any(typing.is_typeddict(NAMES.get(word)) for word in re.findall(r"\w+", words))


CALLS: dict[str, Callable[[Any], Any]] = {
    "get_session": lambda db: db.get_session("s"),
    "get_sessions": lambda db: db.get_sessions(["s"]),
    "list_sessions_rich": lambda db: db.list_sessions_rich(include_children=True) + db.list_sessions_rich(),
    "search_sessions": lambda db: db.search_sessions(),
    "get_session_by_title": lambda db: db.get_session_by_title("a title"),
    "get_messages": lambda db: db.get_messages("s"),
    "get_undone_messages": lambda db: db.rewind("s", db.get_messages("s")[0]["id"]) and db.get_undone_messages("s"),
    "get_messages_from": lambda db: db.get_messages_from(1, 10),
    "get_messages_as_conversation": lambda db: db.get_messages_as_conversation("s", include_ancestors=True),
    "search_messages": lambda db: db.search_messages("lynx", limit=None),
    "file_changes": lambda db: db.file_changes(session_id="s"),
    "change_reasons": lambda db: db.change_reasons([1, 2, 3]),
    "get_session_events": lambda db: db.get_session_events("s"),
    "export_session": lambda db: db.export_session("s"),
    "export_all": lambda db: db.export_all(),
    "iter_export": lambda db: list(db.iter_export()),
    "insights": lambda db: db.insights(days=1e6, now=1_900_000_000),
    "facets": lambda db: db.facets(),
    "get_family": lambda db: db.get_family("s"),
    "get_handoff_state": lambda db: db.get_handoff_state("s"),
    "list_pending_handoffs": lambda db: db.list_pending_handoffs(),
    "audit_log": lambda db: db.audit_log(),
    "check": lambda db: db.check(),
    "meaning_status": lambda db: db.meaning_status(),
    "maybe_auto_prune_and_vacuum": lambda db: db.maybe_auto_prune_and_vacuum(),
    "list_trash": lambda db: db.trash_session("t") and db.list_trash(),
    "shred_session": lambda db: db.shred_session("u"),
}


def test_every_call_that_gives_dicts_is_looked_at_here() -> None:
    public = [name for name, one in inspect.getmembers(SessionDB, inspect.isfunction) if not name.startswith("_")]
    words = " ".join(str(inspect.signature(getattr(SessionDB, name)).return_annotation) for name in public)
    named = set(re.findall(r"[A-Z]\w+", words)) - {"None", "Any", "Iterator", "Path", "Self"}
    assert named <= set(hermes_state.__all__), "a type that a call gives is not exported"
    assert {name for name in public if gives_dicts(name)} == set(CALLS)


texts = st.text(max_size=12) | st.sampled_from(["lynx", "\x00", "\ud800", "日本語", "👩‍👩‍👧", "data:;base64,AAAA"])
counts = st.none() | st.integers(0, 2**40) | st.sampled_from([0.0, 3.0])
money = st.none() | st.integers(0, 9) | st.floats(0, 1e6)
fields = st.none() | st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2)
stored = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "робот"]), "content": st.none() | texts | st.just("a lynx") | fields},
    optional={
        "tool_calls": fields, "tool_name": texts, "tool_call_id": texts, "finish_reason": texts, "reasoning": texts,
        "reasoning_content": texts, "reasoning_details": fields, "codex_reasoning_items": fields, "codex_message_items": fields,
        "timestamp": st.integers(0, 2_000_000_000) | st.floats(0, 2e9), "model": texts, "platform_message_id": texts,
        "token_count": counts, "input_tokens": counts, "output_tokens": counts, "cache_read_tokens": counts,
        "cache_write_tokens": counts, "cost_usd": money, "meta": st.none() | st.dictionaries(texts, texts, max_size=2),
    },
)  # fmt: skip
used = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": counts.filter(lambda one: one is not None), "api_call_count": st.integers(0, 9), "model": texts,
        "estimated_cost_usd": money, "actual_cost_usd": money, "cost_status": texts, "cost_source": texts,
        "pricing_version": texts, "billing_provider": texts, "absolute": st.booleans(),
    },
)  # fmt: skip


@settings(max_examples=size(6, 100))
@given(st.lists(stored, min_size=1, max_size=4), used, texts, st.integers(0, 2_000_000_000) | st.floats(0, 2e9))
def test_what_reading_calls_give(
    make_db: Any, messages: list[dict[str, Any]], usage: dict[str, Any], text: str, began: float
) -> None:
    db = make_db()
    for name in "stu":
        db.create_session(
            name, text or "cli", started_at=began, model=text, model_config={"a": 1}, system_prompt=text, user_id=text, cwd=text
        )  # fmt: skip
    for message in messages:
        db.append_message("s", **message)
    db.append_message("s", "user", "a lynx")
    db.update_token_counts("s", **usage)
    db.set_session_title("s", "a title")
    db.record_event("s", "model_error", text)
    db.tag_session("s", "t")
    db.share_session("s", text, text)
    db.record_audit(text, text, by=text, detail=text)
    db.branch_session("s", "b")
    db.rewind("b", 0)
    db.compress_session("t", "t2", summary="so far")
    db.request_handoff("b", text or "telegram")
    db.request_handoff("s", text or "telegram")
    db.fail_handoff("s", text)
    db.pin_session("s")
    db.end_session("s", text)
    wrong = [line for name, call in CALLS.items() for line in differences(call(db), promised(name), name)]
    db.close()
    assert wrong == []


@pytest.mark.parametrize("text", ["x\ud800y", "\udfff", "a\x00b"], ids=["high", "low", "nul"])
def test_text_that_is_no_text_comes_back_from_every_call(db: Any, text: str) -> None:
    db.create_session("s", text, user_id="u", model=text, system_prompt=text)
    db.set_meta("k", text)
    row = db.get_session("s")
    assert (row["model"], row["system_prompt"], db.get_meta("k")) == (text, text, text)
    db.append_message("s", "user", "a lynx", model=text, tool_name=text)
    db.share_session("s", text, text)
    db.record_event("s", text, text)
    db.record_audit(text, None, by=text, detail=text)
    assert db.acquire_lease(text, text) == 1 and db.lease_holder(text) == text
    assert db.hold_session("s", text) == 1 and db.session_holder("s") == text
    assert db.request_handoff("s", text) and db.fail_handoff("s", text)
    assert db.get_handoff_state("s") == {"state": "failed", "platform": text, "error": text}
    (hit,) = db.search_messages("lynx")
    assert (hit["source"], hit["model"], hit["tool_name"]) == (text, text, text)
    told = db.export_session("s")
    assert told["members"] == [[text, text]]
    assert (told["events"][0]["kind"], told["events"][0]["text"]) == (text, text)
    assert {key: db.audit_log()[0][key] for key in ("action", "by", "detail")} == dict.fromkeys(
        ("action", "by", "detail"), text
    )
    assert db.import_session({**told, "id": "copy"}) and db.export_session("copy")["members"] == [[text, text]]
    assert db.delete_session(text) is False
    assert db.delete_session("s", by=text) and db.audit_log(1)[0]["by"] == text
    assert text in db.audit_log(1)[0]["detail"]
    assert db.check() == []
