"""sessions.json: the routing table as a file, for whoever wants to look. The table is the truth; the file follows it lazily."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.home import make_private

if TYPE_CHECKING:
    from hermes.store.gateway_db import GatewayDB

VERSION = 1


def entries(store: GatewayDB) -> dict[str, Any]:
    """Key → what is known of its session."""
    return {row["key"]: _entry(row) for row in store.index()}


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    tokens = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
    return {
        "session_id": row["session_id"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "platform": row["platform"],
        "chat_type": row["chat_type"],
        "display_name": row["display_name"],
        "title": row["title"],
        "origin": {**json.loads(row["chat"]), "user_id": row["user_id"]},
        "messages": row["message_count"] or 0,
        **{name: row[name] or 0 for name in tokens},
        "flags": {
            "shared": bool(row["shared"]),
            "reset": row["reset_reason"],
            "previous_session_id": row["previous_id"],
        },
        "last_user_at": row["last_user_at"],
    }


def write_index(store: GatewayDB, folder: Path) -> Path:
    """Write the file anew, all or nothing; where it is."""
    make_private(folder)
    target = folder / "sessions.json"
    handle, name = tempfile.mkstemp(prefix=".sessions-", suffix=".json", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "sessions": entries(store)}, file, ensure_ascii=False, indent=1)
            file.write("\n")
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target
