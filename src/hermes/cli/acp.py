"""`hermes acp`: the agent inside an editor, over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys

import click

from hermes.cli.options import model_option
from hermes.cli.output import note_the_terminal
from hermes.errors import MissingExtra


@click.command()
@model_option()
def command(model_name: str | None) -> None:
    """Serve an editor over standard input and output, by the Agent Client Protocol.

    \b
    Zed, in ~/.config/zed/settings.json:
      "agent_servers": {"Hermes": {"type": "custom", "command": "hermes", "args": ["acp"]}}
    JetBrains, in ~/.jetbrains/acp.json:
      "agent_servers": {"Hermes": {"command": "hermes", "args": ["acp"]}}
    Neovim (avante), in its setup:
      provider = "hermes", acp_providers = { hermes = { command = "hermes", args = { "acp" } } }
    """
    try:
        from hermes.serve.acp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise MissingExtra("hermes acp", "acp") from None
    _check_streams()
    from hermes.agent.models.choice import choose_model
    from hermes.cli.arrival import open_record
    from hermes.config import load_config

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    config = load_config()
    if model_name is not None:
        config.model.default = model_name
    with open_record(config) as db:
        asyncio.run(serve(db, config, choose_model(config, db), keep_model=model_name is not None))


def _check_streams() -> None:
    """An editor connects both streams by pipes; asyncio can wait for those, sockets and terminals, but not for files."""
    for stream, name in ((sys.stdin, "input"), (sys.stdout, "output")):
        mode = os.fstat(stream.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()):
            raise click.ClickException(
                f"an editor starts `hermes acp` and talks to it through pipes, but standard {name} is not a pipe;"
                " `hermes acp --help` shows how to set up an editor"
            )
    note_the_terminal("hermes acp", "an editor", "hermes acp --help")
