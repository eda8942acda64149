"""The gateway as a systemd user service: a unit that starts it with the machine and restarts it when it fails."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

NAME = "hermes-gateway"


def unit_name(home: Path) -> str:
    """The name of this home's service. Each home has its own; that of `~/.hermes` has the plain name."""
    home = home.expanduser().resolve()
    if home == (Path.home() / ".hermes").resolve():
        return f"{NAME}.service"
    readable = re.sub(r"[^A-Za-z0-9]+", "-", home.name).strip("-")[:30]
    return f"{NAME}-{readable}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}.service"


def unit_path(home: Path) -> Path:
    """Where systemd looks for this unit among the user's own; the plain name, if that is installed for this home."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    folder = Path(base) / "systemd" / "user"
    plain = folder / f"{NAME}.service"
    if plain.is_file() and f"Environment={_quoted(f'HERMES_HOME={home}')}\n" in plain.read_text(errors="replace"):
        return plain  # installed before homes had their own names
    return folder / unit_name(home)


def unit_text(home: Path) -> str:
    """The unit: this interpreter, this home, this PATH (tools are found as in your shell), and time enough to stop."""
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
    """A word of a unit file: quoted if necessary, with nothing that systemd would expand."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if any(sign in text for sign in " \t\"'\\") else plain
