"""The doctor's checks of the models: endpoints, servers on this machine, the embedded model, MCP servers.

An endpoint is asked for its list of models, which costs nothing and shows whether it answers, accepts the key and
has the model. The program of an MCP server is looked for, not started.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hermes.cli.doctor import DoctorFinding, Found, remark, well, wrong
from hermes.config import Auxiliary, Config, McpServer, environment, suggestion
from hermes.errors import ConfigError
from hermes.home import get_hermes_home

PATIENCE = 4.0  # seconds for a server to answer


def _variables() -> dict[str, str]:
    try:
        return environment()
    except ConfigError:  # the .env file can't be read: its own check reports that
        return dict(os.environ)


def model(config: Config) -> Found:
    """The model that is configured, in config.yaml or by the environment."""
    from hermes.agent.endpoint.providers import configured_endpoint

    variables = _variables()
    name = config.model.default or variables.get("HERMES_MODEL") or None
    if name in ("embedded", "extractive"):
        yield well("model", f"{name}, as model.default says")
        return
    found = configured_endpoint(name, config.model.base_url, config.model.api_key, variables)
    if found is not None:
        yield _endpoint("model", found.name, found.base_url, found.api_key, "model")
    elif name:
        yield _on_this_machine(name)
    else:
        said = "none is configured: a local server answers, else the embedded model, else your own history"
        yield well("model", said)


def _on_this_machine(name: str) -> DoctorFinding:
    from hermes.agent.endpoint.servers import find_servers

    for found in find_servers():
        if name in found.models or f"{name}:latest" in found.models:
            return well("model", f"{name} at {found.server.base_url} ({found.server.name})")
    hint = "hermes config set model.base_url ADDRESS, or start a local server that has it"
    return wrong("model", f"model.default is {name}, but no server offers it", hint)


def auxiliaries(config: Config) -> Found:
    """Models for side tasks, where they have an address of their own."""
    from hermes.agent.endpoint.providers import key_for

    variables = _variables()
    for task in ("title", "summary", "compression"):
        section: Auxiliary | None = getattr(config.auxiliary, task)
        if section is None or not (section.model or section.base_url):
            continue
        base_url = section.base_url or config.model.base_url or variables.get("OPENAI_BASE_URL")
        if base_url:
            key = section.api_key or (config.model.api_key if base_url == config.model.base_url else None)
            key = key or key_for(base_url, variables)
            yield _endpoint(f"auxiliary {task}", section.model, base_url, key, f"auxiliary.{task}")


def _endpoint(label: str, name: str | None, base_url: str, key: str | None, section: str) -> DoctorFinding:
    """Query an endpoint, and interpret its answer."""
    import httpx

    from hermes.agent.endpoint.servers import is_near, without_password

    shown = without_password(base_url)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(timeout=PATIENCE, trust_env=not is_near(base_url), follow_redirects=True) as client:
            answer = client.get(f"{base_url.rstrip('/')}/models", headers=headers)
    except httpx.TimeoutException:
        return wrong(
            label, f"{shown} does not answer within {PATIENCE:g} seconds", f"check {section}.base_url and the network"
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError):
        return wrong(label, f"no server answers at {shown}", f"start that server, or check {section}.base_url")
    if answer.status_code in (401, 403):
        said = "does not accept the key" if key else "requires a key, and none is set"
        return wrong(label, f"{shown} {said}", f"hermes config set {section}.api_key")
    if answer.status_code >= 500:
        return wrong(label, f"{shown} failed (HTTP {answer.status_code})", "try again later")
    listed = _listed(answer)
    if listed is None:
        said = f"{shown} answers, but does not say which models it has (HTTP {answer.status_code})"
        return remark(label, said, f"should {section}.base_url end in /v1?")
    if name and name not in listed and f"{name}:latest" not in listed:
        hint = f"hermes config set {section}.{'default' if section == 'model' else 'model'} NAME"
        return wrong(label, f"{shown} does not list {name}{suggestion(name, listed)}", hint)
    return well(label, f"{name or (listed or ['no model'])[0]} at {shown}, {len(listed)} listed")


def _listed(answer: Any) -> list[str] | None:
    if answer.status_code != 200:
        return None
    try:
        data = answer.json()
    except ValueError:
        return None
    items = data.get("data") if isinstance(data, dict) else data
    if not isinstance(items, list):
        return None
    return [item["id"] for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


def local_servers(config: Config) -> Found:
    """Servers on this machine, on their usual ports."""
    from hermes.agent.endpoint.servers import find_servers

    found = find_servers()
    if not found:
        none = "none on the usual ports (Ollama, LM Studio, vLLM, llama.cpp)"
        yield well("local servers", "not looked for (HERMES_NO_LOCAL)" if os.environ.get("HERMES_NO_LOCAL") else none)
    for one in found:
        models = ", ".join(one.models[:3]) + (f" and {len(one.models) - 3} more" if len(one.models) > 3 else "")
        yield well("local servers", f"{one.server.name} at {one.server.base_url}: {models}")


def embedded(config: Config) -> Found:
    """The small model that needs no network: whether its file is installed and intact."""
    import hashlib

    from hermes.agent.model_files import MODELS, models_folder

    folder = models_folder(get_hermes_home())
    files = [(known, one) for known in MODELS.values() for one in known.files if (folder / one.name).exists()]
    for known, one in files:
        name, path, wanted = known.name, folder / one.name, one.sha256
        label = "embedded model" if known.purpose == "chat" else "meaning"
        try:
            with path.open("rb") as file:
                right = hashlib.file_digest(file, "sha256").hexdigest() == wanted
        except OSError as error:
            yield wrong(label, f"{path} can't be read ({error.strerror})", f"chmod u+r {path}")
            continue
        if not right:
            yield wrong(label, f"{path} is damaged (its hash is wrong)", f"hermes model install {name}")
        elif one.name == known.file:
            yield well(label, f"{name} in {path}")
    there = any(known.purpose == "chat" for known, _ in files)
    if not there and config.model.default == "embedded":
        yield wrong(
            "embedded model", "model.default is embedded, and none is installed", "hermes model install smollm2"
        )
    elif not there:
        yield well("embedded model", "not installed (`hermes model install smollm2` fetches one)")


def mcp_servers(config: Config) -> Found:
    """Servers with tools: whether the program exists, or the address answers."""
    if not config.mcp_servers:
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        usable = {name: one for name, one in config.mcp_servers.items() if not config.unset_in(f"mcp_servers.{name}")}
        yield from pool.map(lambda item: _mcp(*item), usable.items())  # the check of config.yaml names the others


def _mcp(name: str, server: McpServer) -> DoctorFinding:
    label, key = f"MCP {name}", f"mcp_servers.{name}"
    if server.command is not None:
        folders = {**_variables(), **server.env}.get("PATH")
        found = shutil.which(os.path.expanduser(server.command), path=folders)
        if found is None:
            return wrong(label, f"the program {server.command} is not installed", f"install it, or check {key}.command")
        return well(label, f"{Path(found)} is installed")
    import httpx

    from hermes.agent.endpoint.servers import is_near, without_password

    url = server.url or ""
    shown = without_password(url)
    try:
        headers = {"Accept": "application/json, text/event-stream", **server.headers}
        with (
            httpx.Client(timeout=PATIENCE, trust_env=not is_near(url), follow_redirects=True) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            status = answer.status_code
    except httpx.TimeoutException:
        return wrong(label, f"{shown} does not answer within {PATIENCE:g} seconds", f"check {key}.url and the network")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError):
        return wrong(label, f"no server answers at {shown}", f"start that server, or check {key}.url")
    if status in (401, 403):
        return wrong(label, f"{shown} refuses the request (HTTP {status})", f"check {key}.headers")
    if status == 404:
        return wrong(label, f"{shown} has no such address (HTTP 404)", f"check {key}.url")
    if status >= 500:
        return wrong(label, f"{shown} failed (HTTP {status})", "check that server")
    return well(label, f"{shown} answers")
