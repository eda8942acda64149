"""The doctor's checks of the gateway: whether it runs, and for each platform its library, token, home chat and people.

A platform is asked for the bot's name (`Adapter.check`), which receives nothing and takes nothing away from a running
gateway. The platform's answer is shown; the token never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from hermes.cli.checks_models import _variables
from hermes.cli.doctor import DoctorFinding, Found, remark, well, wrong
from hermes.config import Config, load_config
from hermes.errors import ConfigError, HermesError, MissingExtra, PlatformRefused
from hermes.home import get_hermes_home
from hermes.texts import one_line

if TYPE_CHECKING:
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.settings import PlatformSettings

PATIENCE = 8.0  # seconds for a platform to answer


def gateway(config: Config) -> Found:
    """Whether the gateway runs, if anything is configured for it."""
    names = [*config.enabled_platforms, *(["webhooks"] if config.webhooks.routes else [])]
    names += ["the API server"] if config.api_server.enabled else []
    names += ["watch"] if config.gateway.watch.enabled else []
    if not names:
        return
    process = _from_store(None, lambda db: _process(db))
    if process is None:
        yield remark("gateway", f"not running (set up: {', '.join(names)})", "hermes gateway")
    else:
        yield well("gateway", f"runs ({process})")
        if config.gateway.watch.enabled:
            yield from _watching(config)


def _watching(config: Config) -> Found:
    """Whether the histories of other programs are followed, and whether the folders to follow exist."""
    from hermes.jobs.following import described, folders_of, follower, places

    folders = folders_of(config.gateway.watch.folders)
    for folder in folders:
        if not folder.is_dir():
            yield remark("watch", f"{folder} (gateway.watch.folders) is not a folder", "hermes config edit")
    holder = _from_store(None, lambda db: follower(db, folders))
    if holder is None:
        yield remark("watch", "no process follows the histories of other programs", "restart the gateway")
    else:
        yield well("watch", f"follows {places(folders)} ({described(holder)})")


def _process(db: Any) -> str | None:
    from hermes.gateway.startup import running

    found = running(db)
    return ", ".join(f"process {one.process} on {one.host}" for one in found) or None


def platforms(config: Config) -> Found:
    """Each platform that config.yaml enables, all asked at the same time."""
    names = config.enabled_platforms
    if not names and not config.webhooks.routes and not config.api_server.enabled:
        return
    variables = _variables()
    with ThreadPoolExecutor(max_workers=len(names) + 1) as pool:
        for findings in pool.map(lambda name: _platform(config, name, variables), names):
            yield from findings
    if config.webhooks.routes:
        yield _webhooks(config)
    if config.api_server.enabled:
        yield _api_server(config)


def _platform(config: Config, name: str, variables: Mapping[str, str]) -> list[DoctorFinding]:
    from hermes.gateway.platforms import adapter_class
    from hermes.gateway.settings import setup_command
    from hermes.gateway.startup import made_adapter

    try:
        kind = adapter_class(name.partition("/")[0])
    except MissingExtra as error:
        return [wrong(name, "its library is not installed", error.install)]
    except ConfigError as error:
        return [wrong(name, str(error), "`hermes config edit` opens and checks it")]
    try:
        adapter, settings = made_adapter(config, name, variables, get_hermes_home())
        adapter.validate()
        who = _connected_now(name) if adapter.one_connection else None
        who = who or asyncio.run(_asked(adapter))
    except TimeoutError:
        said = f"{kind.title} did not answer within {PATIENCE:.0f} seconds"
        return [wrong(name, said, "check your network connection; `hermes gateway status` shows the last error")]
    except (ConfigError, PlatformRefused) as error:
        return [wrong(name, _short(error), setup_command(name))]
    except HermesError as error:
        return [wrong(name, _short(error), "check your network connection and the address")]
    found = [well(name, f"logged in to {kind.title} as {one_line(who)}"), *_people(config, name, settings)]
    if doubts := adapter.doubts():
        from hermes.cli.gateway_setup import guide_page

        page = f"platforms/{kind.platform}.md"
        found.append(remark(name, doubts, f"{guide_page(page) or f'docs/guide/{page}'} says how senders are proven"))
    return found


def _short(error: HermesError) -> str:
    """The first line of an error, without possible secrets."""
    from hermes.store.redact import redact

    return one_line(redact(str(error)))[:300]


def _connected_now(name: str) -> str | None:
    """Whom the running gateway is connected as: a login here would end that connection."""
    from hermes.gateway.startup import running
    from hermes.store.gateway_db import GatewayDB

    def identity(db: Any) -> str | None:
        rows = [row for row in GatewayDB(db).statuses() if row["platform"] == name and row["state"] == "connected"]
        return rows[0]["identity"] if rows and running(db) else None

    return cast("str | None", _from_store(None, identity))


async def _asked(adapter: Adapter) -> str:
    try:
        async with asyncio.timeout(PATIENCE):
            return await adapter.check()
    finally:
        await adapter.disconnect()


def _people(config: Config, name: str, settings: PlatformSettings) -> Found:
    """Who may talk there, and the home chat."""
    from hermes.gateway.settings import section_key
    from hermes.store import approvals
    from hermes.store.gateway_db import GatewayDB

    owners = sum(one.startswith(f"{name.partition('/')[0]}:") for one in config.owner)
    paired = _from_store(0, lambda db: sum(one["platform"] == name for one in GatewayDB(db).read(approvals.everyone)))
    home = settings.home_channel or _from_store(None, lambda db: GatewayDB(db).read(approvals.home, name))
    if settings.allow_all:
        yield remark(name, "everyone may talk (allow_all)", f"list them: {section_key(config, name)}.allowed_users")
    elif not settings.allowed_users and not paired and not owners:
        yield remark(
            name,
            "no one is allowed to talk yet",
            "write to it and approve the code it sends you: hermes pairing approve CODE",
        )
    else:
        counts = (("owner", owners), ("allowed", len(settings.allowed_users)), ("paired", paired))
        yield well(name, "may talk: " + ", ".join(f"{number} {what}" for what, number in counts if number))
    if not owners:
        hint = f"put `owner: [{name.partition('/')[0]}:<your user id>]` into config.yaml"
        yield remark(name, "no owner is set: no terminal, no handoff", hint)
    if not home and config.why_answers_only(name) is None:
        yield remark(name, "it has no home chat, so it gets no handoffs", "send /sethome in a chat with it")


def _from_store(otherwise: Any, ask: Any) -> Any:
    """A value from the store, if it can be read; the store's own check reports what is wrong with it."""
    from hermes.store.opening import open_existing

    try:
        db = open_existing(load_config())
        if db is None:
            return otherwise
        with db:
            return ask(db)
    except HermesError:
        return otherwise


def _api_server(config: Config) -> DoctorFinding:
    from hermes.gateway.startup import check_api_server

    settings = config.api_server
    try:
        check_api_server(config)
    except MissingExtra as error:
        return wrong("API server", "its library is not installed", error.install)
    except HermesError as error:
        return wrong("API server", _short(error), "`hermes config edit` opens and checks it")
    where = f"{settings.host}:{settings.port}"
    if not settings.token and not settings.keys:
        said = f"every user of this machine may use it as the owner ({where}, no token)"
        return remark("API server", said, "set api_server.token")
    users = f", {len(settings.keys)} keys" if settings.keys else ""
    return well("API server", f"{where}, {'with' if settings.token else 'without'} a token of the owner's{users}")


def _webhooks(config: Config) -> DoctorFinding:
    from hermes.gateway.startup import webhook

    try:
        adapter, _ = webhook(config, get_hermes_home(), insecure=False)
        adapter.validate()
        return well("webhooks", asyncio.run(_asked(adapter)))
    except MissingExtra as error:
        return wrong("webhooks", "their library is not installed", error.install)
    except HermesError as error:
        return wrong("webhooks", _short(error), "`hermes config edit` opens and checks it")
