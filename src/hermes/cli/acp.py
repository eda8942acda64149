"""`hermes acp`: the agent inside an editor, over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import sys

import click

from hermes.errors import MissingExtra


@click.command(
    help="Serve an editor (Zed, Neovim, JetBrains) by the Agent Client Protocol, over standard input and output."
)
@click.option("--model", "model_name", metavar="NAME", help="The model that answers, instead of the configured one.")
def command(model_name: str | None) -> None:
    try:
        from hermes.serve.acp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise MissingExtra("hermes acp", "acp") from None
    from hermes.agent.model_choice import choose_model
    from hermes.config import load_config
    from hermes.store.opening import open_configured

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    config = load_config()
    if model_name is not None:
        config.model.default = model_name
    with open_configured(config) as db:
        asyncio.run(serve(db, config, choose_model(config, db), keep_model=model_name is not None))
