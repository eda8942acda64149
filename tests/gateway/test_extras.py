"""Each extra brings what its part imports: tried in a process that can import nothing but the extra's own requirements.

The requirements are those of pyproject.toml and, for everything else, of the installed packages: as pip would install them
into an empty environment, without installing anything.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hermes.gateway.platforms import BUILT_IN

ROOT = Path(__file__).parents[2]
OURS = "hermes-sessions"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GATEWAY = ["hermes.cli.gateway", "hermes.gateway.startup", "hermes.gateway.runner", "hermes.gateway.flow.replies"]
# extra → the packages whose every module it must be enough for
PARTS: dict[str, list[str]] = {
    "": [
        "hermes_state",
        "hermes_constants",
        "hermes.store.api.session_db",
        "hermes.cli.main",
        "hermes.cli.sessions",
        "hermes.interop",
    ],
    "chat": ["hermes.agent.models.endpoint", "hermes.agent.tools", "hermes.chat", "hermes.commands", "mcp"],
    "embedded": ["hermes.agent.models.offline", "xllamacpp"],
    "postgres": ["hermes.store.engines.postgres"],
    "acp": ["hermes.serve.acp_server", "hermes.cli.serving"],
    "encryption": ["hermes.store.encryption", "argon2", "cryptography", "keyring"],
    "meaning": ["hermes.store.search.vectors", "numpy", "onnxruntime", "tokenizers", "Stemmer"],
    "multilingual": ["hermes.store.search.encoders", "numpy"],
    "serve": [*GATEWAY, "hermes.serve", "hermes.gateway.platforms.webhook", "uvicorn"],
    **{
        extra: [*GATEWAY, module.removesuffix(".adapter")]
        for module, _, extra in BUILT_IN.values()
        if extra is not None
    },
}

# One process for extras of which each brings what the first one does: what the first one needs is loaded once, and each
# other one goes on from there in a process of its own. What one prints on standard error, if anything, is why it failed.
CHILD = """
import importlib, importlib.metadata, json, os, pkgutil, re, sys, traceback

plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
owners = {top: {plain(one) for one in names} for top, names in importlib.metadata.packages_distributions().items()}

class Only:
    allowed = set()

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in owners and not owners[top] & self.allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r} in this environment", name=name)

def load(allowed, parts):
    Only.allowed = set(allowed)
    for name in parts:
        module = importlib.import_module(name)
        if name.startswith("hermes") and hasattr(module, "__path__"):
            for found in pkgutil.walk_packages(module.__path__, name + "."):
                if not found.name.startswith("hermes.serve.acp_"):  # which have an extra of their own
                    importlib.import_module(found.name)

sys.meta_path.insert(0, Only())
first, *others = json.load(sys.stdin)
said = {}
for extra, allowed, parts in (first, *others):
    if extra == first[0]:
        try:
            load(allowed, parts)
        except BaseException:
            said[extra] = traceback.format_exc()
            break  # the others are not tried: they bring the same
        said[extra] = ""
        continue
    read, write = os.pipe()
    if os.fork() == 0:
        with os.fdopen(write, "w") as told:
            try:
                load(allowed, parts)
            except BaseException:
                told.write(traceback.format_exc())
            else:
                told.write("loaded")
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as heard:
        words = heard.read()
    os.wait()
    said[extra] = "" if words == "loaded" else words or "the process ended"
print(json.dumps(said))
"""


def closure(extra: str) -> set[str]:
    """The names of all packages that `pip install "hermes-sessions[extra]"` installs."""
    names: set[str] = set()
    left: list[tuple[str, frozenset[str]]] = [(OURS, frozenset([extra] if extra else []))]
    seen = set(left)
    while left:
        name, extras = left.pop()
        names.add(name)
        for requirement in requirements(name, extras):
            one = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if one not in seen:
                seen.add(one)
                left.append(one)
    return names


def requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    if name == OURS:
        optional = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
        return [Requirement(line) for line in [*PROJECT["dependencies"], *optional]]
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in (*extras, ""))]


@pytest.fixture(scope="module")
def loaded() -> dict[str, str]:
    """Extra → why its part can't be loaded with it alone, or nothing."""
    chat = closure("chat")
    with_chat = [extra for extra in PARTS if extra != "chat" and closure(extra) >= chat]
    said: dict[str, str] = {}
    for group in (["", *(extra for extra in PARTS if extra not in ("", "chat", *with_chat))], ["chat", *with_chat]):
        plan = [(extra, sorted(closure(extra)), PARTS[extra]) for extra in group]
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=ROOT / "src",
        )
        assert done.returncode == 0, done.stderr[-1500:]
        said |= json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize("extra", PARTS, ids=lambda extra: extra or "alone")
def test_an_extra_is_enough_for_its_part(extra: str, loaded: dict[str, str]) -> None:
    assert loaded.get(extra, "not tried: the extra that it contains has failed") == ""


def test_every_extra_is_tried() -> None:
    bundles = {"all", "gateway", "dev", "docs"}  # made of the others, or not for the program
    assert set(PROJECT["optional-dependencies"]) - bundles == set(PARTS) - {""}
    assert {"telegram", "matrix", "serve"} <= {
        e for line in PROJECT["optional-dependencies"]["gateway"] for e in Requirement(line).extras
    }
