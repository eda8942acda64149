"""The models this machine can use: keys of providers, servers that run here, packages, and files of llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes.agent.endpoint.providers import PROVIDERS, variable_of
from hermes.agent.endpoint.servers import can_chat, find_servers, listed_models
from hermes.agent.model_files import MODELS, place_of
from hermes.config import environment
from hermes.errors import InvalidInput, ModelUnreachable


@dataclass(frozen=True, slots=True)
class Offer:
    """One model, or all of a provider. `how` is the command that gets or uses it."""

    name: str
    source: str  # a variable, "Ollama", "llama.cpp", "package", "file" …
    how: str
    size: int | None = None
    ready: bool = True


def offers(home: Path) -> Iterator[Offer]:
    """The models this machine has or can have; those that can be used at once come first."""
    variables = environment(home)
    for provider in PROVIDERS.values():
        variable = variable_of(provider, variables)
        if variable is not None:
            yield Offer(f"{provider.name}/…", variable, f"hermes model list {provider.name}")
    for found in find_servers():
        for name in found.models:
            yield Offer(name, found.server.name, f"hermes model use {name}")
    for name, model in MODELS.items():
        if model.purpose == "chat":
            ready = place_of(name, home) is not None
            how = f"hermes model {'use' if ready else 'install'} {name}"
            yield Offer(name, "package", how, model.size, ready)
    folder = Path(os.environ.get("LLAMA_CACHE") or Path.home() / ".cache" / "llama.cpp")
    for path in sorted(folder.glob("*.gguf")):
        if path.is_file():
            yield Offer(path.stem, "file", f"llama-server -m {path}", path.stat().st_size, ready=False)


def provider_models(name: str) -> list[str]:
    """The chat models of a provider, by the names that `hermes model use` takes. InvalidInput without a key."""
    if name not in PROVIDERS:
        raise InvalidInput(f"unknown provider {name!r}; known: {', '.join(PROVIDERS)}")
    provider, variables = PROVIDERS[name], environment()
    variable = variable_of(provider, variables)
    if variable is None:
        raise InvalidInput(f"there is no key for {name}: set {provider.variables[0]}")
    listed = listed_models(provider.base_url, key=variables[variable], timeout=10.0)
    if listed is None:
        raise ModelUnreachable(f"{provider.base_url} does not list its models; check {variable} and the network")
    return sorted(f"{name}/{item['id'].removeprefix('openrouter/')}" for item in listed if can_chat(item["id"]))
