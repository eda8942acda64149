"""The doctor's checks of what can be reached: models, MCP servers, the gateway and its platforms.

An endpoint is asked for its list of models, which costs nothing and shows whether it answers, accepts the key and has the
model. A platform is asked for the bot's name (`Adapter.check`), which does not disturb a running gateway. The program
of an MCP server is looked up, not started.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hermes.cli.doctor import Found, remark, well, wrong
from hermes.config import Config, environment, suggestion
from hermes.errors import HermesError, PlatformUnreachable
from hermes.home import get_hermes_home
from hermes.texts import one_line

if TYPE_CHECKING:
    import httpx

    from hermes.gateway.adapter import Adapter
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.api.session_db import SessionDB

PATIENCE = 4.0  # seconds a server has to answer
PLATFORM_PATIENCE = 8.0
Answer = TypeVar("Answer")


def _get(url: str, headers: Mapping[str, str], shown: str) -> httpx.Response:
    """A server's answer to GET; of a stream only its beginning. HermesError (naming `shown`) when there is none."""
    import httpx

    from hermes.agent.models.servers import is_near

    try:
        with (
            httpx.Client(timeout=PATIENCE, trust_env=not is_near(url), follow_redirects=True) as client,
            client.stream("GET", url, headers=dict(headers)) as answer,
        ):
            if "event-stream" not in answer.headers.get("content-type", ""):
                answer.read()
            return answer
    except httpx.TimeoutException:
        raise HermesError(f"{shown} does not answer within {PATIENCE:g} seconds") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError):
        raise HermesError(f"no server answers at {shown}") from None


def model(config: Config, task: str | None) -> Found:
    """Check the model that answers, or the one for a side task, at its endpoint."""
    from hermes.agent.models.choice import language_model
    from hermes.agent.models.endpoint import EndpointModel
    from hermes.agent.models.servers import headers_for, without_password

    if task is not None:
        own, main = getattr(config.auxiliary, task), config.model
        key = own.api_key or (None if own.base_url else main.api_key)
        fields = {"default": own.model or main.default, "base_url": own.base_url or main.base_url, "api_key": key}
        config = config.changed(model=msgspec.structs.replace(main, **fields))
    found = language_model(config)
    if not isinstance(found, EndpointModel):
        none = "none: your own history is quoted (`hermes model install smollm2` fetches a small one)"
        yield well(found.describe() if found else none)
        return
    section = "model" if task is None else f"auxiliary.{task}"
    shown, key, url = without_password(found.base_url or ""), found.api_key, f"{found.base_url}/models"
    try:
        answer = _get(url, headers_for(url, key), shown)
    except HermesError as error:
        yield wrong(str(error), f"start that server, or check {section}.base_url and the network")
        return
    listed = _listed(answer)
    if answer.status_code in (401, 403):
        text = "does not accept the key" if key else "requires a key, and none is set"
        yield wrong(f"{shown} {text}", f"hermes config set {section}.api_key")
    elif answer.status_code >= 500:
        yield wrong(f"{shown} failed (HTTP {answer.status_code})", "try again later")
    elif listed is None:
        text = f"{shown} answers, but does not say which models it has (HTTP {answer.status_code})"
        yield remark(text, f"should {section}.base_url end in /v1?")
    elif found.name not in listed and f"{found.name}:latest" not in listed:
        hint = f"hermes config set {section}.{'model' if task else 'default'} NAME"
        yield wrong(f"{shown} does not list {found.name}{suggestion(found.name, listed)}", hint)
    else:
        yield well(f"{found.name} at {shown}, {len(listed)} listed")


def _listed(answer: httpx.Response) -> list[str] | None:
    """The names of the models in an answer; None when it is not a list of models."""
    try:
        data = answer.json() if answer.status_code == 200 else None
    except ValueError:
        return None
    items = data.get("data") if isinstance(data, dict) else data
    if not isinstance(items, list):
        return None
    ids = [item.get("id") for item in items if isinstance(item, dict)]
    return [one.removeprefix("models/") for one in ids if isinstance(one, str)]


def mcp_server(config: Config, name: str) -> Found:
    """Check an MCP server: its program exists, or its address answers."""
    from hermes.agent.models.servers import without_password

    server, key = config.mcp_servers[name], f"mcp_servers.{name}"
    if server.command is not None:
        found = shutil.which(os.path.expanduser(server.command), path={**environment(), **server.env}.get("PATH"))
        if found is None:
            yield wrong(f"the program {server.command} is not installed", f"install it, or check {key}.command")
        else:
            yield well(f"{found} is installed")
        return
    shown = without_password(server.url or "")
    try:
        headers = {"Accept": "application/json, text/event-stream", **server.headers}
        answer = _get(server.url or "", headers, shown)
    except HermesError as error:
        yield wrong(str(error), f"start that server, or check {key}.url")
        return
    status = answer.status_code
    if status in (401, 403, 404) or status >= 500:
        yield wrong(f"{shown} refuses the request (HTTP {status})", f"check {key}.url and {key}.headers")
    else:
        yield well(f"{shown} answers")


# ------------------------------------------------------------------------------------------------ the gateway


def _from_store(config: Config, ask: Callable[[SessionDB], Answer]) -> Answer | None:
    """A value from the store; None when it can't be read, which its own check reports."""
    from hermes.store.api.configured import open_existing

    try:
        with open_existing(config) or nullcontext() as db:
            return None if db is None else ask(db)
    except HermesError:
        return None


def gateway(config: Config) -> Found:
    """Check that the gateway runs, if anything is configured for it."""
    from hermes.gateway.startup import running

    names = [*config.enabled_platforms, *(["webhooks"] if config.webhooks.routes else [])]
    names += ["the API server"] if config.api_server.enabled else []
    if not names:
        return
    found = _from_store(config, running)
    if not found:
        yield remark(f"not running (set up: {', '.join(names)})", "hermes gateway")
        return
    yield well("runs (" + ", ".join(f"process {one.process} on {one.host}" for one in found) + ")")


def platform(config: Config, name: str) -> Found:
    """Check a platform: its library, settings, login, people and home chat."""
    from hermes.cli.gateway_setup import guide_page
    from hermes.gateway.startup import made_adapter

    adapter, settings = made_adapter(config, name, environment(), get_hermes_home())
    adapter.validate()
    who = _connected_as(config, name) if adapter.one_connection else None
    yield well(f"logged in to {adapter.title} as {one_line(who or asyncio.run(_identity(adapter)))}")
    yield from _people(config, name, settings)
    if doubts := adapter.doubts():
        page = f"platforms/{adapter.platform}.md"
        yield remark(doubts, f"{guide_page(page) or f'docs/guide/{page}'} says how senders are proven")


def _connected_as(config: Config, name: str) -> str | None:
    """The account that the running gateway is connected as: a login here would end that connection."""
    from hermes.gateway.startup import running
    from hermes.store.gateway.gateway_db import GatewayDB

    def identity(db: SessionDB) -> str | None:
        rows = [row for row in GatewayDB(db).statuses() if row["platform"] == name and row["state"] == "connected"]
        return rows[0]["identity"] if rows and running(db) else None

    return _from_store(config, identity)


async def _identity(adapter: Adapter) -> str:
    try:
        async with asyncio.timeout(PLATFORM_PATIENCE):
            return await adapter.check()
    except TimeoutError:
        raise PlatformUnreachable(
            f"{adapter.title} did not answer within {PLATFORM_PATIENCE:.0f} seconds; check your network connection"
        ) from None
    finally:
        await adapter.disconnect()


def _people(config: Config, name: str, settings: PlatformSettings) -> Found:
    """Check who may talk on a platform, and its home chat."""
    from hermes.gateway.settings import section_key
    from hermes.store.gateway import approvals
    from hermes.store.gateway.gateway_db import GatewayDB

    kind = name.partition("/")[0]
    people = _from_store(config, lambda db: GatewayDB(db).read(approvals.everyone)) or []
    counts = {
        "owner": sum(one.startswith(f"{kind}:") for one in config.owner),
        "allowed": len(settings.allowed_users),
        "paired": sum(one["platform"] == name for one in people),
    }
    if settings.allow_all:
        yield remark("everyone may talk (allow_all)", f"list them: {section_key(config, name)}.allowed_users")
    elif any(counts.values()):
        yield well("may talk: " + ", ".join(f"{number} {what}" for what, number in counts.items() if number))
    else:
        hint = "write to it and approve the code it sends you: hermes pairing approve CODE"
        yield remark("no one is allowed to talk yet", hint)
    if not counts["owner"]:
        hint = f"put `owner: [{kind}:<your user id>]` into config.yaml"
        yield remark("no owner is set: no terminal, no handoff", hint)
    home = settings.home_channel or _from_store(config, lambda db: GatewayDB(db).read(approvals.home, name))
    if not home and config.why_answers_only(name) is None:
        yield remark("it has no home chat, so it gets no handoffs", "send /sethome in a chat with it")


def servers(config: Config) -> Found:
    """Check the addresses that other programs call: whether they can be served, and who may use them."""
    from hermes.gateway.startup import check_api_server, webhook

    if config.webhooks.routes:
        adapter, _ = webhook(config, get_hermes_home(), insecure=False)
        adapter.validate()
        yield well(asyncio.run(_identity(adapter)), name="webhooks")
    settings = config.api_server
    if settings.enabled:
        check_api_server(config)
        where = f"{settings.host}:{settings.port}"
        text = f"every user of this machine may use it as the owner ({where}, no token)"
        with_token = well(f"{where}, with a token", name="API server")
        yield with_token if settings.token else remark(text, "set api_server.token", "API server")
