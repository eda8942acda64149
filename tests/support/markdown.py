"""Markdown in which anything can follow anything, for tests of what platforms make of it."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = [
    "# ", "## ", "#### ", "**", "*", "__", "_", "~~", "||", "`", "``", "```", "````", "~~~", "```python\n", "\n```\n", "\n", "\n\n",
    "- ", "+ ", "  - ", "1. ", "7) ", "0. ", "- [ ] ", "- [x] ", "> ", ">>> ", "---\n", "---", "  ", "    ", "\t", "\r", " ", "|", "|---|",
    "\n| a | b |\n|---|:-:|\n| c | d |\n", "[x](https://x.test/a)", "[x](", "![y](http://a/b.png)", "![", "](", ")", "[a]: http://b\n",
    "[x](tg://user?id=1)", "https://x.test", "javascript:alert(1)", "<b>", "</b>", "</p>", "<script>", "<img src=x>", "<!--", "<!-- -->",
    "<", "&", "&amp;", "&lt;", '"', "\\", "@room", "@all", "@everyone", "<@123>", "word ", "wörter", "漢字", "👩‍👩‍👧", "😀", "\u200b", "\x00",
    "\ud800", "\ufffc",
]  # fmt: skip
MARKDOWN = st.one_of(
    st.text(max_size=300),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=60).map("".join),
)
