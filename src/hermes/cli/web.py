"""`hermes web`: the record in a browser."""

from __future__ import annotations

import secrets
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import user_option
from hermes.cli.record import configuration, opened
from hermes.cli.services import listening_socket, serve_http
from hermes.errors import MissingExtra
from hermes.home import get_hermes_home, make_private, write_whole

if TYPE_CHECKING:
    from hermes.cli.services import Service

_PORT = 8646  # port of the service if web.port is not set


@click.command(
    help="Open the record in a browser: search, read, tidy, talk.\n\nThe page is on this machine alone, behind the link with"
    " the token that is printed. Another address (--host, web.host) needs web.password or web.user_header in config.yaml."
)
@click.option("--host", metavar="ADDRESS", help="Where to listen; default: web.host (127.0.0.1).")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="PORT",
    help=f"The port; default: web.port, else a free one (with --install {_PORT}).",
)  # fmt: skip
@user_option("Show only what this user may see, such as telegram:42; read-only.")
@click.option("--read-only", is_flag=True, help="Offer nothing that changes a conversation.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@click.option("--install", is_flag=True, help="Keep the page there, as a service of yours, and print its lasting link.")
@click.option("--uninstall", is_flag=True, help="Stop and remove that service; its link is then worth nothing.")
def command(
    host: str | None, port: int | None, user: tuple[str, str] | None, read_only: bool, no_browser: bool, install: bool,
    uninstall: bool,
) -> None:  # fmt: skip
    try:
        import uvicorn  # noqa: F401

        from hermes.serve.http import is_loopback
        from hermes.serve.web.app import app
        from hermes.serve.web.visitors import Visitor, check_settings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "markdown_it", "pygments"):
            raise
        raise MissingExtra("hermes web", "serve") from None
    if install and uninstall:
        raise click.UsageError("--install and --uninstall go without each other")
    if uninstall:
        _uninstall()
        return
    config = configuration()
    config.require_set("web")
    host, port = host or config.web.host, config.web.port if port is None else port
    check_settings(config.web, host)
    if install:
        options = ["--read-only"] * read_only + (["--user", ":".join(user)] if user else [])
        _install(host, port or _PORT, options)
        return
    visitor = Visitor(user, read_only or user is not None)
    lasting = _token_file().read_text().strip() if _token_file().exists() else ""
    token, once = lasting or secrets.token_urlsafe(24), None if no_browser else secrets.token_urlsafe(24)
    with (
        opened(writing=not visitor.read_only) as db,
        listening_socket(host, port, change="with --host or --port") as listening,
    ):
        address = _address(host, listening.getsockname()[1])
        # What a service prints is in a log that others may read.
        click.echo(address if lasting and not sys.stdout.isatty() else f"{address}/?token={token}")
        if once is not None:
            webbrowser.open(f"{address}/?token={once}")
        page = app(db, config, token, visitor, local=is_loopback(host), once=once)
        serve_http(page, listening)


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# ------------------------------------------------------------------------------------------------ as a service


def _token_file() -> Path:
    """The file with the token of the lasting link, which only its owner can read."""
    return get_hermes_home() / "web.token"


def _service(*words: str) -> Service:
    from hermes.cli.services import WEB

    return replace(WEB, words=(*WEB.words, *words))


def _install(host: str, port: int, options: list[str]) -> None:
    from hermes.cli import services
    from hermes.cli.services import unit_path

    if not unit_path(get_hermes_home(), _service()).exists():
        listening_socket(host, port, change="with --port").close()  # a taken port is reported now, not in a log
    file = _token_file()
    if not file.exists():
        make_private(file.parent)
        write_whole(file, secrets.token_urlsafe(24) + "\n")
    services.install(_service("--no-browser", "--host", host, "--port", str(port), *options))
    click.echo(f"The page:  {_address(host, port)}/?token={file.read_text().strip()}")


def _uninstall() -> None:
    from hermes.cli import services

    services.uninstall(_service())
    _token_file().unlink(missing_ok=True)
