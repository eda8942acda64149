"""The machine code in thunks.py is what its assembly source says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from hermes.store.engines.sqlite import thunks
from hermes_state import SessionDB
from tests.support.environments import missing

SOURCES = Path(thunks.__file__).parent
ADDRESSES = 32  # bytes behind the code: four addresses, filled in when it is loaded


@pytest.mark.parametrize(("machine", "prefix"), [("x86_64", ""), ("aarch64", "aarch64-linux-gnu-")])
def test_the_code_is_what_its_source_says(tmp_path: Path, machine: str, prefix: str) -> None:
    if os.uname().machine == machine:
        prefix = ""
    elif not prefix or which(f"{prefix}as") is None:
        missing(f"no assembler for {machine} (binutils-{machine.replace('_', '-')}-linux-gnu)")
    if which(f"{prefix}as") is None:
        missing("no assembler (binutils)")
    made, flat = tmp_path / "thunks.o", tmp_path / "thunks.bin"
    subprocess.run([f"{prefix}as", "-o", made, SOURCES / f"thunks_{machine}.s"], check=True)
    subprocess.run([f"{prefix}objcopy", "-O", "binary", "-j", ".text", made, flat], check=True)
    listing = subprocess.run([f"{prefix}nm", made], check=True, capture_output=True, text=True).stdout.split("\n")
    places = {line.split()[2]: int(line.split()[0], 16) for line in listing if line}
    code, close_at = thunks.CODES[machine]
    assert flat.read_bytes() == bytes.fromhex(code) + bytes(ADDRESSES)
    assert places["close_thunk"] == close_at
    assert [places[name] for name in ("fcntl_thunk", "table", "parked", "real_fcntl", "real_close")] == [
        0,
        160,
        168,
        176,
        184,
    ]


def test_the_locks_can_be_left_to_sqlite(tmp_path: Path) -> None:
    if not Path("/proc/locks").exists():
        pytest.skip("there is no /proc/locks here")
    program = (
        "import os, sys; from hermes_state import SessionDB\n"
        "db = SessionDB(sys.argv[1]); db.create_session('s', 'cli'); db.append_message('s', 'user', 'kept')\n"
        "number = os.stat(sys.argv[1]).st_ino; locks = [line.split() for line in open('/proc/locks')]\n"
        "print(*{line[1] for line in locks if line[5].endswith(f':{number}')}); db.close()"
    )
    python = [sys.executable, "-c", program, str(tmp_path / "state.db")]
    ours = "OFDLCK" if os.uname().machine in thunks.CODES else "POSIX"
    for value, expected in (("posix", "POSIX"), ("", ours)):
        ran = subprocess.run(python, env={**os.environ, "HERMES_SQLITE_LOCKS": value}, capture_output=True, text=True)
        assert (ran.stdout.strip(), ran.stderr) == (expected, "")
    with SessionDB(tmp_path / "state.db") as db:
        assert [message["content"] for message in db.get_messages("s")] == ["kept", "kept"]


def test_a_forked_child_has_tables_of_its_own() -> None:
    """Numbers of descriptors mean other files there: what a child notes must not make its parent close one of its own."""
    made = thunks.Thunks(0, 0)
    child = os.fork()
    if not child:
        made.table[7], made.parked[7] = 5, 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (made.table[7], made.parked_descriptors()) == (0, [])
