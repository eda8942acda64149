"""`hermes web`: the record in a browser."""

from __future__ import annotations

import secrets
import webbrowser

import click

from hermes.cli.common import user_option
from hermes.cli.shared import configuration, listening_socket, opened, serve_http
from hermes.errors import MissingExtra

_PAGES = 8192  # open pages, each a connection: as many descriptors are asked for


@click.command(
    help="Open the record in a browser: search, read, tidy, talk.\n\nThe page is on this machine alone, behind the link with"
    " the token that is printed. Another address (--host, web.host) needs web.password or web.user_header in config.yaml."
)
@click.option("--host", metavar="ADDRESS", help="Where to listen; default: web.host (127.0.0.1).")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="PORT", help="The port; default: web.port, else a free one."
)
@user_option("Show only what this user may see, such as telegram:42; read-only.")
@click.option("--read-only", is_flag=True, help="Offer nothing that changes a conversation.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
def command(
    host: str | None, port: int | None, user: tuple[str, str] | None, read_only: bool, no_browser: bool
) -> None:
    try:
        import uvicorn  # noqa: F401

        from hermes.serve.web.app import app
        from hermes.serve.web.visitors import Visitor, check_settings, is_loopback
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "markdown_it", "pygments"):
            raise
        raise MissingExtra("hermes web", "serve") from None
    config = configuration()
    config.require_set("web")
    host, port = host or config.web.host, config.web.port if port is None else port
    check_settings(config.web, host)
    visitor = Visitor(user, read_only or user is not None)
    token, once = secrets.token_urlsafe(24), None if no_browser else secrets.token_urlsafe(24)
    _allow_many_connections()
    with (
        opened(writing=not visitor.read_only) as db,
        listening_socket(host, port, change="with --host or --port") as listening,
    ):
        shown = f"[{host}]" if ":" in host else host
        link = f"http://{shown}:{listening.getsockname()[1]}/?token="
        click.echo(link + token)
        if once is not None:
            webbrowser.open(link + once)
        page = app(db, config, token, visitor, local=is_loopback(host), once=once)
        serve_http(page, listening)


def _allow_many_connections() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _PAGES if hard == resource.RLIM_INFINITY else min(_PAGES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
