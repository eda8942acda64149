"""Commands as services of the user (a systemd unit, on macOS a launchd agent), and serving on a port until Ctrl-C.

The service manager starts a service with the machine (or the login) and again when it fails. Each home has its own services.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hermes.home import get_hermes_home

_ENVIRONMENT = (
    "PATH",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "GEMINI_CLI_HOME",
)  # as in the shell that installs it, if set


@dataclass(frozen=True, slots=True)
class Service:
    """A program that can be installed as a service."""

    name: str
    about: str
    words: tuple[str, ...]  # after `hermes`

    def command(self) -> list[str]:
        """The command that it runs: this interpreter, so that the service has the packages that are installed for it."""
        return [sys.executable, "-m", "hermes.cli.main", *self.words]


GATEWAY = Service("hermes-gateway", "Hermes Sessions gateway", ("gateway",))
WEB = Service("hermes-web", "Hermes Sessions in the browser", ("web",))
WATCH = Service("hermes-watch", "Hermes Sessions: histories of other programs", ("sessions", "watch"))


def unit_name(home: Path, service: Service = GATEWAY) -> str:
    """The name of this home's service. Each home has its own; that of `~/.hermes` has the plain name."""
    home = home.expanduser().resolve()
    if home == (Path.home() / ".hermes").resolve():
        return f"{service.name}.service"
    readable = re.sub(r"[^A-Za-z0-9]+", "-", home.name).strip("-")[:30]
    return f"{service.name}-{readable}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}.service"


def unit_path(home: Path, service: Service = GATEWAY) -> Path:
    """The file of this home's service among the user's own."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "LaunchAgents" / f"{_label(home, service)}.plist"
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / unit_name(home, service)


def unit_text(home: Path, service: Service = GATEWAY) -> str:
    """The service: this interpreter, this home, this PATH (tools are found as in your shell), and time enough to stop."""
    variables = {"HERMES_HOME": str(home), **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}}
    variables = {"PATH": os.defpath, **variables, "PYTHONUNBUFFERED": "1"}
    if sys.platform == "darwin":
        agent = {"Label": _label(home, service), "ProgramArguments": service.command(), "EnvironmentVariables": variables,
                 "RunAtLoad": True, "KeepAlive": {"SuccessfulExit": False}, "Umask": 0o077, "ExitTimeOut": 20}  # fmt: skip
        return plistlib.dumps(agent).decode()
    program = " ".join(_quoted(word.replace("$", "$$")) for word in service.command())
    environment = "\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items())
    return f"""\
[Unit]
Description={service.about}
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={program}
{environment}
UMask=0077
Restart=on-failure
RestartSec=5
KillSignal=SIGTERM
TimeoutStopSec=20

[Install]
WantedBy=default.target
"""


def commands(home: Path, service: Service, *, starts: bool) -> list[list[str]]:
    """The commands that start a service, now and with the machine, or stop it for good."""
    path = unit_path(home, service)
    if sys.platform == "darwin":
        user = f"gui/{os.getuid()}"
        return [["launchctl", "bootstrap", user, str(path)] if starts
                else ["launchctl", "bootout", f"{user}/{_label(home, service)}"]]  # fmt: skip
    reload = ["systemctl", "--user", "daemon-reload"]
    switch = ["systemctl", "--user", "enable" if starts else "disable", "--now", path.name]
    return [reload, switch] if starts else [switch]


def ran(home: Path, service: Service, *, starts: bool) -> bool:
    """Start or stop a service with the service manager; False if there is no manager, or it refuses."""
    found = commands(home, service, starts=starts)
    if shutil.which(found[0][0]) is None:
        return False
    return all(subprocess.run(one, capture_output=True, check=False).returncode == 0 for one in found)


def _label(home: Path, service: Service) -> str:
    return f"hermes.{unit_name(home, service).removesuffix('.service')}"


def _quoted(text: str) -> str:
    """A word of a unit file: quoted if necessary, with nothing that systemd would expand."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if any(sign in text for sign in " \t\"'\\") else plain


def install(wanted: Service, *, starts: bool = True) -> None:
    """Write the service and start it; if it is not to be started, or does not start, print the command that starts it."""
    home = get_hermes_home()
    path = unit_path(home, wanted)
    if starts and path.exists():
        ran(home, wanted, starts=False)  # a running service would continue with the old settings
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(unit_text(home, wanted))
    click.echo(f"Written: {path}")
    if starts and ran(home, wanted, starts=True):
        click.echo("It is running, and starts again at the next login.")
    else:
        starting = " && ".join(shlex.join(one) for one in commands(home, wanted, starts=True))
        click.echo(f"Start it, now and with the machine:  {starting}")
    if sys.platform != "darwin":
        click.echo("Keep it running when you log out:    loginctl enable-linger")


def uninstall(wanted: Service, install: str = "--install") -> None:
    """Stop the service and remove it; `install` is the word that installs it."""
    home = get_hermes_home()
    path = unit_path(home, wanted)
    if not path.exists():
        command = shlex.join(["hermes", *wanted.words, install])
        raise click.ClickException(f"the service is not installed; `{command}` installs it")
    is_stopped = ran(home, wanted, starts=False)
    stopping = shlex.join(commands(home, wanted, starts=False)[0])
    path.unlink()
    click.echo(f"Removed: {path}" if is_stopped else f"Removed: {path}\nIf it runs:  {stopping}")


def listening_socket(host: str, port: int, *, change: str) -> socket.socket:
    """A listening socket: clients that connect before the server runs wait. `change`: the options that choose another address."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise click.ClickException(
            f"{host!r} is not an address of this machine ({error}); name another with --host"
        ) from None
    made = socket.socket(family, kind, number)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(512)
    except OSError as error:
        made.close()
        raise click.ClickException(f"can't listen on {host}:{port} ({error.strerror}); name another {change}") from None
    return made


def serve_http(app: Any, listening: socket.socket) -> None:
    """Serve an application on a socket until Ctrl-C."""
    import uvicorn

    from hermes.serve.http import Limits, guarded_protocol

    settings = uvicorn.Config(
        app, http=guarded_protocol(Limits()), log_level="warning", access_log=False, proxy_headers=False,
        server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(settings).run(sockets=[listening])
