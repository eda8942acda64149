"""`hermes mcp`: the record as tools for other agents, over standard input and output or over HTTP."""

from __future__ import annotations

import socket

import click

from hermes.cli.shared import opened
from hermes.errors import MissingExtra


@click.command(
    help="Serve the record to other agents by the Model Context Protocol: search, read and list conversations."
)
@click.option(
    "--http",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Over HTTP on 127.0.0.1 (path /mcp), not stdio.",
)
@click.option("--write", is_flag=True, help="Also offer tools that tag, title and add notes.")
@click.option("--user", metavar="SOURCE:ID", help="Only what this user may see, such as telegram:42.")
def command(port: int | None, write: bool, user: str | None) -> None:
    try:
        from hermes.serve.mcp_server import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise MissingExtra("hermes mcp", "chat") from None
    seen_by = None if user is None else _user(user)
    with opened(writing=write) as db:
        made = server(db, write=write, user=seen_by)
        if port is None:
            made.run("stdio")
        else:
            import uvicorn

            with _listening(port) as listening:
                click.echo(f"http://127.0.0.1:{port}/mcp", err=True)
                app = made.streamable_http_app(host="127.0.0.1")
                settings = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
                uvicorn.Server(settings).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    """Bound before the address is printed, so that a client that is quicker than the server waits."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
        made.listen(128)
    except OSError as error:
        made.close()
        raise click.ClickException(
            f"can't listen on 127.0.0.1:{port} ({error.strerror}); name another port with --http"
        ) from None
    return made


def _user(text: str) -> tuple[str, str]:
    source, _, user_id = text.partition(":")
    if not source or not user_id:
        raise click.BadParameter(f"{text!r} is not a user: write SOURCE:ID, such as telegram:42")
    return source, user_id
