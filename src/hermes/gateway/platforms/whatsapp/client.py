"""Meta's Graph API as the Cloud API uses it: its error codes as ours.

https://developers.facebook.com/documentation/business-messaging/whatsapp/support/error-codes
"""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import quote

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import HttpApi, error_text, is_at, retry_after
from hermes.gateway.platforms._shared.payloads import dict_of, parsed

_LOGIN = frozenset({0, 190})
_RIGHTS = frozenset({3, 10, 368, 131031, *range(200, 300)})
_SLOW = frozenset({4, 80007, 130429, 131048, 131056, 133016})
_FOR_NOW = frozenset({1, 2, 131000, 131016, 131057, 133004})
_WINDOW = frozenset({470, 131047})
_PARAMETERS = frozenset({100, 131009})
_LONGEST_PAUSE = 64.0
_MEDIA_HOSTS = (".fbsbx.com", ".facebook.com", ".fbcdn.net", ".whatsapp.net")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class WindowClosed(SendRefused):
    """More than 24 hours have passed since the person last wrote: only a template may be sent."""


class WrongParameter(SendRefused):
    """Something in the request is not accepted, perhaps the message that it quotes."""


def is_window(code: Any) -> bool:
    """Whether an error code says that the 24-hour window is closed."""
    return isinstance(code, int) and code in _WINDOW


class GraphApi(HttpApi):
    """One business number's API."""

    def __init__(self, base_url: str, token: str, version: str) -> None:
        super().__init__("WhatsApp", base_url, headers={"Authorization": f"Bearer {token}"}, timeout=40)
        self._token, self._version = token, version.strip("/")
        self._refusals = 0  # "wait" in a row: each wait is four times as long, as Meta asks

    async def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The answer of a request as an object."""
        found = await self.object(method, f"/{self._version}/{path}", **options)
        self._refusals = 0
        return found

    def check(self, answer: httpx.Response) -> None:
        """Raise the error of an unsuccessful answer: the code in it says more than its status."""
        if answer.status_code >= 300:
            raise self.failure(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by Meta's own code."""
        found = dict_of(parsed(answer.content).get("error"))
        code = found["code"] if isinstance(found.get("code"), int) else None
        details = dict_of(found.get("error_data")).get("details")
        text = error_text(details or found.get("message") or "", self._token)
        why = f"WhatsApp refuses: {text or f'HTTP {answer.status_code}'}" + (f" (code {code})" if code else "")
        if code in _SLOW or answer.status_code == 429:
            self._refusals += 1
            wait = min(_LONGEST_PAUSE, 4.0 ** (self._refusals - 1))
            return SlowDown(f"WhatsApp asks us to wait (code {code})", retry_after(answer.headers, wait))
        if code in _FOR_NOW or answer.status_code >= 500:
            return PlatformUnreachable(
                f"WhatsApp answers HTTP {answer.status_code}" + (f" (code {code})" if code else "")
            )
        if code in _LOGIN or answer.status_code == 401:
            return PlatformRefused(
                "WhatsApp does not accept access_token: it has expired or was revoked; make one for a system user, which lasts"
            )
        if code in _RIGHTS or answer.status_code == 403:
            return PlatformRefused(why)
        if code in _WINDOW:
            return WindowClosed("more than 24 hours have passed since this person last wrote (code 131047)")
        return WrongParameter(why) if code in _PARAMETERS else SendRefused(why)

    async def media(self, media_id: str, number_id: str) -> bytes:
        """The bytes of a file that a person sent. Its address is valid for five minutes, so it is always asked for again."""
        try:
            found = await self.call("GET", quote(media_id, safe=""), params={"phone_number_id": number_id})
        except SendRefused as error:
            raise SendRefused(f"the file is no longer at WhatsApp ({error})") from None
        address = str(found.get("url") or "")
        data = (await self.download(address, what="the file", trusted=self._is_trusted)).content
        digest = found.get("sha256")
        if isinstance(digest, str) and _HEX.fullmatch(digest) and hashlib.sha256(data).hexdigest() != digest.lower():
            raise PlatformUnreachable("the file did not arrive whole from WhatsApp")
        return data

    def _is_trusted(self, address: str) -> bool:
        """Whether our token may be sent there."""
        return is_at(address, _MEDIA_HOSTS, self.base_url)
