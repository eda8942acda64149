"""`hermes gateway setup`: asks for a platform's settings, tries them, and writes them to config.yaml.

Secrets go to `<home>/.env`, which only the user can read, and config.yaml names them; so config.yaml can be shown to others.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.pairing import make_owner
from hermes.config import environment, load_config
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.gateway.adapter import Adapter, Setting


def set_up(platform: str | None, *, check: bool) -> int:
    """Ask, check and write; the exit status."""
    from hermes.gateway.platforms import adapter_class, known_platforms
    from hermes.home import get_hermes_home

    if not sys.stdin.isatty():
        raise click.ClickException("setup asks questions and needs a terminal; without one, write config.yaml by hand")
    if platform is None:
        platform = click.prompt("Which platform?", type=click.Choice(known_platforms()), show_choices=True)
    kind, home = adapter_class(platform), get_hermes_home()
    section = load_config().platforms.get(platform, {})
    page = guide_page(f"platforms/{platform}.md")
    where = f" {page} shows the steps;" if page is not None else ""
    click.echo(f"Setting up {kind.title}.{where} Ctrl-C changes nothing.")
    values = _asked(kind, section, environment(home))
    if kind.logs_in:
        try:
            values |= asyncio.run(_login(kind, values, home))
        except HermesError as error:
            raise click.ClickException(f"{kind.title} refuses: {error}. Nothing was written.") from error
    if check:
        try:
            who = asyncio.run(_check(kind, values, home))
        except HermesError as error:
            raise click.ClickException(f"{kind.title} refuses: {error}. Nothing was written.") from error
        click.echo(f"✓ Logged in to {kind.title} as {who}.")
    mine = click.prompt("Your own user id there (you may do everything; empty: later)", default="", show_default=False)
    others = click.prompt("Other user ids that may talk, with commas (empty: none)", default="", show_default=False)
    _write(kind, platform, values, home, mine.strip(), [one.strip() for one in others.split(",") if one.strip()])
    click.echo("Written. `hermes gateway` starts it; send /sethome in the chat where handoffs should arrive.")
    if not mine.strip() and not any(one.startswith(f"{platform}:") for one in load_config().owner):
        click.echo("Write to it, and it sends you a code: `hermes pairing approve --owner CODE` makes you its owner.")
    return 0


def _asked(kind: type[Adapter], section: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
    """Ask for each setting. One that others can replace, or that the login gives, is optional and may be asked first."""
    values: dict[str, Any] = {}
    choices = {setting.unless for setting in kind.settings} | {one.name for one in kind.settings if one.asked}
    for setting in sorted(kind.settings, key=lambda one: one.unless is not None):
        known = section.get(setting.name) or (variables.get(setting.variable) if setting.variable else None)
        if kind.logs_in and setting.required and known is None and setting.secret:
            values[setting.name] = setting.default  # the login gives it
            continue
        needed = setting.required or (setting.unless is not None and not values.get(setting.unless))
        if not needed and (known is None or setting.unless is not None) and setting.name not in choices:
            values[setting.name] = setting.default
            continue
        values[setting.name] = _one(setting, known, optional=setting.name in choices)
    return values


def _one(setting: Setting, known: Any, *, optional: bool) -> Any:
    keep = " (Enter keeps the current value)" if known else " (Enter: none)" if optional else ""
    default = known if known is not None else "" if optional else setting.default
    shown = default is not None and not setting.secret
    answer = click.prompt(
        f"{setting.help}{keep}", default=default if default is not None else None, hide_input=setting.secret,
        show_default=shown, type=setting.kind if setting.kind in (int, float, bool) else str,
    )  # fmt: skip
    if setting.kind is list and isinstance(answer, str):
        return [one.strip() for one in answer.split(",") if one.strip()]
    return answer


async def _login(kind: type[Adapter], values: dict[str, Any], home: Path) -> dict[str, Any]:
    """Log in together with the user; the settings that come of it."""
    from hermes.gateway.settings import listening

    adapter = kind(values, home)
    adapter.webhook_place = listening(load_config())
    try:
        found = await adapter.login(click.echo)
    finally:
        await adapter.disconnect()
    unknown = set(found) - {one.name for one in kind.settings}
    if unknown:
        raise HermesError(f"the adapter returned unknown settings: {', '.join(sorted(unknown))}")
    return dict(found)


async def _check(kind: type[Adapter], values: dict[str, Any], home: Path) -> str:
    from hermes.gateway.settings import listening

    adapter = kind(values, home)
    adapter.webhook_place = listening(load_config())
    try:
        async with asyncio.timeout(30):
            return await adapter.check()
    except TimeoutError:
        raise HermesError("no answer within 30 seconds") from None
    finally:
        await adapter.disconnect()


def _write(
    kind: type[Adapter], platform: str, values: dict[str, Any], home: Path, mine: str, others: list[str]
) -> None:
    for setting in kind.settings:
        value = values[setting.name]
        if value in (setting.default, "") and not setting.required:
            continue
        if setting.secret:
            name = setting.variable or f"{platform}_{setting.name}".upper()
            remember(home / ".env", name, str(value))
            value = "${" + name + "}"
        _set(f"platforms.{platform}.{setting.name}", value)
    _set(f"platforms.{platform}.enabled", True)
    config = load_config()
    if mine:
        make_owner(f"{platform}:{mine}")
    if others:
        allowed = [str(one) for one in config.platforms.get(platform, {}).get("allowed_users", [])]
        _set(f"platforms.{platform}.allowed_users", list(dict.fromkeys([*allowed, *others])))


def guide_page(name: str) -> Path | None:
    """A page of the guide: the one installed with the program, or that of the repository it runs from."""
    import hermes

    package = Path(hermes.__file__).parent
    pages = (package / "guide" / name, package.parents[1] / "docs" / "guide" / name)
    return next((page for page in pages if page.is_file()), None)


def _set(key: str, value: Any) -> None:
    """Write a value to config.yaml; comments and everything else stay."""
    import json

    from hermes.config.editing import set_value

    set_value(key, json.dumps(value, ensure_ascii=False))


def remember(path: Path, name: str, value: str) -> None:
    """Put a variable into a .env file that only its owner can read, replacing an older value."""
    from hermes.home import make_private

    make_private(path.parent)
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if line.removeprefix("export ").partition("=")[0].strip() != name]
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    temporary = path.with_name(f".env.{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join([*kept, f'{name}="{text}"']) + "\n")
    os.replace(temporary, path)
