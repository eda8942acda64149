"""`hermes acp`, `mcp` and `web`: the agent in an editor, the record as tools of other agents, and the record in a browser."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hermes.cli.mcp_install import install
from hermes.cli.options import CommandGroup, flag, model_option, user_option
from hermes.cli.output import message
from hermes.cli.record import configuration, open_record, opened
from hermes.cli.services import WEB
from hermes.config import load_config
from hermes.errors import MissingExtra
from hermes.home import get_hermes_home, make_private, write_whole

_WEB_PORT = 8646  # port of the service if web.port is not set


@contextmanager
def _library(command: str, extra: str, *names: str) -> Iterator[None]:
    """Name the extra to install where one of these libraries is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in names:
            raise
        raise MissingExtra(command, extra) from None


def _note_the_terminal(command: str, clients: str, setup: str) -> None:
    """Note on a terminal that this command waits for a program, not for a person; `setup` shows how to connect one."""
    if sys.stdin.isatty():
        text = f"`{command}` waits for messages of {clients}; `{setup}` shows how to set that up. Ctrl-C stops it."
        print(message(text, sys.stderr), file=sys.stderr)


@click.command()
@model_option()
def acp(model_name: str | None) -> None:
    """Serve an editor over standard input and output, by the Agent Client Protocol.

    \b
    Zed, in ~/.config/zed/settings.json:
      "agent_servers": {"Hermes": {"type": "custom", "command": "hermes", "args": ["acp"]}}
    JetBrains, in ~/.jetbrains/acp.json:
      "agent_servers": {"Hermes": {"command": "hermes", "args": ["acp"]}}
    Neovim (avante), in its setup:
      provider = "hermes", acp_providers = { hermes = { command = "hermes", args = { "acp" } } }
    """
    import asyncio
    import logging

    with _library("hermes acp", "acp", "acp"):
        from hermes.serve.acp_server import serve
    from hermes.agent.models.choice import choose_model

    for stream, name in ((sys.stdin, "input"), (sys.stdout, "output")):
        mode = os.fstat(stream.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()):  # asyncio can't wait for a file
            problem = f"an editor talks to `hermes acp` through pipes, but standard {name} is not a pipe"
            raise click.ClickException(f"{problem}; `hermes acp --help` shows how to set up an editor")
    _note_the_terminal("hermes acp", "an editor", "hermes acp --help")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    config = load_config()
    if model_name is not None:
        config.model.default = model_name
    with open_record(config) as db:
        asyncio.run(serve(db, config, choose_model(config, db), keep_model=model_name is not None))


# ------------------------------------------------------------------------------------------------ mcp


@click.group(cls=CommandGroup, invoke_without_command=True)
@flag("--write", "Also offer tools that tag, title and add notes.")
@user_option("Only what this user may see, such as telegram:42.")
@click.pass_context
def mcp(context: click.Context, write: bool, user: tuple[str, str] | None) -> None:
    """Let other agents search, read and list conversations, by the Model Context Protocol over standard input and output."""
    if context.invoked_subcommand is not None:
        if write or user:
            raise click.UsageError(f"`hermes mcp {context.invoked_subcommand}` goes without the options of the server")
        return
    with _library("hermes mcp", "chat", "mcp", "pydantic"):
        from hermes.serve.mcp import server
    _note_the_terminal("hermes mcp", "other programs (Claude Code, Codex, editors)", "hermes mcp install --help")
    with opened(writing=write) as db:
        server(db, write=write, user=user).run("stdio")


mcp.add_command(install)


# ------------------------------------------------------------------------------------------------ web


@click.command()
@click.option("--host", metavar="ADDRESS", help="Where to listen; default: this machine (127.0.0.1) alone.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="PORT",
    help=f"The port; default: web.port, else a free one (with --install {_WEB_PORT}).",
)  # fmt: skip
@user_option("Show only what this user may see, such as telegram:42; read-only.")
@flag("--read-only", "Offer nothing that changes a conversation.")
@flag("--no-browser", "Only print the link.")
@flag("--install", "Keep the page there, as a service of yours, and print its lasting link.", "installs")
@flag("--uninstall", "Stop and remove that service; its link is then worth nothing.")
def web(
    host: str | None, port: int | None, user: tuple[str, str] | None, read_only: bool, no_browser: bool,
    installs: bool, uninstall: bool,
) -> None:  # fmt: skip
    """Open the record in a browser: search, read, tidy, talk.

    The page is on this machine alone, behind the link with the token that is printed. Another address (--host, web.host)
    needs web.password or web.user_header in config.yaml.
    """
    if installs and uninstall:
        raise click.UsageError("--install and --uninstall go without each other")
    token_file = get_hermes_home() / "web.token"  # the token of the lasting link, which only its owner can read
    if uninstall:
        WEB.uninstall()
        token_file.unlink(missing_ok=True)
        return
    with _library("hermes web", "serve", "uvicorn", "starlette", "markdown_it", "pygments"):
        import uvicorn  # noqa: F401

        from hermes.serve.http import bound, is_loopback
        from hermes.serve.web.app import app
        from hermes.serve.web.visitors import Visitor, check_settings
    config = configuration()
    config.require_set("web")
    host, port = host or config.web.host, config.web.port if port is None else port
    check_settings(config.web, host)
    if installs:
        options = ["--read-only"] * read_only + (["--user", ":".join(user)] if user else [])
        _install_page(host, port or _WEB_PORT, options, token_file)
        return
    visitor = Visitor(user, read_only or user is not None)
    lasting = token_file.read_text().strip() if token_file.exists() else ""
    token, once = lasting or secrets.token_urlsafe(24), None if no_browser else secrets.token_urlsafe(24)
    listening = bound(host, port)
    with opened(writing=not visitor.read_only) as db:
        address = f"http://{_in_url(host)}:{listening[0].getsockname()[1]}"
        # A service prints into a log that others may read.
        click.echo(address if lasting and not sys.stdout.isatty() else f"{address}/?token={token}")
        if once is not None:
            import webbrowser

            webbrowser.open(f"{address}/?token={once}")
        _serve_http(app(db, config, token, visitor, local=is_loopback(host), once=once), listening)


def _install_page(host: str, port: int, options: list[str], token_file: Path) -> None:
    """Install the page as a service at a fixed address, and print its lasting link."""
    from hermes.serve.http import check_address

    address = f"http://{_in_url(host)}:{port}"
    if not WEB.path.exists():
        check_address(host, port)  # a taken port is reported now, not in a log
    if not token_file.exists():
        make_private(token_file.parent)
        write_whole(token_file, secrets.token_urlsafe(24) + "\n")
    words = ("--no-browser", "--host", host, "--port", str(port), *options)
    replace(WEB, words=(*WEB.words, *words)).install()
    click.echo(f"The page:  {address}/?token={token_file.read_text().strip()}")


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _serve_http(app: Any, listening: list[socket.socket]) -> None:
    """Serve an application on sockets until Ctrl-C."""
    import uvicorn

    from hermes.serve.http import guarded_protocol

    settings = uvicorn.Config(
        app, http=guarded_protocol(), log_level="warning", access_log=False, proxy_headers=False,
        server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(settings).run(sockets=listening)
