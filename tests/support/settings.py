"""The home of the guide's page about configuration: empty, with nothing of this machine in sight."""

from __future__ import annotations

from pathlib import Path


def guide(home: Path) -> dict[str, str]:
    """A home that is also found as ~/.hermes, and variables that keep models of this machine out of the story."""
    (home.parent / ".hermes").symlink_to(home)
    names = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENROUTER_API_KEY", "HERMES_MODEL")
    return {"HERMES_NO_LOCAL": "1", **dict.fromkeys(names, "")}
