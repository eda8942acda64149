"""The lines of a batch: any bytes are read or named."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hermes.jobs.batch_files import Lines

pytestmark = pytest.mark.mechanism


@given(
    some.lists(some.binary(max_size=40) | some.sampled_from([b'"ok"', b"", b" ", b'{"prompt":"x"}', b'{"messages":0}']))
)
def test_every_line_is_read_named_or_blank(raw: list[bytes]) -> None:
    data = b"\n".join(raw)
    lines = Lines(io.BytesIO(data))
    lines.scan()
    numbers = sorted([*(place.number for place in lines.good), *(number for number, _ in lines.bad)])
    filled = [n for n, line in enumerate(data.split(b"\n"), 1) if line.strip().strip(b"\xef\xbb\xbf")]
    assert numbers == filled
    assert len({place.digest for place in lines.good}) == len(lines.good)
    for place in lines.good:
        assert lines.read(place).messages[-1]["role"] == "user"


def test_the_same_line_has_the_same_session_wherever_it_stands() -> None:
    def digests(*lines: str) -> list[str]:
        found = Lines(io.BytesIO("\n".join(lines).encode()))
        found.scan()
        return [place.digest for place in found.good]

    a, b = json.dumps({"prompt": "a"}), json.dumps({"prompt": "b"})
    assert digests(a, b, a)[:2] == digests("", a, b)
    assert sorted(digests(a, b, a)) == sorted(digests(a, a, b))
