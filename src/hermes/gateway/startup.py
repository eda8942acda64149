"""Starting a gateway from the configuration: the store, the model, the adapters, the servers; one gateway at a time."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.leases import Lease, renewing
from hermes.config.settings_schema import fields_of
from hermes.errors import ConfigError, HermesError, MissingExtra
from hermes.gateway.adapter import Adapter, Capabilities, Link
from hermes.gateway.platforms import adapter_class
from hermes.gateway.settings import PlatformSettings, listening, platform_settings, section_key
from hermes.store import leases
from hermes.store.api.session_db import Transactions
from hermes.store.leases import holder_name, is_gone

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.runner import Gateway
    from hermes.serve.http import HttpServer
    from hermes.store.api.session_db import SessionDB
    from hermes.store.engines.base import Tx

API = "api-server"  # the API server's name among the platforms
WEBHOOK = "webhook"
_PARTS = ("platforms", "webhooks", "api_server", "mcp_servers")  # an error in one does not affect the others
_NOTHING = "no platform is enabled: `hermes gateway setup` sets one up"
_log = logging.getLogger("hermes.gateway")


@dataclass(frozen=True, slots=True)
class Made:
    """The parts the configuration enables: those that can run, and those that can't, with the reason."""

    adapters: list[tuple[Adapter, PlatformSettings]]
    api_server: bool
    left_out: dict[str, HermesError]  # by platform


def made_adapters(config: Config, variables: Mapping[str, str], home: Path, *, insecure: bool = False) -> Made:
    """The adapters of all enabled platforms, not yet connected.

    A platform that can't run (its settings, its library, a variable that is not set) never stops the others: it is left
    out, with the reason. With no platform left, a gateway may still run jobs (`check_work`).
    """
    config.require_set(*(name for name in fields_of(type(config)) if name not in _PARTS))
    made: list[tuple[Adapter, PlatformSettings]] = []
    left_out: dict[str, HermesError] = {}
    for name in [*config.enabled_platforms, *([WEBHOOK] if config.webhooks.routes else [])]:
        try:
            if name == WEBHOOK:
                adapter, settings = webhook(config, home, insecure=insecure)
            else:
                adapter, settings = made_adapter(config, name, variables, home)
            adapter.validate()
            made.append((adapter, settings))
        except HermesError as error:
            left_out[name] = error
        except ValueError as error:  # a library's, about an address that is none
            left_out[name] = ConfigError(f"{section_key(config, name)}: {error}")
    serves = config.api_server.enabled
    if serves:
        try:
            check_api_server(config, insecure=insecure)
        except HermesError as error:
            serves, left_out[API] = False, error
    return Made(made, serves, left_out)


def check_work(made: Made, db: SessionDB, config: Config) -> None:
    """Raise why a gateway would have nothing to do: no platform, no API server and no jobs.

    That is the reason why a platform was left out (ConfigError, MissingExtra, PlatformRefused), or that none is enabled.
    """
    from hermes.store.gateway.cron import CronDB

    if not made.adapters and not made.api_server and not CronDB(db).jobs():
        raise next(iter(made.left_out.values()), ConfigError(_NOTHING))


def made_adapter(
    config: Config, name: str, variables: Mapping[str, str], home: Path, kind: type[Adapter] | None = None
) -> tuple[Adapter, PlatformSettings]:
    """The adapter of a platform ("telegram") or of one of its accounts ("telegram/work"), not yet connected."""
    platform, _, account = name.partition("/")
    kind = kind or adapter_class(platform)
    settings = platform_settings(config, kind, variables, account=account or None)
    adapter = kind(settings.values, account_home(home, platform, account) if account else home)
    adapter.account_name = account or None
    adapter.webhook_place = listening(config)
    return adapter, settings


def account_home(home: Path, platform: str, account: str) -> Path:
    """The folder for the files of one of several accounts."""
    return home / "accounts" / platform / account


def check_api_server(config: Config, *, insecure: bool = False) -> None:
    """ConfigError or MissingExtra when the API server can't run as configured, or would be open to everyone."""
    config.require_set("api_server")
    config.require_known("api_server")
    try:
        from hermes.serve.authorization import check_api
    except ImportError as error:
        raise MissingExtra("the API server", "serve") from error
    check_api(config.api_server.host, config.api_server.token, insecure=insecure)


def webhook(config: Config, home: Path, *, insecure: bool) -> tuple[Adapter, PlatformSettings]:
    """The webhooks, which have their own section. A client with a route's secret may send messages there."""
    import msgspec

    config.require_set("webhooks")
    config.require_known("webhooks")
    try:
        from hermes.gateway.platforms.webhook import Webhook
    except ImportError as error:
        raise MissingExtra("webhooks", "serve") from error
    section = config.webhooks
    routes = {name: msgspec.to_builtins(route) for name, route in section.routes.items()}
    here, usual = config.gateway.listen, type(section)()
    moved = (section.host, section.port) != (usual.host, usual.port)  # webhooks with a port of their own keep it
    host, port = (section.host, section.port) if moved else (here.host, here.port)
    adapter = Webhook({"host": host, "port": port, "routes": routes, "insecure": insecure}, home)
    adapter.webhook_place = listening(config)
    return adapter, PlatformSettings("webhook", allow_all=True, require_mention=False, titles=False)


def secrets_of(
    adapters: list[tuple[Adapter, PlatformSettings]], config: Config, variables: Mapping[str, str]
) -> list[str]:
    """Every secret of the configuration and the environment, so that logs can mask them."""
    import msgspec

    from hermes.config.settings_schema import is_secret

    def inside(value: Any, keys: list[str]) -> Iterator[str]:
        if isinstance(value, dict):
            for key, item in value.items():
                yield from inside(item, [*keys, str(key)])
        elif isinstance(value, list):
            for item in value:
                yield from inside(item, keys)
        elif value is not None and not isinstance(value, bool) and is_secret(keys):
            yield str(value)

    found = [*inside(msgspec.to_builtins(config), []), *inside({"env": dict(variables)}, [])]
    for adapter, _ in adapters:
        found += [str(adapter.values.get(one.name) or "") for one in adapter.settings if one.secret]
    return [one for one in dict.fromkeys(found) if one]


@dataclass(frozen=True, slots=True)
class Running:
    """A process that is a gateway of a store."""

    host: str
    process: int

    @property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == socket.gethostname()


def running(db: SessionDB) -> list[Running]:
    """The gateways of a store, of which a SQLite file has one; [] when none runs, or it was killed."""
    with Transactions(db).read() as tx:
        return _alive(tx)


def _alive(tx: Tx) -> list[Running]:
    return list(dict.fromkeys(_running(name) for name in leases.gateways(tx) if not is_gone(name)))


def connected_by(db: SessionDB, platform: str) -> Running | None:
    """Which of several gateways is connected to a platform; None when there is only one, or none is."""
    name = db.lease_holder(leases.connection_lease(platform)) if db.is_shared else None
    return None if name is None else _running(name)


def _running(holder: str) -> Running:
    host, number, *_ = f"{holder}:".split(":")
    return Running(host, int(number) if number.isdigit() else 0)


@contextmanager
def announced(db: SessionDB) -> Iterator[None]:
    """Show that the one gateway of a file runs here, from its start; HermesError when another one does.

    On a store that several gateways share, each shows itself when it is ready to take connections.
    """
    from hermes.gateway.connection import PATIENCE

    if db.is_shared:
        yield
        return
    name = holder_name("gateway")
    with Transactions(db).write() as tx:
        if others := [one for one in _alive(tx) if one != _running(name)]:
            who = f"process {others[0].process} on {others[0].host}"
            raise HermesError(f"a gateway is already running ({who}); `hermes gateway stop` stops it")
        leases.free_gateways(tx)  # what an earlier gateway of this file held is free at once
        fence = leases.join_gateways(tx, name, PATIENCE)
    assert fence is not None  # no other process has this name
    try:
        with renewing(Lease(db, fence, PATIENCE)):
            yield
    finally:
        db.release_lease(*fence)


async def serve(config: Config, db: SessionDB, home: Path, made: Made, *, insecure: bool = False) -> None:
    """Run these platforms, and the API server if it is enabled, until SIGTERM or Ctrl-C."""
    from hermes.agent.models.choice import choose_model
    from hermes.gateway.runner import Gateway, end_for_sure

    if made.api_server and not made.adapters:
        from hermes.serve.http import check_address

        check_address(config.api_server.host, config.api_server.port)
    with announced(db):
        model = await asyncio.to_thread(choose_model, config, db)
        _log.info("%s answers", model.describe())
        gateway = Gateway(db, config, model, made.adapters, home)
        ending = asyncio.Event()

        def asked_to_end() -> None:
            """A signal arrived: stop in order, and exit for certain."""
            if not ending.is_set():
                ending.set()
                end_for_sure()

        async def end() -> None:
            """Stop everything at the same time, so that it takes ten seconds and not the sum."""
            await ending.wait()
            gateway.stop()
            serving.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, asked_to_end)
        for name, problem in made.left_out.items():
            _log.error("%s does not start: %s", name, problem)
            await asyncio.to_thread(gateway.store.set_status, name, "refused", error=str(problem))
        serving = asyncio.gather(*([_serving(config, gateway, insecure)] if made.api_server else []))
        stopping = asyncio.create_task(end())
        try:
            await gateway.run()
        finally:
            ending.set()
            await asyncio.gather(stopping, serving, return_exceptions=True)


async def _serving(config: Config, gateway: Gateway, insecure: bool) -> None:
    """Keep the API server listening, as a platform is kept connected, until cancelled."""
    from hermes.gateway.connection import Connection

    async def take(platform: str, what: Any) -> None:
        """It brings no events."""

    server, settings = ApiServer(config, gateway, insecure=insecure), PlatformSettings(API)
    connection = Connection(server, settings, gateway.store, config, take, take, gateway.services.timings)
    try:
        await connection.run()
    finally:
        connection.tell("stopped")
        await connection.flush()


class ApiServer(Adapter):
    """The API server beside the platforms: while its port is taken, it retries and the platforms keep running."""

    platform = API
    title = "the API server"
    capabilities = Capabilities(longest=1)

    def __init__(self, config: Config, gateway: Gateway, *, insecure: bool) -> None:
        super().__init__({}, gateway.home)
        self._config, self._gateway, self._insecure = config, gateway, insecure
        self._server: HttpServer | None = None

    async def connect(self, link: Link) -> None:
        """Begin to listen."""
        from hermes.serve.api.app import api_app
        from hermes.serve.http import HttpServer

        gateway, settings = self._gateway, self._config.api_server
        app = api_app(
            gateway.db, self._config, model=gateway.agents.model, home=gateway.home, insecure=self._insecure,
            token=settings.token, tools=gateway.agents.toolbox.tools,
        )  # fmt: skip
        host = settings.host
        server = HttpServer(app, host, settings.port, died=link.lost)
        port = await server.start()
        self._server = server
        link.connected(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    async def disconnect(self) -> None:
        """Accept no more requests; running ones may finish for a moment."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(5.0)
