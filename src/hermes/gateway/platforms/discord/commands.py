"""Discord's own menu of slash commands: writing it, and acknowledging a command.

A command has one optional text, "arguments", and becomes the text "/name arguments" like everywhere else. Its reply is
a normal message in the channel, so the "thinking" line that Discord shows for it is removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import discord
from discord.http import Route

from hermes.errors import PlatformUnreachable
from hermes.gateway.events import Choice

_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_MOST = 100
_DEFERRED_REPLY = 5
_DEFERRED_PRESS, _CHANGED = 6, 7
SAYS = "says:"  # in the id of a button, before its number and what it says
_EPHEMERAL = 64  # only the sender of the command sees the line


async def write_menu(client: discord.Client, commands: Sequence[tuple[str, str]]) -> None:
    """Write these commands (name, help) into the menu, if it differs: Discord limits the changes a day."""
    application = client.application_id
    if application is None:
        raise PlatformUnreachable("Discord has not sent our application's id")
    named = {name: words for name, words in commands if _NAME.fullmatch(name)}
    wanted = [_command(name, words) for name, words in list(named.items())[:_MOST]]
    there: Sequence[Mapping[str, Any]] = await client.http.get_global_commands(application)
    if _as_seen(there) != _as_seen(wanted):
        await client.http.bulk_upsert_global_commands(application, wanted)


def buttons(choices: Sequence[Choice]) -> discord.ui.View:
    """Buttons for a message. The library does not wait for presses: they are interactions like others."""
    view = discord.ui.View(timeout=None)
    for number, one in enumerate(choices):  # ids must differ, also of two that say the same
        view.add_item(discord.ui.Button(label=one.label[:80], custom_id=f"{SAYS}{number}:{one.says}"))
    view.stop()
    return view


async def defer(client: discord.Client, interaction: discord.Interaction) -> None:
    """Acknowledge a command; Discord waits 3 seconds for that, and shows "thinking" from then on."""
    path = "/interactions/{webhook_id}/{webhook_token}/callback"
    answer: dict[str, Any] = {"type": _DEFERRED_REPLY, "data": {"flags": _EPHEMERAL}}
    if interaction.type is discord.InteractionType.component:  # in a direct message the buttons go: one is pressed once
        alone = interaction.guild_id is None
        answer = {"type": _CHANGED, "data": {"components": []}} if alone else {"type": _DEFERRED_PRESS}
    route = Route("POST", path, webhook_id=interaction.id, webhook_token=interaction.token)
    await client.http.request(route, json=answer)


async def clear(client: discord.Client, interaction: discord.Interaction) -> None:
    """Remove the "thinking" line; that works for the 15 minutes an interaction lasts."""
    path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
    route = Route("DELETE", path, webhook_id=interaction.application_id, webhook_token=interaction.token)
    await client.http.request(route)


def _command(name: str, words: str) -> dict[str, Any]:
    option = {"type": 3, "name": "arguments", "description": "What comes after the command", "required": False}
    return {"name": name, "type": 1, "description": words.strip()[:100] or name, "options": [option]}


def _as_seen(commands: Sequence[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    """The visible fields of commands, to see whether anything changed."""
    return {
        (one["name"], one.get("type", 1), one.get("description"), *(part["name"] for part in one.get("options") or ()))
        for one in commands
    }
