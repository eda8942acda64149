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
    """The unit: this interpreter, this home, this PATH (tools are found as in your shell). Stopping is given its time."""
    program = f"{_quoted(sys.executable.replace('$', '$$'))} -m hermes.cli.main gateway"
    return f"""\
[Unit]
Description=Hermes Sessions gateway
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={program}
Environment={_quoted(f"HERMES_HOME={home}")}
Environment={_quoted(f"PATH={os.environ.get('PATH', os.defpath)}")}
Environment=PYTHONUNBUFFERED=1
UMask=0077
Restart=on-failure
RestartSec=5
KillSignal=SIGTERM
TimeoutStopSec=20

[Install]
WantedBy=default.target
"""


def _quoted(text: str) -> str:
    """A word of a unit file: in quotes if need be, with nothing that systemd would replace."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if any(sign in text for sign in " \t\"'\\") else plain
