"""`hermes acp`, `mcp` and `web`: the agent in an editor, the record as tools of other agents, and the record in a browser."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from hermes.errors import ConfigError, MissingExtra
from hermes.home import get_hermes_home, make_private, write_whole

_WEB_PORT = 8646  # port of the service if web.port is not set
host_option = click.option(
    "--host", metavar="ADDRESS", help="Where to listen; default: this machine (127.0.0.1) alone."
)


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
@click.option(
    "--http", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Over HTTP (path /mcp); 0: a free port."
)
@host_option
@flag("--no-token", "Every program and user of this machine may use it; 127.0.0.1 alone.")
@flag("--write", "Also offer tools that tag, title and add notes.")
@user_option("Only what this user may see, such as telegram:42.")
@click.pass_context
def mcp(
    context: click.Context,
    port: int | None,
    host: str | None,
    no_token: bool,
    write: bool,
    user: tuple[str, str] | None,
) -> None:
    """Let other agents search, read and list conversations, by the Model Context Protocol.

    Over HTTP, clients send the token of mcp.token in config.yaml; without one, a token is made for this run and printed.
    """
    if context.invoked_subcommand is not None:
        if port is not None or host or no_token or write or user:
            raise click.UsageError(f"`hermes mcp {context.invoked_subcommand}` goes without the options of the server")
        return
    if port is None and (host or no_token):
        raise click.UsageError("--host and --no-token belong to --http PORT")
    with _library("hermes mcp", "chat", "mcp", "pydantic"):
        from hermes.serve.mcp import server
    if port is None:
        _note_the_terminal("hermes mcp", "other programs (Claude Code, Codex, editors)", "hermes mcp install --help")
        with opened(writing=write) as db:
            server(db, write=write, user=user).run("stdio")
        return
    from hermes.serve.authorization import Guard
    from hermes.serve.http import is_loopback

    host, token, hint = _mcp_settings(host or "127.0.0.1", no_token)
    with ExitStack() as stack:  # a taken port is reported before the store is opened
        listening = stack.enter_context(_listening(host, port, change="port with --http"))
        made = server(stack.enter_context(opened(writing=write)), write=write, user=user)
        # on this machine alone, it also refuses requests from web pages of other hosts
        app = made.streamable_http_app(host="127.0.0.1" if is_loopback(host) else host)
        click.echo(f"{_address(host, listening)}/mcp ({hint})", err=True)
        _serve_http(Guard(app, token or ""), listening)


mcp.add_command(install)


def _mcp_settings(host: str, no_token: bool) -> tuple[str, str | None, str]:
    """The address to listen on, the token of clients, and what to print about it; ConfigError when anyone could use it."""
    from hermes.serve.authorization import check_reach
    from hermes.serve.http import is_loopback

    config = configuration()
    config.require_set("mcp")
    config.require_known("mcp")
    if no_token:
        if not is_loopback(host):
            what = f"--no-token would give everyone who reaches {host} the record"
            raise ConfigError(f"{what}: set mcp.token, or listen on 127.0.0.1")
        return host, None, "no token: every program of this machine has access"
    configured = (config.mcp.token or "").strip()
    token = configured or secrets.token_urlsafe(24)
    check_reach(host, token, False, what="hermes mcp", hint="make mcp.token longer, or listen on 127.0.0.1")
    return host, token, f"Authorization: Bearer{', with mcp.token of config.yaml' if configured else f' {token}'}"


# ------------------------------------------------------------------------------------------------ web


@click.command()
@host_option
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

        from hermes.serve.http import is_loopback
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
    with (
        opened(writing=not visitor.read_only) as db,
        _listening(host, port, change="with --host or --port") as listening,
    ):
        address = _address(host, listening)
        # A service prints into a log that others may read.
        click.echo(address if lasting and not sys.stdout.isatty() else f"{address}/?token={token}")
        if once is not None:
            import webbrowser

            webbrowser.open(f"{address}/?token={once}")
        _serve_http(app(db, config, token, visitor, local=is_loopback(host), once=once), listening)


def _install_page(host: str, port: int, options: list[str], token_file: Path) -> None:
    """Install the page as a service at a fixed address, and print its lasting link."""
    address = f"http://{_in_url(host)}:{port}"
    if not WEB.path.exists():
        _listening(host, port, change="with --port").close()  # a taken port is reported now, not in a log
    if not token_file.exists():
        make_private(token_file.parent)
        write_whole(token_file, secrets.token_urlsafe(24) + "\n")
    words = ("--no-browser", "--host", host, "--port", str(port), *options)
    replace(WEB, words=(*WEB.words, *words)).install()
    click.echo(f"The page:  {address}/?token={token_file.read_text().strip()}")


# ------------------------------------------------------------------------------------------------ a port


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(host: str, listening: socket.socket) -> str:
    return f"http://{_in_url(host)}:{listening.getsockname()[1]}"


def _listening(host: str, port: int, *, change: str) -> socket.socket:
    """A listening socket: clients that connect before the server runs wait. `change`: the options that choose another address."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        problem = f"{host!r} is not an address of this machine ({error})"
        raise click.ClickException(f"{problem}; name another with --host") from None
    made = socket.socket(family, kind, number)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(512)
    except OSError as error:
        made.close()
        raise click.ClickException(f"can't listen on {host}:{port} ({error.strerror}); name another {change}") from None
    return made


def _serve_http(app: Any, listening: socket.socket) -> None:
    """Serve an application on a socket until Ctrl-C."""
    import uvicorn

    from hermes.serve.http import Limits, guarded_protocol

    settings = uvicorn.Config(
        app, http=guarded_protocol(Limits()), log_level="warning", access_log=False, proxy_headers=False,
        server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(settings).run(sockets=[listening])
