"""Starting a gateway from the configuration: the store, the model, the adapters, the servers; one gateway at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.leases import Lease, kept
from hermes.config.settings_schema import fields_of
from hermes.errors import ConfigError, HermesError, MissingExtra, StoreGone
from hermes.gateway.platforms import adapter_class
from hermes.gateway.settings import PlatformSettings, listening, platform_settings, section_key
from hermes.store import connections

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.runner import Gateway
    from hermes.serve.server import HttpServer
    from hermes.store.db import SessionDB

LEASE = "job:gateway"
API = "api-server"  # the API server's name among the platforms
WEBHOOK = "webhook"
_PARTS = ("platforms", "webhooks", "api_server", "mcp_servers")  # an error in one does not affect the others
_NOTHING = "no platform is enabled: `hermes gateway setup` sets one up"
LEASE_SECONDS = 30.0
API_PAUSE = 5.0  # seconds before the API server tries again to listen
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
    """Raise why a gateway would have nothing to do: no platform, no API server, no histories to follow and no jobs.

    That is the reason why a platform was left out (ConfigError, MissingExtra, PlatformRefused), or that none is enabled.
    """
    from hermes.store.cron_jobs import CronDB

    if not made.adapters and not made.api_server and not config.gateway.watch.enabled and not CronDB(db).jobs():
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
    """ConfigError or MissingExtra when the API server can't run as configured, or would let strangers in."""
    config.require_set("api_server")
    config.require_known("api_server")
    try:
        from hermes.serve.authorization import check_api
    except ImportError as error:
        raise MissingExtra("the API server", "serve") from error
    check_api(config.api_server.host, config.api_server.token, config.api_server.keys, insecure=insecure)


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


def holder() -> str:
    """This process, under a name that shows whether it still runs."""
    return f"{socket.gethostname()}:{os.getpid()}:gateway"


@dataclass(frozen=True, slots=True)
class Running:
    """The process that is the gateway of a store."""

    name: str  # the holder's name in its lease
    host: str
    process: int

    @property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == socket.gethostname()


def running(db: SessionDB) -> list[Running]:
    """The gateways of a store, of which a SQLite file has one; [] when none runs, or it was killed."""
    from hermes.store.db import Transactions
    from hermes.store.leases import is_gone

    with Transactions(db).read() as tx:
        names = sorted(connections.gateways(tx))
    if not db.is_shared and (only := db.lease_holder(LEASE)) is not None:
        names = [only]
    return [_running(name) for name in names if not is_gone(name)]


def connected_by(db: SessionDB, platform: str) -> Running | None:
    """Which of several gateways is connected to a platform; None when there is only one, or none is."""
    name = db.lease_holder(connections.connection_lease(platform)) if db.is_shared else None
    return None if name is None else _running(name)


def _running(name: str) -> Running:
    host, _, rest = name.partition(":")
    number = rest.partition(":")[0]
    return Running(name, host, int(number) if number.isdigit() else 0)


@contextmanager
def only_one(db: SessionDB) -> Iterator[int | None]:
    """Become the gateway of a store, or raise who is. The lease's token; None where several gateways may share the store."""
    if db.is_shared:
        yield None
        return
    token = db.acquire_lease(LEASE, holder(), LEASE_SECONDS)
    if token is None:
        others = running(db)
        who = f"process {others[0].process} on {others[0].host}" if others else "it is just stopping"
        raise HermesError(f"a gateway is already running ({who}); `hermes gateway stop` stops it")
    try:
        yield token
    finally:
        db.release_lease(LEASE, token)


async def serve(config: Config, db: SessionDB, home: Path, made: Made, *, insecure: bool = False) -> None:
    """Run these platforms, and the API server if it is enabled, until SIGTERM or Ctrl-C."""
    from hermes.agent.model_choice import choose_model
    from hermes.gateway.runner import Gateway

    with only_one(db) as token:
        ending = asyncio.Event()
        gone: list[StoreGone] = []
        # Renew the lease while the model loads, which may take minutes. Where several gateways run, each has its own lease.
        with nullcontext() if token is None else kept(_lease(db, token, ending, gone)):
            model = await asyncio.to_thread(choose_model, config, db)
            _log.info("%s answers", model.describe())
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, _asked_to_end, ending)
            gateway = Gateway(db, config, model, made.adapters, home)
            if token is not None:  # there is no other: what an earlier gateway of this file held is free at once
                await asyncio.to_thread(gateway.store.write, connections.free_all)
            for name, problem in made.left_out.items():
                _log.error("%s does not start: %s", name, problem)
                await asyncio.to_thread(gateway.store.set_status, name, "refused", error=str(problem))
            server = ApiServer(config, gateway, insecure=insecure) if made.api_server else None
            if server is not None:
                await server.start(alone=not made.adapters)
            end = asyncio.create_task(_end(ending, gateway, server))
            try:
                await gateway.run()
            finally:
                ending.set()
                await end
            if gone:
                raise gone[0]


def _asked_to_end(ending: asyncio.Event) -> None:
    """A signal arrived: stop in order, and exit for certain."""
    from hermes.gateway.runner import end_for_sure

    if not ending.is_set():
        ending.set()
        end_for_sure()


async def _end(ending: asyncio.Event, gateway: Gateway, server: ApiServer | None) -> None:
    """Stop everything at the same time, so that it takes ten seconds and not the sum."""
    await ending.wait()
    gateway.stop()
    if server is not None:
        await server.stop()


class ApiServer:
    """The API server beside the platforms: while its port is taken, it retries and the platforms keep running."""

    def __init__(self, config: Config, gateway: Gateway, *, insecure: bool) -> None:
        self._config, self._gateway, self._insecure = config, gateway, insecure
        self._server: HttpServer | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._notes: set[asyncio.Task[None]] = set()

    async def start(self, *, alone: bool) -> None:
        """Listen, now or as soon as the port is free. `alone`: nothing else runs, so that a failure is raised."""
        try:
            await self._listen()
        except HermesError as error:
            if alone:
                raise
            await self._note(error)
            self._lost.set()
        self._keeping = asyncio.create_task(self._keep(), name="api-server")

    async def _listen(self) -> None:
        try:
            from hermes.serve.api import api_app
            from hermes.serve.connection_limits import Limits
            from hermes.serve.server import HttpServer
        except ImportError as error:
            raise MissingExtra("the API server", "serve") from error

        gateway, settings = self._gateway, self._config.api_server
        app = api_app(
            gateway.db, self._config, model=gateway.agents.model, home=gateway.home, insecure=self._insecure,
            token=settings.token, tools=gateway.agents.toolbox.tools,
        )  # fmt: skip
        server = HttpServer(app, settings.host, settings.port, died=self._died, limits=Limits(), crowded=self._crowded)
        where = _address(self._config, await server.start())
        self._server = server
        _log.info("the API server listens on %s", where)
        await asyncio.to_thread(gateway.store.set_status, API, "connected", identity=where)

    def _crowded(self, text: str) -> None:
        """Connections were refused: `hermes gateway status` shows it."""

        async def note() -> None:
            try:
                await asyncio.to_thread(self._gateway.store.set_status, API, "connected", error=text)
            except HermesError as error:
                _log.warning("the state of the API server could not be stored: %s", error)

        self._notes.add(task := asyncio.create_task(note()))
        task.add_done_callback(self._notes.discard)

    def _died(self, error: Exception) -> None:
        _log.error("%s", error)
        self._lost.set()

    async def _keep(self) -> None:
        """Listen again whenever the server has stopped listening."""
        while True:
            await self._lost.wait()
            await asyncio.sleep(API_PAUSE)
            try:
                await self._listen()
                self._lost.clear()
            except HermesError as error:
                await self._note(error)

    async def _note(self, error: HermesError) -> None:
        _log.error("the API server does not listen: %s; trying again in %.0f s", error, API_PAUSE)
        await asyncio.to_thread(self._gateway.store.set_status, API, "lost", error=str(error))

    async def stop(self) -> None:
        """Accept no more requests; running ones may finish for a moment."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._server is not None:
            await self._server.stop(5.0)
        await asyncio.to_thread(self._gateway.store.set_status, API, "stopped")


def _address(config: Config, port: int) -> str:
    host = config.api_server.host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _lease(db: SessionDB, token: int, ending: asyncio.Event, gone: list[StoreGone]) -> Lease:
    """The lease of a store's only gateway. If another gateway takes it over (this one slept too long), this one stops.

    A store whose file was deleted or replaced does not come back by itself: then the gateway stops, with that error.
    """
    loop = asyncio.get_running_loop()

    def lost() -> None:
        _log.error("another gateway has taken over; this one stops")
        loop.call_soon_threadsafe(ending.set)

    def failed(error: HermesError) -> None:
        if isinstance(error, StoreGone):
            _log.error("the gateway stops: %s", error)
            gone.append(error)
            loop.call_soon_threadsafe(ending.set)
        else:
            _log.warning("the lease could not be renewed: %s", error)

    return Lease(db, (LEASE, token), LEASE_SECONDS, lost=lost, failed=failed)
