"""`hermes web`: the record in a browser on this machine."""

from __future__ import annotations

import secrets
import socket
import webbrowser

import click

from hermes.cli.shared import opened
from hermes.errors import MissingExtra


@click.command(help="Open the record in a browser: search, read, tidy. The page is on this machine alone.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; default: a free one.")
@click.option("--user", metavar="SOURCE:ID", help="Show only what this user may see, such as telegram:42; read-only.")
@click.option("--read-only", is_flag=True, help="Offer nothing that changes a conversation.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
def command(port: int, user: str | None, read_only: bool, no_browser: bool) -> None:
    try:
        import uvicorn

        from hermes.serve.web.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "markdown_it", "pygments"):
            raise
        raise MissingExtra("hermes web", "serve") from None
    source, _, user_id = (user or "").partition(":")
    if user is not None and not (source and user_id):
        raise click.BadParameter(f"{user!r} is no user: name it as SOURCE:ID, such as telegram:42")
    token = secrets.token_urlsafe(24)
    with opened(writing=not read_only) as db, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            raise click.ClickException(f"port {port} is in use; name another with --port") from None
        link = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}"
        click.echo(link)
        if not no_browser:
            webbrowser.open(link)
        page = app(db, token, user=(source, user_id) if user else None, read_only=read_only)
        uvicorn.Server(uvicorn.Config(page, log_level="warning", timeout_graceful_shutdown=2)).run(sockets=[listening])
