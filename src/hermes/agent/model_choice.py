"""Chooses the model: the configured endpoint, else a server on this machine, else the embedded model, else your own history."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes.agent.endpoint.client import OPENAI, OPENROUTER, EndpointModel
from hermes.agent.model import Model
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from hermes.config import Auxiliary, Config
    from hermes.store.db import SessionDB


_log = logging.getLogger("hermes.agent")

# The default model when there is a key and no configured model.
_DEFAULTS = {OPENAI: "gpt-5-mini", OPENROUTER: "openrouter/auto"}


def choose_model(config: Config, db: SessionDB) -> Model:
    """The model that answers, by the configuration and by what is available. ConfigError when the configured one is not."""
    from hermes.config import environment
    from hermes.home import get_hermes_home

    config.require_set("model", "auxiliary")
    home = get_hermes_home()
    variables = environment(home)
    name = config.model.default or variables.get("HERMES_MODEL") or None
    if name not in ("embedded", "extractive"):
        model = _endpoint(config, name, variables) or local_model(config, name)
        if model is not None:
            return model
        if name is not None:
            raise ConfigError(
                f"the model {name} is configured, but not available: set model.base_url and model.api_key"
                " (or OPENAI_API_KEY), or start a local server that has it"
            )
    if name != "extractive":
        from hermes.agent.embedded import EmbeddedModel, find_model

        path = find_model(home)
        if path is not None:
            return EmbeddedModel(path, db)
        if name == "embedded":
            raise ConfigError(
                "model.default is embedded, but it is not installed; `hermes model install smollm2` installs it"
            )
    from hermes.agent.offline.assistant import ExtractiveModel

    return ExtractiveModel(db)


def model_of_choice(config: Config, name: str | None, main: Model) -> Model:
    """The model that was chosen for a conversation (`SessionDB.chosen_model`); the configured one (`main`) where none was.

    Every entry point asks this, so a choice made in one holds in all. A chosen model that is not available is logged.
    """
    if not name or name == main.name:
        return main
    chosen = named_model(name, main) if main.base_url is not None else local_model(config, name)
    if chosen is None:
        _log.warning("%s was chosen for a conversation and is not available; %s answers", name, main.name)
    return chosen or main


def _endpoint(config: Config, name: str | None, variables: Mapping[str, str]) -> EndpointModel | None:
    """The endpoint named by the configuration or the environment, or None."""
    base_url = config.model.base_url or variables.get("OPENAI_BASE_URL") or None
    key = config.model.api_key
    if base_url is None:
        if key or variables.get("OPENAI_API_KEY"):
            base_url = OPENROUTER if key and key.startswith("sk-or-") else OPENAI
        elif variables.get("OPENROUTER_API_KEY"):
            base_url = OPENROUTER
        else:
            return None
    base_url = _checked(base_url)
    key = key or key_for(base_url, variables)
    if name is None:
        name = _DEFAULTS.get(base_url) or _first_listed(base_url, key)
    return EndpointModel(name, base_url, key, config.model.context_length)


def key_for(base_url: str, variables: Mapping[str, str]) -> str | None:
    """The key in the environment for an endpoint."""
    names = ["OPENAI_API_KEY"]
    if (urlsplit(base_url).hostname or "").endswith("openrouter.ai"):
        names.insert(0, "OPENROUTER_API_KEY")
    return next((variables[name] for name in names if variables.get(name)), None)


def _checked(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"model.base_url is an address like https://api.openai.com/v1, not {base_url!r}")
    return base_url.rstrip("/")


def _first_listed(base_url: str, key: str | None) -> str:
    from hermes.agent.endpoint.servers import can_chat, listed_models, without_password

    listed = listed_models(base_url, key=key, timeout=5.0)
    first = next((str(item["id"]) for item in listed or () if can_chat(str(item["id"]))), None)
    if first is None:
        where = without_password(base_url)
        raise ConfigError(f"{where} does not say which models it has: set model.default (is the server running?)")
    return first


def local_model(config: Config, name: str | None) -> EndpointModel | None:
    """A server on this machine: the one that has the configured model, or the first with any."""
    from hermes.agent.endpoint.servers import find_servers

    for found in find_servers():
        wanted = found.models[0] if name is None else next((m for m in found.models if _same(m, name)), None)
        if wanted is not None:
            server = found.server
            return EndpointModel(
                wanted, server.base_url, None, config.model.context_length, "local", provider=server.name
            )
    return None


def _same(listed: str, name: str) -> bool:
    """Ollama lists `llama3.2:latest` for what people call llama3.2."""
    return listed in (name, f"{name}:latest")


def auxiliary_model(config: Config, task: str, main: Model) -> Model:
    """The model for a side task ("title", "summary" or "compression"); the main one where none is set."""
    section: Auxiliary | None = getattr(config.auxiliary, task)
    if section is None or not (section.model or section.base_url or section.api_key or section.timeout):
        return main
    if isinstance(main, EndpointModel):
        there = not section.base_url or section.base_url == main.base_url
        return _side_model(
            section.model or main.name,
            section.base_url or main.base_url,
            section.api_key or (main.api_key if there else None),
            config.model.context_length if there and section.model in (None, main.name) else None,
            kind="endpoint" if section.base_url else main.kind,
            timeout=section.timeout or main.timeout,
            provider=None if section.base_url else main.provider,
            setting=f"auxiliary.{task}",
        )
    if not section.model:
        return main  # the embedded model has no address
    return elsewhere(section.model, section.base_url, section.api_key, section.timeout, f"auxiliary.{task}")


def named_model(name: str, main: Model) -> EndpointModel:
    """The model of this name, behind the same endpoint as the main one where that has an address."""
    if isinstance(main, EndpointModel):
        return _side_model(
            name, main.base_url, main.api_key, kind=main.kind, timeout=main.timeout, provider=main.provider
        )
    return elsewhere(name)


def elsewhere(
    name: str,
    base_url: str | None = None,
    key: str | None = None,
    timeout: float | None = None,
    setting: str = "model",
) -> EndpointModel:
    """A model at the endpoint named by the environment."""
    from hermes.config import environment
    from hermes.home import get_hermes_home

    variables = environment(get_hermes_home())
    address = base_url or variables.get("OPENAI_BASE_URL") or OPENAI
    return _side_model(name, address, key or key_for(address, variables), timeout=timeout, setting=setting)


@lru_cache(maxsize=16)
def _side_model(
    name: str,
    base_url: str | None,
    key: str | None,
    context_length: int | None = None,
    *,
    kind: str = "endpoint",
    timeout: float | None = None,
    provider: str | None = None,
    setting: str = "model",
) -> EndpointModel:
    """One model object for all side tasks with the same endpoint: it shares connections and what it learned of its server."""
    return EndpointModel(name, base_url, key, context_length, kind, timeout, provider=provider, setting=setting)
