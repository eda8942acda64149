"""The elements of a JSON array one by one, so that an export of gigabytes is read in the memory of its largest element."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Any

from hermes.interop.jsonl import decoded

_CHUNK = 1 << 20
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[\[\]{}]', re.DOTALL)


def elements(stream: IO[bytes]) -> Iterator[tuple[Any, int]]:
    """Each object of the array in a stream (or the one object that it is) and the bytes read so far.

    ValueError where an element is no JSON, or the stream ends inside one.
    """
    buffer = b""
    position = depth = at = 0
    start = -1  # where the element that is being read begins
    outer: int | None = None  # the depth of elements: 1 in an array, 0 for an object alone
    while chunk := stream.read(max(_CHUNK, len(buffer))):
        position += len(chunk)
        keep = start if start >= 0 else at
        buffer, at, start = buffer[keep:] + chunk, at - keep, 0 if start >= 0 else -1
        for match in _TOKEN.finditer(buffer, at):
            at = match.end()
            if match[0][0] == 0x22:
                if not match[1]:  # the string goes on in the next chunk
                    at = match.start()
                    break
            elif match[0] in b"[{":
                if outer is None:
                    outer = 1 if match[0] == b"[" else 0
                if depth == outer:
                    start = match.start()
                depth += 1
            else:
                depth -= 1
                if depth == outer and start >= 0:
                    yield decoded(buffer[start:at]), position - len(buffer) + at
                    start = -1
                if depth <= 0:
                    return
        else:
            at = len(buffer)
    if depth > 0:
        raise ValueError("the file ends in the middle of a conversation")
