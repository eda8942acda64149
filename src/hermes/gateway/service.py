"""The gateway as a service of the user's: a systemd unit that starts it with the machine and again when it falls."""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "hermes-gateway.service"


def unit_path() -> Path:
    """Where systemd looks for a user's own units."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / NAME


def unit_text(home: Path) -> str:
    """The unit: this interpreter, this home. Stopping is given time to finish what is being said."""
    program = f"{_escaped(sys.executable)} -m hermes.cli.main gateway"
    return f"""\
[Unit]
Description=Hermes Sessions gateway
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={program}
Environment={_escaped(f"HERMES_HOME={home}")}
Environment=PYTHONUNBUFFERED=1
Restart=on-failure
RestartSec=5
KillSignal=SIGTERM
TimeoutStopSec=20

[Install]
WantedBy=default.target
"""


def _escaped(text: str) -> str:
    """A word of a unit file: quoted if need be, with nothing systemd would replace."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if any(sign in text for sign in " \t\"'") else plain
