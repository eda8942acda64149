"""Feishu's frames and cards as the lab writes, reads and checks them: independent of the adapter's code.

The frames follow `pbbp2.proto` (proto2): SeqID 1, LogID 2, service 3, method 4, headers 5 {key 1, value 2}, payload 8.
"""

from __future__ import annotations

import json
from typing import Any


def _number(value: int) -> bytes:
    digits = []
    while True:
        value, low = divmod(value, 128)
        digits.append(low + (128 if value else 0))
        if not value:
            return bytes(digits)


def _pair(key: str, value: str) -> bytes:
    inner = (
        b"\x0a" + _number(len(key.encode())) + key.encode() + b"\x12" + _number(len(value.encode())) + value.encode()
    )
    return b"\x2a" + _number(len(inner)) + inner


def _frame(method: int, headers: dict[str, str], payload: bytes) -> bytes:
    start = (
        b"\x08" + _number(1) + b"\x10" + _number(2**63 + 5) + b"\x18" + _number(33554678) + b"\x20" + _number(method)
    )
    pairs = b"".join(_pair(key, value) for key, value in headers.items())
    return start + pairs + b"\x42" + _number(len(payload)) + payload + b"\x4a\x03log"


def data_frame(message_id: str, payload: bytes, total: int, number: int) -> bytes:
    """An event, or a part of one."""
    headers = {"message_id": message_id, "trace_id": "trace", "sum": str(total), "seq": str(number), "type": "event"}
    return _frame(1, headers, payload)


def pong_frame(config: dict[str, Any]) -> bytes:
    """The answer to a ping."""
    return _frame(0, {"type": "pong"}, json.dumps(config).encode())


def parse_frame(data: bytes) -> dict[str, Any]:
    """The fields of a frame; AssertionError where a required one is missing."""
    found: dict[str, Any] = {"headers": {}, "payload": b""}
    names = {1: "seq", 2: "log", 3: "service", 4: "method"}
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value += (byte % 128) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        tag = number()
        if tag % 8 == 0:
            found[names[tag // 8]] = number()
            continue
        assert tag % 8 == 2, f"wire type {tag % 8}"
        size = number()
        chunk, place = data[place : place + size], place + size
        if tag // 8 == 5:
            key = chunk[2 : 2 + chunk[1]]
            rest = chunk[2 + chunk[1] :]
            found["headers"][key.decode()] = rest[2:].decode() if rest[1] < 128 else rest[3:].decode()
        elif tag // 8 == 8:
            found["payload"] = chunk
    assert set(names.values()) <= set(found), f"a required field is missing: {found}"
    return found


def card_problem(card: Any) -> str | None:
    """The first error in a card, by the published structure of cards (JSON 2.0)."""
    if not isinstance(card, dict) or set(card) != {"schema", "config", "body"} or card["schema"] != "2.0":
        return "a card has schema 2.0, config and body"
    if card["config"] != {"update_multi": True}:
        return "update_multi must be true for cards that are updated"
    elements = card["body"].get("elements")
    if set(card["body"]) != {"elements"} or not elements:
        return "a card has elements"
    for one in elements:
        if one["tag"] == "markdown" and set(one) == {"tag", "content"} and isinstance(one["content"], str):
            if "<at " in one["content"] or "](img_" in one["content"] or "![" in one["content"]:
                return "a card of the agent calls people, or shows a picture that was not uploaded"
            continue
        if one["tag"] == "div" and one["text"]["tag"] == "plain_text" and isinstance(one["text"]["content"], str):
            continue
        if one["tag"] == "button" and set(one) == {"tag", "text", "behaviors"} and _calls_back(one["behaviors"]):
            continue
        return f"an element of a card: {one}"
    return None


def _calls_back(behaviors: Any) -> bool:
    return [set(one) for one in behaviors] == [{"type", "value"}] and behaviors[0]["type"] == "callback"
