"""The lines of a batch: any bytes are read or named, and a template gives back what was put in."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hermes.jobs.batch_files import Lines, Template

pytestmark = pytest.mark.mechanism

FIELDS = some.dictionaries(some.text("abc_é", min_size=1), some.text(), min_size=1, max_size=3)


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


@given(FIELDS, some.text())
def test_a_template_gives_back_what_was_put_in(fields: dict[str, str], around: str) -> None:
    literal = around.replace("{", "{{").replace("}", "}}")
    template = Template(literal + "".join(f"{{{name}}}{literal}" for name in fields))
    assert template.filled(fields) == around + "".join(f"{value}{around}" for value in fields.values())


def test_the_same_line_has_the_same_session_wherever_it_stands() -> None:
    def digests(*lines: str, template: Template | None = None) -> list[str]:
        found = Lines(io.BytesIO("\n".join(lines).encode()), template)
        found.scan()
        return [place.digest for place in found.good]

    a, b = json.dumps({"prompt": "a"}), json.dumps({"prompt": "b"})
    assert digests(a, b, a)[:2] == digests("", a, b)
    assert sorted(digests(a, b, a)) == sorted(digests(a, a, b))
    assert digests(a) != digests(a, template=Template("{prompt}!"))
