"""ChatML: each message between <|im_start|>role and <|im_end|>, conversations parted by an empty line. Text only."""

from __future__ import annotations

from collections.abc import Iterator

from hermes.interop.formats import Export
from hermes.interop.jsonl import encoded
from hermes.interop.training import chats

_MARKS = ("<|im_start|>", "<|im_end|>")


def write(export: Export) -> Iterator[bytes]:
    """Exported sessions as ChatML."""
    for chat in chats(export, pictures=False):
        text = ""
        for one in chat:
            said = one.get("content") or ""
            if any(mark in said for mark in _MARKS):  # it would end the message
                export.left_out["marks inside messages"] += 1
                for mark in _MARKS:
                    said = said.replace(mark, mark.replace("|", "¦"))
            calls = "".join(
                f"\n<tool_call>\n{encoded(call.get('function')).decode()}\n</tool_call>"
                for call in one.get("tool_calls", ())
            )
            text += f"<|im_start|>{one['role']}\n{said}{calls}<|im_end|>\n"
        yield (text + "\n").encode("utf-8", "replace")
