"""Makes the sample files beside this script, with the other program's own public API.

    python make.py FILE            in an environment that has the other program, not this one
    python make.py --open FILE     the same for a file of ours: what that program does to it

Then `gzip -n9 FILE`. The samples are what that program really writes, so nothing here knows our store.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import hermes_state

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(200))).decode()
PARTS = [
    {"type": "text", "text": "which bird is this, a kestrel?"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
]
CALLS = [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls plumage"}'}}]


def fill(db: Any) -> None:
    db.create_session("parts", source="cli", model="m", model_config={"a": 1}, system_prompt="You are.", user_id="u")
    db.append_message("parts", "user", content=PARTS)
    db.append_message("parts", "assistant", content="A kestrel.", reasoning="", finish_reason="stop")
    db.set_session_title("parts", "Birds")
    db.update_token_counts("parts", input_tokens=100, output_tokens=20, cache_read_tokens=900, cache_write_tokens=50)

    db.create_session("tools", source="cli")
    db.append_message("tools", "user", content="list the plumage folder")
    db.append_message("tools", "assistant", content="", tool_calls=CALLS, reasoning="look first")
    db.append_message("tools", "tool", content="feather.txt", tool_name="terminal", tool_call_id="c1")
    db.append_message("tools", "assistant", content="One file.")
    db.end_session("tools", "compression")
    db.create_session("tools-2", source="cli", parent_session_id="tools")
    db.append_message("tools-2", "user", content="summary: one feather")
    db.append_message("tools-2", "assistant", content="Going on.")
    db.set_meta("theme", "dark")
    if hasattr(db, "rewind_to_message"):
        fill_newer(db)


def fill_newer(db: Any) -> None:
    db.create_session("undone", source="cli")
    said = [
        db.append_message("undone", "user", content="one"),
        db.append_message("undone", "assistant", content="first"),
    ]
    said += [db.append_message("undone", "user", content="withdrawn question")]
    db.append_message("undone", "assistant", content="withdrawn answer")
    db.rewind_to_message("undone", said[2])
    db.append_message("undone", "user", content="another question")

    if not hasattr(db, "archive_and_compact"):  # schema 16
        return
    db.create_session("compacted", source="telegram", user_id="42", chat_id="c9", chat_type="dm", session_key="k:c9")
    for number in range(4):
        role = ("user", "assistant")[number % 2]
        more = {"api_content": "as it was sent"} if number == 2 else {}
        db.append_message("compacted", role, content=f"marsh note {number}", platform_message_id=f"tg-{number}", **more)
    db.archive_and_compact("compacted", [{"role": "user", "content": "SUMMARY of the notes"}])
    db.append_message("compacted", "assistant", content="after it", platform_message_id="tg-9")

    db.create_session("archived", source="cli")
    db.append_message("archived", "user", content="put away")
    db.set_session_archived("archived", True)


def open_ours(db: Any) -> None:
    """`ours` has the messages 1 to 4, the last one undone."""
    db.append_message("ours", "user", content="written beside")
    db.append_message("ours", "user", content=PARTS, platform_message_id="tg-1")
    undone = db.append_message("ours", "user", content="withdrawn there")
    db.rewind_to_message("ours", undone)
    db.create_session("theirs", source="cli")
    db.append_message("theirs", "user", content="a session of theirs")
    db.set_session_archived("theirs", True)


if __name__ == "__main__":
    file = Path(sys.argv[-1])
    database = hermes_state.SessionDB(db_path=file)
    (open_ours if sys.argv[1] == "--open" else fill)(database)
    database.close()
