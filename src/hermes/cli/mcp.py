"""`hermes mcp`: the record as tools for other agents, over standard input and output or over HTTP."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.groups import CommandGroup
from hermes.cli.mcp_install import install
from hermes.cli.options import user_option
from hermes.cli.output import note_the_terminal
from hermes.cli.record import configuration, opened
from hermes.cli.services import listening_socket, serve_http
from hermes.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    help="Let other agents search, read and list conversations, by the Model Context Protocol.\n\nOver HTTP,"
    " clients send the token of mcp.token in config.yaml; without one, a token is made for this run and printed.",
)
@click.option(
    "--http", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Over HTTP (path /mcp), not stdio; 0: a free port."
)  # fmt: skip
@click.option("--host", metavar="ADDRESS", help="Where to listen; default: 127.0.0.1.")
@click.option("--no-token", is_flag=True, help="Every program and user of this machine may use it; 127.0.0.1 alone.")
@click.option("--write", is_flag=True, help="Also offer tools that tag, title and add notes.")
@user_option("Only what this user may see, such as telegram:42.")
@click.pass_context
def command(
    context: click.Context,
    port: int | None,
    host: str | None,
    no_token: bool,
    write: bool,
    user: tuple[str, str] | None,
) -> None:
    if context.invoked_subcommand is not None:
        if port is not None or host or no_token or write or user:
            raise click.UsageError(f"`hermes mcp {context.invoked_subcommand}` goes without the options of the server")
        return
    try:
        from hermes.serve.mcp import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise MissingExtra("hermes mcp", "chat") from None
    if port is None and (host or no_token):
        raise click.UsageError("--host and --no-token belong to --http PORT")
    with ExitStack() as stack:
        if port is None:
            note_the_terminal("hermes mcp", "other programs (Claude Code, Codex, editors)", "hermes mcp install --help")
            server(stack.enter_context(opened(writing=write)), write=write, user=user).run("stdio")
            return
        host, token, hint = _settings(host, no_token)
        listening = stack.enter_context(
            listening_socket(host, port, change="port with --http")
        )  # before the store is opened: a taken port is reported at once
        db = stack.enter_context(opened(writing=write))
        app = _guarded(server(db, write=write, user=user), host, token)
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"http://{shown}:{listening.getsockname()[1]}/mcp ({hint})", err=True)
        serve_http(app, listening)


command.add_command(install)


def _settings(host: str | None, no_token: bool) -> tuple[str, str | None, str]:
    """The address to listen on, the token of clients, and what to print about it; ConfigError when anyone could use it."""
    from hermes.serve.authorization import check_reach
    from hermes.serve.http import is_loopback

    config = configuration()
    config.require_set("mcp")
    config.require_known("mcp")
    host, configured = host or "127.0.0.1", (config.mcp.token or "").strip()
    if no_token:
        if not is_loopback(host):
            raise ConfigError(
                f"--no-token would give everyone who reaches {host} the record: set mcp.token, or listen on 127.0.0.1"
            )
        return host, None, "no token: every program of this machine has access"
    token = configured or secrets.token_urlsafe(24)
    check_reach(host, token, False, what="hermes mcp", hint="make mcp.token longer, or listen on 127.0.0.1")
    return host, token, f"Authorization: Bearer{', with mcp.token of config.yaml' if configured else f' {token}'}"


def _guarded(made: Any, host: str, token: str | None) -> ASGIApp:
    """The server behind its token; on this machine alone, it also refuses requests from web pages of other hosts."""
    from hermes.serve.authorization import Guard
    from hermes.serve.http import is_loopback

    app = made.streamable_http_app(host="127.0.0.1" if is_loopback(host) else host)
    return Guard(app, token or "")
