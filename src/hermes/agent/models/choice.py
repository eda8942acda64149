"""Chooses the model: the configured endpoint, else a server on this machine, else the embedded model, else your own history.

It also lists the models that this machine can use: by provider keys, local servers, packages, and files of llama.cpp.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes.agent.models import servers
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.files import MODELS, place_of
from hermes.agent.models.model import Model
from hermes.agent.models.servers import (
    PROVIDERS,
    can_chat,
    find_servers,
    is_near,
    listed_models,
    variable_of,
    without_password,
)
from hermes.config import environment
from hermes.errors import ConfigError, InvalidInput, ModelUnreachable
from hermes.home import get_hermes_home

if TYPE_CHECKING:
    from hermes.config import Auxiliary, Config
    from hermes.store.api.session_db import SessionDB


_log = logging.getLogger("hermes.agent")

# The default model when there is a key and no configured model.
_DEFAULTS = {servers.OPENAI: "gpt-5-mini", servers.OPENROUTER: "openrouter/auto"}


def choose_model(config: Config, db: SessionDB) -> Model:
    """The model that answers, by the configuration and by what is available. ConfigError when the configured one is not."""
    from hermes.agent.models.offline import ExtractiveModel

    return language_model(config, db) or ExtractiveModel(db)


def language_model(config: Config, db: SessionDB | None = None) -> Model | None:
    """The configured model, or None where only the history can answer. Without `db` the embedded model gets no excerpts of it."""
    config.require_set("model", "auxiliary")
    home = get_hermes_home()
    variables = environment(home)
    name = config.model.default or variables.get("HERMES_MODEL") or None
    if name not in ("embedded", "extractive"):
        model = _endpoint(config, name, variables) or local_model(config, name)
        if model is not None:
            return model
        if name is not None:
            named = servers.named_provider(name)
            key = named[0].variables[0] if named else "OPENAI_API_KEY"
            raise ConfigError(
                f"the model {name} is configured, but not available: set {key} (in the environment or in {home}/.env)"
                " or model.base_url, or start a local server that has it; `hermes model` lists what there is"
            )
    if name != "extractive":
        from hermes.agent.models.offline import EmbeddedModel, find_model

        path = find_model(home)
        if path is not None:
            return EmbeddedModel(path)
        if name == "embedded":
            raise ConfigError(
                "model.default is embedded, but it is not installed; `hermes model install smollm2` installs it"
            )
    return None


SMALL_QUESTION = [{"role": "user", "content": "Answer with the word OK."}]


def settings_for(name: str, config: Config) -> dict[str, str]:
    """The keys of `model` in config.yaml that select this model; with an address, they replace all others.

    InvalidInput names what is missing.
    """
    if name in ("embedded", "extractive", *(known for known, model in MODELS.items() if model.purpose == "chat")):
        if name != "extractive" and place_of("smollm2") is None:
            raise InvalidInput("the embedded model is not installed; `hermes model install smollm2` installs it")
        return {"default": "extractive" if name == "extractive" else "embedded"}
    variables = environment()
    now = servers.configured_endpoint(config.model.default, config.model.base_url, config.model.api_key, variables)
    named = servers.named_provider(name)
    own = config.model.base_url or config.model.api_key
    if own and now is not None and named is not None and servers.provider_at(now.base_url) is named[0]:
        return {"default": named[1]}
    found = servers.endpoint_named(name, variables)
    if found is not None and found.name:
        return {"default": found.name, "base_url": found.base_url}
    for server in find_servers():
        if same := next((listed for listed in server.models if _same(listed, name)), None):
            return {"default": same, "base_url": server.server.base_url}
    if named is not None and servers.key_of(servers.PROVIDERS["openrouter"], variables):
        return {"default": name, "base_url": servers.OPENROUTER}
    if named is not None:
        file = get_hermes_home() / ".env"
        raise InvalidInput(f"{named[0].variables[0]} is not set; write {named[0].variables[0]}=… into {file}")
    if now is None:
        raise InvalidInput(f"no provider, server or file here has a model {name!r}; `hermes model` lists what there is")
    return {"default": name}


def model_of_choice(config: Config, name: str | None, main: Model) -> Model:
    """The model chosen for a conversation (`SessionDB.chosen_model`), else the configured one (`main`).

    Every entry point calls this, so a choice made in one applies in all. A chosen model that is not available is logged.
    """
    if not name or name == main.name:
        return main
    chosen = other_model(config, name, main)
    if chosen is None:
        _log.warning("%s was chosen for a conversation and is not available; %s answers", name, main.name)
    return chosen or main


def other_model(config: Config, name: str, main: Model) -> Model | None:
    """The model of this name at a server on this machine, in place of the main one; None if no server has it."""
    if main.base_url is None and servers.endpoint_named(name, environment()) is None:
        return local_model(config, name)
    return named_model(name, main)


def model_again(main: Model, name: str, about: str | None) -> tuple[Model | None, str]:
    """The model that a conversation used; None, and what is missing, if it is not available.

    `about` is the session's `model_config` if it describes this model: where the model was.
    """
    here, variables = main.base_url, environment()
    try:
        was = json.loads(about or "{}").get("base_url") or here
    except (ValueError, AttributeError):  # another program's
        was = here
    if (name, was) == (main.name, here):
        return main, ""
    if was != here and (provider := servers.provider_at(was)) is not None:
        key = servers.key_of(provider, variables)
        return (_side_model(name, was, key), "") if key else (None, f"{provider.variables[0]} is not set")
    place = None if was != here else servers.endpoint_named(name, variables, base_url=here)
    if place is None and was is not None and (was == here or is_near(was)):
        place = servers.Endpoint(name, was, getattr(main, "api_key", None) if was == here else None)
    listed = [] if place is None else listed_models(place.base_url, key=place.api_key) or []
    if place is None or not any(item["id"] == place.name for item in listed):
        return None, ""
    return (named_model(name, main) if was == here else _side_model(name, was, None, kind="local")), ""


def _endpoint(config: Config, name: str | None, variables: Mapping[str, str]) -> EndpointModel | None:
    """The endpoint named by the configuration or the environment, or None."""
    found = servers.configured_endpoint(name, config.model.base_url, config.model.api_key, variables)
    if found is None:
        return None
    base_url = _checked(found.base_url)
    name = found.name or _DEFAULTS.get(base_url) or _first_listed(base_url, found.api_key)
    return EndpointModel(name, base_url, found.api_key, config.model.context_length)


def _checked(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"model.base_url is an address like https://api.openai.com/v1, not {base_url!r}")
    return base_url.rstrip("/")


def _first_listed(base_url: str, key: str | None) -> str:
    listed = listed_models(base_url, key=key, timeout=5.0)
    first = next((str(item["id"]) for item in listed or () if can_chat(str(item["id"]))), None)
    if first is None:
        where = without_password(base_url)
        raise ConfigError(f"{where} does not say which models it has: set model.default (is the server running?)")
    return first


def local_model(config: Config, name: str | None) -> EndpointModel | None:
    """A server on this machine: the one that has the configured model, or the first with any."""
    for found in find_servers():
        wanted = found.models[0] if name is None else next((m for m in found.models if _same(m, name)), None)
        if wanted is not None:
            server = found.server
            return EndpointModel(
                wanted, server.base_url, None, config.model.context_length, "local", provider=server.name
            )
    return None


def _same(listed: str, name: str) -> bool:
    """Whether two names mean the same model: Ollama lists `llama3.2:latest` for what people call llama3.2."""
    return listed in (name, f"{name}:latest")


def auxiliary_model(config: Config, task: str, main: Model) -> Model:
    """The model for a side task ("title", "summary" or "compression"); the main one where none is set."""
    section: Auxiliary | None = getattr(config.auxiliary, task)
    if section is None or not (section.model or section.base_url or section.api_key or section.timeout):
        return main
    if not section.model and not isinstance(main, EndpointModel):
        return main  # the embedded model has no address
    name, setting = section.model or main.name, f"auxiliary.{task}"
    length = config.model.context_length if name == main.name else None
    return _beside(main, name, section.base_url, section.api_key, length, section.timeout, setting)


def named_model(name: str, main: Model) -> EndpointModel:
    """The model of this name: at the provider in its name, else behind the endpoint of the main one."""
    return _beside(main, name)


def _beside(
    main: Model,
    name: str,
    base_url: str | None = None,
    key: str | None = None,
    length: int | None = None,
    timeout: float | None = None,
    setting: str = "model",
) -> EndpointModel:
    """A model at this address, else at the provider that its name names, else where the main one is."""
    here = main if isinstance(main, EndpointModel) else None
    variables = environment()
    address = (here.base_url if here else variables.get("OPENAI_BASE_URL")) or servers.OPENAI
    timeout, own = timeout or (here.timeout if here else None), key or (here.api_key if here else None)
    named = None if base_url else servers.endpoint_named(name, variables, base_url=address, key=own)
    if named is not None:
        return _side_model(named.name or name, named.base_url, named.api_key, timeout=timeout, setting=setting)
    if here is not None and base_url in (None, here.base_url):
        return _side_model(name, address, own, length, here.kind, timeout, provider=here.provider, setting=setting)
    place = base_url or address
    key = key or (servers.key_of(servers.provider_at(place), variables) if here else servers.key_for(place, variables))
    return _side_model(name, place, key, timeout=timeout, setting=setting)


# One model object for all side tasks with the same endpoint: it shares connections and what it learned of its server.
_side_model = lru_cache(maxsize=16)(EndpointModel)


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
