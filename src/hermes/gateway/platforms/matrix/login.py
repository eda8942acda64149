"""Logging in: with an access token, as the device of last time, or with the password as a new device.

The device matters: encryption keys and the ids that keep a message from being sent twice belong to it. So a login made
with a password is saved, and reused until the server no longer knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes.errors import PlatformRefused, SendRefused
from hermes.gateway.platforms.matrix.client import LoggedOut, MatrixClient
from hermes.gateway.platforms.matrix.saved_state import SavedState

TAKEN = (
    "the access token for {user} belongs to a device whose encryption keys are elsewhere (the login of another program?): "
    "use user_id and password, a token made for Hermes alone, or encryption: false"
)


async def log_in(values: Mapping[str, Any], homeserver: str, memory: SavedState, *, encrypted: bool) -> MatrixClient:
    """A client that is logged in, with its encryption keys if `encrypted`."""
    user, token, password = (str(values.get(key) or "") for key in ("user_id", "access_token", "password"))
    if not token and not (user and password):
        raise PlatformRefused("Matrix needs user_id and password, or an access_token (platforms.matrix in config.yaml)")
    client = MatrixClient(homeserver, user, str(memory.keys) if encrypted else None)
    try:
        if token:
            await _enter(client, token, user)
            if await client.device_is_taken():
                raise PlatformRefused(TAKEN.format(user=client.user_id))
        else:
            name = str(values.get("device_name") or "Hermes")
            await _enter_by_password(client, memory, user, password, name)
    except SendRefused as error:
        await client.close()
        raise PlatformRefused(f"login failed at {error}") from None
    except BaseException:
        await client.close()
        raise
    if encrypted:
        for file in memory.keys.iterdir():
            file.chmod(0o600)
    return client


async def _enter(client: MatrixClient, token: str, user: str, device: str = "hermes") -> None:
    """Log in with a token; the server says whose it is."""
    client.access_token = token
    who = await client.whoami()
    if user.startswith("@") and who.user_id != user:
        raise PlatformRefused(f"the Matrix access token is not of {user} but of {who.user_id}")
    client.restore_login(who.user_id, who.device_id or device, token)


async def _enter_by_password(client: MatrixClient, memory: SavedState, user: str, password: str, name: str) -> None:
    """Log in as the saved device; else as a new one, which is saved."""
    known = memory.login(user)
    if known is not None:
        try:
            await _enter(client, known["access_token"], user, known["device_id"])
        except LoggedOut as error:
            client.access_token = ""
            client.device_id = known["device_id"] if error.soft else ""
            if not error.soft:
                memory.forget_login()  # its keys are gone with the device
        else:
            return
    await client.login(password, device_name=name)
    memory.keep_login(user, client.user_id, client.device_id, client.access_token)
