"""The frames of Feishu's long connection: the protobuf message `pbbp2.Frame`, written and read without a library.

A frame is a list of numbered fields of two wire types: 1 to 4 are numbers (3: the service, 4: the method), 5 is a header, 8
the payload, others are texts. They are kept as they came, since an acknowledgement is its event's frame with another payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

CONTROL, DATA = 0, 1  # Frame.method
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SERVICE, _METHOD, _HEADER, _PAYLOAD = 3, 4, 5, 8


@dataclass(slots=True)
class Frame:
    """One frame: its fields, in order."""

    fields: list[tuple[int, int | bytes]] = field(default_factory=list)

    @property
    def method(self) -> int:
        """CONTROL or DATA."""
        return next((value for number, value in self.fields if number == _METHOD and isinstance(value, int)), CONTROL)

    @property
    def payload(self) -> bytes:
        """The content; b"" without one."""
        return next((value for number, value in self.fields if number == _PAYLOAD and isinstance(value, bytes)), b"")

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers, in order."""
        return [_header(value) for number, value in self.fields if number == _HEADER and isinstance(value, bytes)]

    def header(self, name: str) -> str:
        """The value of a header; "" without one."""
        return next((value for key, value in self.headers if key == name), "")

    def number(self, name: str, default: int) -> int:
        """A header that is a number; `default` if it is none."""
        value = self.header(name)
        return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else default

    def answer(self, header: tuple[str, str], payload: bytes) -> Frame:
        """This frame with one more header and another payload."""
        added = [(_HEADER, _written(header)), (_PAYLOAD, payload)]
        others = [one for one in self.fields if one[0] != _PAYLOAD]
        return Frame(sorted([*others, *added], key=lambda one: one[0]))


def ping(service: int) -> bytes:
    """The frame that keeps a connection open."""
    return encode(
        Frame([(1, 0), (2, 0), (_SERVICE, service), (_METHOD, CONTROL), (_HEADER, _written(("type", "ping")))])
    )


def encode(frame: Frame) -> bytes:
    """A frame as bytes."""
    return b"".join(
        _varint(number << 3) + _varint(value) if isinstance(value, int) else _chunk(number, value)
        for number, value in frame.fields
    )


def decode(data: bytes) -> Frame:
    """The frame in these bytes; ValueError if they are none."""
    return Frame(list(_fields(data)))


def _header(data: bytes) -> tuple[str, str]:
    try:
        parts = {number: text.decode("utf-8", "replace") for number, text in _fields(data) if isinstance(text, bytes)}
    except ValueError:
        parts = {}
    return parts.get(1, ""), parts.get(2, "")


def _written(header: tuple[str, str]) -> bytes:
    return _chunk(1, header[0].encode()) + _chunk(2, header[1].encode())


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
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _chunk(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data
