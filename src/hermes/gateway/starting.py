"""Starting a gateway from the configuration: the store, the model, the adapters, the servers, and one of it at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import ConfigError, HermesError, MissingExtra
from hermes.gateway.platforms import adapter_class
from hermes.gateway.settings import PlatformSettings, platform_settings

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.runner import Gateway
    from hermes.store.db import SessionDB

LEASE = "gateway"
LEASE_SECONDS = 30.0
_log = logging.getLogger("hermes.gateway")


def made_adapters(
    config: Config, variables: Mapping[str, str], home: Path, *, insecure: bool = False
) -> list[tuple[Adapter, PlatformSettings]]:
    """The adapters of all enabled platforms, not yet connected. ConfigError or MissingExtra says what is wrong."""
    made: list[tuple[Adapter, PlatformSettings]] = []
    for name in config.enabled_platforms:
        kind = adapter_class(name)
        settings = platform_settings(config, kind, variables)
        made.append((kind(settings.values, home), settings))
    if not made and not config.webhooks.routes and not config.api_server.enabled:
        raise ConfigError("no platform is switched on: `hermes gateway setup` sets one up")
    if config.webhooks.routes:
        made.append(_webhook(config, home, insecure))
    return made


def _webhook(config: Config, home: Path, insecure: bool) -> tuple[Adapter, PlatformSettings]:
    """The webhooks, which have a section of their own. Whoever has the secret of a route may speak there."""
    import msgspec

    try:
        from hermes.gateway.platforms.webhook import Webhook
    except ImportError as error:
        raise MissingExtra("webhooks", "serve") from error
    section = config.webhooks
    routes = {name: msgspec.to_builtins(route) for name, route in section.routes.items()}
    values = {"host": section.host, "port": section.port, "routes": routes, "insecure": insecure}
    return Webhook(values, home), PlatformSettings("webhook", allow_all=True, require_mention=False)


def secrets_of(adapters: list[tuple[Adapter, PlatformSettings]], config: Config) -> list[str]:
    """Every secret the configuration holds, so that it can be kept out of logs."""
    found = [
        config.model.api_key,
        config.api_server.token,
        *(route.secret for route in config.webhooks.routes.values()),
    ]
    for adapter, _ in adapters:
        found += [adapter.values.get(setting.name) for setting in adapter.settings if setting.secret]
    return [str(one) for one in found if one]


def holder() -> str:
    """This process, by a name that tells whether it still runs."""
    return f"{socket.gethostname()}:{os.getpid()}:gateway"


@contextmanager
def only_one(db: SessionDB) -> Iterator[int]:
    """Be the gateway of a store, or say who is. The token of the lease."""
    from hermes.agent.holding import is_gone

    token = db.acquire_lease(LEASE, holder(), LEASE_SECONDS)
    if token is None:
        other = db.lease_holder(LEASE)
        if other is not None and is_gone(other):
            gone = db.acquire_lease(LEASE, other, 1.0)  # in its name, to give back what it can't any more
            if gone is not None:
                db.release_lease(LEASE, gone)
            token = db.acquire_lease(LEASE, holder(), LEASE_SECONDS)
    if token is None:
        raise HermesError(f"a gateway runs already ({_process(db.lease_holder(LEASE))}); `hermes gateway stop` ends it")
    try:
        yield token
    finally:
        db.release_lease(LEASE, token)


def _process(name: str | None) -> str:
    if name is None:
        return "just ended"
    host, _, rest = name.partition(":")
    return f"process {rest.partition(':')[0]} on {host}"


async def serve(
    config: Config,
    db: SessionDB,
    home: Path,
    adapters: list[tuple[Adapter, PlatformSettings]],
    *,
    insecure: bool = False,
) -> None:
    """Run these platforms, and the API server if it is enabled, until SIGTERM or Ctrl-C."""
    from hermes.agent.choose import choose_model
    from hermes.gateway.runner import Gateway

    model = await asyncio.to_thread(choose_model, config, db)
    _log.info("%s answers", model.describe())
    gateway = Gateway(db, config, model, adapters, home)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, gateway.stop)
    with only_one(db) as token:
        beat = asyncio.create_task(_beat(db, token, gateway))
        server = await _api_server(config, db, home, model, insecure) if config.api_server.enabled else None
        try:
            await gateway.run()
        finally:
            beat.cancel()
            if server is not None:
                await server.stop(5.0)


async def _api_server(config: Config, db: SessionDB, home: Path, model: Any, insecure: bool) -> Any:
    try:
        from hermes.serve.api import api_app
        from hermes.serve.server import HttpServer
    except ImportError as error:
        raise MissingExtra("the API server", "serve") from error

    settings = config.api_server
    app = api_app(db, config, model=model, home=home, token=settings.token, insecure=insecure)
    server = HttpServer(app, settings.host, settings.port)
    port = await server.start()
    _log.info("the API server listens on http://%s:%s/v1", settings.host, port)
    return server


async def _beat(db: SessionDB, token: int, gateway: Gateway) -> None:
    """Show that we live; if somebody else is the gateway by now (we slept too long), we are not."""
    while True:
        await asyncio.sleep(LEASE_SECONDS / 3)
        try:
            ours = await asyncio.to_thread(db.renew_lease, LEASE, token, LEASE_SECONDS)
        except HermesError as error:
            _log.warning("the sign of life could not be given: %s", error)
            continue
        if not ours:
            _log.error("another gateway has taken over; this one ends")
            gateway.stop()
            return
