"""Commands that run for good as services of the user (systemd, on macOS launchd): installing and uninstalling them."""

from __future__ import annotations

import shlex
import sys

import click

from hermes.gateway import service
from hermes.gateway.service import Service
from hermes.home import get_hermes_home


def install(wanted: Service, *, starts: bool = True) -> None:
    """Write the service and start it; where it is not to be started, or does not start, print the command that does."""
    home = get_hermes_home()
    path = service.unit_path(home, wanted)
    if starts and path.exists():
        service.ran(home, wanted, starts=False)  # one that runs would go on as it was
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(service.unit_text(home, wanted))
    click.echo(f"Written: {path}")
    if starts and service.ran(home, wanted, starts=True):
        click.echo("It runs, now and from the next login on.")
    else:
        told = " && ".join(shlex.join(one) for one in service.commands(home, wanted, starts=True))
        click.echo(f"Start it, now and with the machine:  {told}")
    if sys.platform != "darwin":
        click.echo("Keep it running when you log out:    loginctl enable-linger")


def uninstall(wanted: Service, install: str = "--install") -> None:
    """Stop the service and remove it; `install` is the word that installs it."""
    home = get_hermes_home()
    path = service.unit_path(home, wanted)
    if not path.exists():
        command = shlex.join(["hermes", *wanted.words, install])
        raise click.ClickException(f"the service is not installed; `{command}` installs it")
    is_stopped = service.ran(home, wanted, starts=False)
    told = shlex.join(service.commands(home, wanted, starts=False)[0])
    path.unlink()
    click.echo(f"Removed: {path}" if is_stopped else f"Removed: {path}\nIf it runs:  {told}")
