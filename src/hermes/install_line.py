"""The commands that install an optional part, as they work where they are printed.

In a clone it is the clone's own pip, and the part is taken from the clone; elsewhere it is the pip of the Python that runs,
and the package's name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

SOCKS = '"httpx[socks]"'


def install_line(extra: str = "", options: str = "") -> str:
    """The line that installs an extra ("" for the program itself), to be pasted into a shell as it stands."""
    clone = Path(__file__).resolve().parents[2]
    part = f"[{extra}]" if extra else ""
    if not (clone / "pyproject.toml").is_file():
        return pip_line(f'"hermes-sessions{part}"' if part else "hermes-sessions", options)
    if clone == _here():
        return pip_line(f'-e ".{part}"', options)
    return pip_line(f"-e {shlex.quote(str(clone))}" + (f'"{part}"' if part else ""), options)


def pip_line(what: str, options: str = "") -> str:
    """The line that installs a package with the pip of the Python that runs, as short as the shell understands it."""
    beside, here = Path(sys.executable).with_name("pip"), _here()
    if not beside.exists():
        pip = f"{shlex.quote(sys.executable)} -m pip"
    elif shutil.which("pip") == str(beside):
        pip = "pip"
    else:
        pip = shlex.quote(str(beside.relative_to(here) if here and beside.is_relative_to(here) else beside))
    return " ".join([pip, "install", *options.split(), what])


def _here() -> Path | None:
    """The working folder; None when it was removed."""
    try:
        return Path(os.getcwd())
    except OSError:
        return None
