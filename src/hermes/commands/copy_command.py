"""/copy: a code block of the last reply, or the reply itself, to the clipboard of the terminal (OSC 52)."""

from __future__ import annotations

import sys
from base64 import b64encode

from hermes.commands.info_commands import whole_number
from hermes.commands.registry import TERMINAL_ONLY, Host, command
from hermes.errors import InvalidInput
from hermes.texts import content_text, counted

MOST = 74_000  # bytes; terminals ignore longer ones


@command("copy", "[n]", "copy the last code block (or the n-th), else the reply", TERMINAL_ONLY)
def copy(host: Host, arguments: str) -> None:
    rows = host.db.get_messages(host.session_id)
    reply = next((content_text(row["content"]) for row in reversed(rows) if row["role"] == "assistant"), "").strip()
    if not reply:
        raise InvalidInput("there is no reply to copy yet")
    blocks = code_blocks(reply)
    number = whole_number(arguments, "/copy", default=len(blocks) or 1)
    if arguments and number > len(blocks):
        raise InvalidInput(f"the last reply has {counted(len(blocks), 'code block')}")
    text = blocks[number - 1] if blocks else reply
    if len(text.encode()) > MOST:
        raise InvalidInput(f"this is too long for a terminal's clipboard (more than {MOST:,} bytes)")
    sys.stdout.write(f"\x1b]52;c;{b64encode(text.encode()).decode()}\x07")
    sys.stdout.flush()
    what = f"code block {number} of {len(blocks)}" if blocks else "the reply"
    host.say(f"Copied {what}: {counted(text.count(chr(10)) + 1, 'line')}. (The terminal must allow OSC 52.)")


def code_blocks(text: str) -> list[str]:
    """The contents of the fences in a Markdown text, without the fences."""
    from markdown_it import MarkdownIt

    return [token.content.rstrip("\n") for token in MarkdownIt().parse(text) if token.type in ("fence", "code_block")]
