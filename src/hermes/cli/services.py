"""Commands as services of the user: a systemd unit, on macOS a launchd agent.

The service manager starts a service with the machine (or the login) and again when it fails. Each home has its own services.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from hermes.home import get_hermes_home

_ENVIRONMENT = (
    "PATH",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "GEMINI_CLI_HOME",
)  # as in the shell that installs it, if set
_UNIT = """\
[Unit]
Description={about}
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


@dataclass(frozen=True, slots=True)
class Service:
    """A command of this program that can be installed as a service."""

    name: str
    about: str
    words: tuple[str, ...]  # after `hermes`

    @property
    def unit(self) -> str:
        """The name of this home's service. Each home has its own; that of `~/.hermes` has the plain name."""
        home = get_hermes_home().expanduser().resolve()
        if home == (Path.home() / ".hermes").resolve():
            return self.name
        readable = re.sub(r"[^A-Za-z0-9]+", "-", home.name).strip("-")[:30]
        return f"{self.name}-{readable}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"

    @property
    def path(self) -> Path:
        """The file of this home's service among the user's own."""
        if sys.platform == "darwin":
            return Path.home() / "Library" / "LaunchAgents" / f"hermes.{self.unit}.plist"
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        return Path(base) / "systemd" / "user" / f"{self.unit}.service"

    def text(self) -> str:
        """The file: this interpreter, this home, this PATH (tools are found as in your shell), and time enough to stop."""
        command = [sys.executable, "-m", "hermes.cli.main", *self.words]
        variables = {"PATH": os.defpath, "HERMES_HOME": str(get_hermes_home()), "PYTHONUNBUFFERED": "1"}
        variables |= {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        if sys.platform == "darwin":
            agent = {"Label": f"hermes.{self.unit}", "ProgramArguments": command, "EnvironmentVariables": variables}
            rules = {"RunAtLoad": True, "KeepAlive": {"SuccessfulExit": False}, "Umask": 0o077, "ExitTimeOut": 20}
            return plistlib.dumps(agent | rules).decode()
        program = " ".join(_quoted(word.replace("$", "$$")) for word in command)
        environment = "\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items())
        return _UNIT.format(about=self.about, program=program, environment=environment)

    def commands(self, *, starts: bool) -> list[list[str]]:
        """The commands that start the service, now and with the machine, or stop it for good."""
        if sys.platform == "darwin":
            user = f"gui/{os.getuid()}"
            words = ["bootstrap", user, str(self.path)] if starts else ["bootout", f"{user}/hermes.{self.unit}"]
            return [["launchctl", *words]]
        switch = ["systemctl", "--user", "enable" if starts else "disable", "--now", self.path.name]
        return [["systemctl", "--user", "daemon-reload"], switch] if starts else [switch]

    def switch(self, *, starts: bool) -> bool:
        """Start or stop it with the service manager; False if there is no manager, or it refuses."""
        found = self.commands(starts=starts)
        if shutil.which(found[0][0]) is None:
            return False
        return all(subprocess.run(one, capture_output=True, check=False).returncode == 0 for one in found)

    def install(self) -> None:
        """Write the service and start it; if it does not start, print the command that starts it."""
        if self.path.exists():
            self.switch(starts=False)  # a running service would continue with the old settings
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text())
        click.echo(f"Written: {self.path}")
        if self.switch(starts=True):
            click.echo("It is running, and starts again at the next login.")
        else:
            starting = " && ".join(map(shlex.join, self.commands(starts=True)))
            click.echo(f"Start it, now and with the machine:  {starting}")
        if sys.platform != "darwin":
            click.echo("Keep it running when you log out:    loginctl enable-linger")

    def uninstall(self, install: str = "--install") -> None:
        """Stop the service and remove it; `install` is the word that installs it."""
        if not self.path.exists():
            command = shlex.join(["hermes", *self.words, install])
            raise click.ClickException(f"the service is not installed; `{command}` installs it")
        is_stopped = self.switch(starts=False)
        self.path.unlink()
        stopping = "" if is_stopped else f"\nIf it runs:  {shlex.join(self.commands(starts=False)[0])}"
        click.echo(f"Removed: {self.path}{stopping}")


GATEWAY = Service("hermes-gateway", "Hermes Sessions gateway", ("gateway",))
WEB = Service("hermes-web", "Hermes Sessions in the browser", ("web",))
WATCH = Service("hermes-watch", "Hermes Sessions: histories of other programs", ("sessions", "watch"))


def _quoted(text: str) -> str:
    """A word of a unit file: quoted if necessary, with nothing that systemd would expand."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if any(sign in text for sign in " \t\"'\\") else plain
