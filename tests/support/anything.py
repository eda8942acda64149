"""Values of any JSON, for what a vendor may push: nothing of it makes an adapter fail."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def anything(*names: str, floats: bool = False) -> st.SearchStrategy[Any]:
    """Nested JSON; the keys of its objects are some of these names, or any text."""
    keys = st.sampled_from(names) if names else st.text(max_size=8)
    leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
    return st.recursive(
        leaves | st.floats() if floats else leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=8,
    )
