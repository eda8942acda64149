"""Large JSON files of exports are read piece by piece."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hermes.interop.json_reading import elements

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


class Chunks(io.BytesIO):
    """A stream that gives few bytes at a time, whatever is asked for."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(3)


@given(st.lists(st.dictionaries(st.text(), json_values), max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_elements_of_an_array_come_one_by_one_as_they_are(values: list[Any], ascii_: bool, indent: int | None) -> None:
    data = json.dumps(values, ensure_ascii=ascii_, indent=indent).encode("utf-8", "surrogatepass")
    assert [value for value, _ in elements(Chunks(data))] == values
    for value in values:
        assert [one for one, _ in elements(io.BytesIO(json.dumps(value).encode()))] == [value]
