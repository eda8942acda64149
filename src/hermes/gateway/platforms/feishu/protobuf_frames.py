"""The frames of Feishu's long connection: the protobuf message `pbbp2.Frame`, written and read without a library.

A frame has at most nine fields, of two wire types; unknown fields are skipped, as protobuf asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

CONTROL, DATA = 0, 1  # Frame.method
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class Frame:
    """One frame. Headers are kept in order; `header` finds one."""

    seq_id: int = 0
    log_id: int = 0
    service: int = 0
    method: int = CONTROL
    headers: list[tuple[str, str]] = field(default_factory=list)
    payload_encoding: str = ""
    payload_type: str = ""
    payload: bytes = b""
    log_id_new: str = ""

    def header(self, name: str) -> str:
        """The value of a header; "" without one."""
        return next((value for key, value in self.headers if key == name), "")

    def number(self, name: str, default: int) -> int:
        """A header that is a number; `default` if it is none."""
        value = self.header(name)
        return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else default


def ping(service: int) -> bytes:
    """The frame that keeps a connection open."""
    return encode(Frame(service=service, method=CONTROL, headers=[("type", "ping")]))


def encode(frame: Frame) -> bytes:
    """A frame as bytes. The four required numbers are always written, texts only where there are any."""
    out = bytearray()
    for number, value in enumerate((frame.seq_id, frame.log_id, frame.service, frame.method), 1):
        out += _tag(number, _VARINT) + _varint(value)
    for key, text in frame.headers:
        out += _chunk(5, _chunk(1, key.encode()) + _chunk(2, text.encode()))
    for number, data in (
        (6, frame.payload_encoding.encode()),
        (7, frame.payload_type.encode()),
        (8, frame.payload),
        (9, frame.log_id_new.encode()),
    ):
        if data:
            out += _chunk(number, data)
    return bytes(out)


def decode(data: bytes) -> Frame:
    """The frame in these bytes; ValueError if they are none."""
    frame = Frame()
    for number, value in _fields(data):
        if number <= 4 and isinstance(value, int):
            setattr(
                frame, ("seq_id", "log_id", "service", "method")[number - 1], _signed(value) if number > 2 else value
            )
        elif number == 5 and isinstance(value, bytes):
            parts = {inner: _text(text) for inner, text in _fields(value) if isinstance(text, bytes)}
            frame.headers.append((parts.get(1, ""), parts.get(2, "")))
        elif number == 8 and isinstance(value, bytes):
            frame.payload = value
        elif number in (6, 7, 9) and isinstance(value, bytes):
            name = {6: "payload_encoding", 7: "payload_type", 9: "log_id_new"}[number]
            setattr(frame, name, _text(value))
    return frame


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field without a number")
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"an unknown wire type {kind}")
        if place + size > len(data):
            raise ValueError("a field is cut off")
        if kind == _BYTES:
            yield number, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("a number is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise ValueError("a number is too long")


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative numbers are written as 64 bits
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> int:
    """An int32 as it was written: negative ones are extended to 64 bits."""
    value &= 2**32 - 1
    return value - 2**32 if value >= 2**31 else value


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _chunk(number: int, data: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(data)) + data


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
