"""`hermes gateway` as a real process on the plain platforms, so that it can be killed.

The platforms come in as any other package's would: by an entry point, from a folder on the import path.

    with GatewayProcess(home, [lab], model.base_url) as gateway: lab.say("hello"); gateway.kill(); gateway.start()
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import program
from tests.support.forking import Forked
from tests.support.gateway import written
from tests.support.hastened import HASTENED
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

ROOT = Path(__file__).parents[2]


def plug_in(folder: Path) -> Path:
    """A folder that makes the plain platforms known to any process that has it on its import path."""
    about = folder / "plain_platforms-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-platforms\nVersion: 1.0\n")
    module = "tests.support.labs.plain"
    names = {"plain": "Plain", "forgetful": "Forgetful", "letters": "Letters", "stubborn": "Stubborn"}
    lines = "".join(f"{name} = {module}:{kind}\n" for name, kind in names.items())
    (about / "entry_points.txt").write_text(f"[hermes.platforms]\n{lines}")
    return folder


def environment(home: Path, **more: str) -> dict[str, str]:
    """The variables of a process that knows the plain platforms."""
    variables = program.environment(home)
    folder = plug_in(home.parent / "plug-in")
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(folder), variables["PYTHONPATH"]])
    return {**variables, **more}


def write_config(home: Path, labs: Sequence[PlainLab], base_url: str, **config: Any) -> None:
    """The home's config.yaml: these platforms, and the model at this address."""
    home.mkdir(parents=True, exist_ok=True)
    model = {"default": "echo", "base_url": base_url, "context_length": 100_000}
    (home / "config.yaml").write_text(written(labs, model=model, **config))


class GatewayProcess:
    """A gateway that can be started, killed and asked to end, again and again on the same home."""

    def __init__(self, home: Path, labs: Sequence[PlainLab], base_url: str, **config: Any) -> None:
        write_config(home, labs, base_url, **config)
        self.home, self._labs = home, labs
        self.variables: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, connected: bool = True) -> None:
        """Start it; unless told otherwise, wait until all platforms are connected."""
        self.said = self.home / f"gateway-{os.urandom(3).hex()}.txt"
        with self.said.open("wb") as output:
            self.process = Forked(
                [*HASTENED, "gateway"],
                env=environment(self.home, **self.variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        if connected:
            until(lambda: all(lab.connected for lab in self._labs) or self._ended(), "not connected")
            assert not self._ended(), self.output()

    def _ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def output(self) -> str:
        """The output of the gateway so far."""
        return self.said.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(120)
            until(lambda: not any(lab.connected for lab in self._labs))
            self.process = None

    def stop(self, timeout: float = 30.0) -> int:
        """Ask it to end; its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(timeout)
        self.process = None
        return status

    def memory(self) -> float:
        """The gateway's resident memory in MB."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no such line")

    def cpu(self) -> float:
        """The gateway's processor time in seconds."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def written(self) -> int:
        """The bytes that the gateway has written to the disk."""
        assert self.process is not None
        about = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(dict(line.split(": ") for line in about.splitlines())["write_bytes"])

    def __enter__(self) -> GatewayProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended():
            self.kill()
