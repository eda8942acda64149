"""The connection to signal-cli's daemon: requests as JSON-RPC, incoming messages as a stream of server-sent events."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import HttpApi, json_object, seconds
from hermes.gateway.platforms._shared.receipt import LOG, Log, read_object

logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line for every request, with the phone number in it

SILENCE = 60.0  # seconds without even a keep-alive (the daemon sends one every 15)
PATIENCE = 60.0  # seconds for one request: the daemon itself talks to Signal meanwhile
LATER = 60.0  # seconds to wait if Signal rate-limits us without a time

USER_ERROR, UNTRUSTED_KEY, RATE_LIMIT = -1, -4, -5  # as signal-cli numbers its errors
UNKNOWN_METHOD, BAD_PARAMETERS, INTERNAL = -32601, -32602, -32603


class UnknownMethod(PlatformRefused):
    """The daemon does not have this method: it is older, or serves one account only."""


class Daemon(HttpApi):
    """One daemon, asked for one account."""

    def __init__(self, base_url: str, account: str) -> None:
        address = httpx.URL(base_url if "://" in base_url else f"http://{base_url}")
        login = (address.username, address.password) if address.username else None
        self.address = str(address.copy_with(username=None, password=None)).rstrip("/")
        self.account = account
        self._numbers = itertools.count(1)
        title = f"the signal-cli daemon at {self.address}"
        super().__init__(title, self.address, auth=login, timeout=PATIENCE, trust_env=False)

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method for our account."""
        return await self.ask(method, account=self.account, **parameters)

    async def ask(self, method: str, **parameters: Any) -> Any:
        """Call a method; its result, or the error that its answer means."""
        body = {"jsonrpc": "2.0", "method": method, "id": str(next(self._numbers)), "params": parameters}
        answer = await self.request("POST", "/api/v1/rpc", json=body)
        content = json_object(answer)
        if content is None:
            raise PlatformRefused(f"{self.address} is not a signal-cli daemon: it does not speak JSON-RPC")
        if content.get("error"):
            raise self._rpc_failure(method, content["error"])
        return content.get("result")

    async def events(self, opened: Callable[[], None], log: Log = LOG) -> AsyncIterator[dict[str, Any]]:
        """The account's events, until the stream breaks. `opened` is called when the daemon has answered."""
        timeout = httpx.Timeout(PATIENCE, read=SILENCE)
        try:
            async with self._http.stream(
                "GET", "/api/v1/events", params={"account": self.account}, timeout=timeout
            ) as answer:
                if answer.status_code == 400:
                    raise PlatformRefused(f"{self.title} has no account {self.account}")
                self.check(answer)
                opened()
                async for data in _events(answer.aiter_lines(), log):
                    yield data
        except httpx.HTTPError as error:
            raise PlatformUnreachable(f"the stream of {self.title} broke ({type(error).__name__})") from None
        raise PlatformUnreachable(f"the stream of {self.title} ended")

    def failure(self, answer: httpx.Response) -> PlatformRefused:
        """The error for a server that is no signal-cli daemon, or refuses us."""
        return PlatformRefused(f"{self.address} is not a signal-cli daemon, or refuses us (HTTP {answer.status_code})")

    def _rpc_failure(self, method: str, error: Any) -> HermesError:
        """The error for a JSON-RPC error."""
        error = error if isinstance(error, dict) else {}
        code, words = error.get("code"), f"signal-cli {method}: {error.get('message') or 'failed'}"
        data = error.get("data")
        results = failures(data.get("response") if isinstance(data, dict) else None)
        if code == RATE_LIMIT:
            waits = [seconds(result.get("retryAfterSeconds"), LATER) for result in results]
            return SlowDown(words, max(waits, default=LATER))
        if code == UNTRUSTED_KEY:
            return SendRefused(f"{words}; a safety number has changed: signal-cli trust")
        if code == USER_ERROR:
            return _worst(words, results) or SendRefused(words)
        if code == BAD_PARAMETERS and "account" in words:
            return PlatformRefused(f"{words} ({self.account}): register or link it with signal-cli first")
        if code == UNKNOWN_METHOD:
            return UnknownMethod(words)
        if code == BAD_PARAMETERS or (code == INTERNAL and method == "getAttachment"):
            return SendRefused(words)  # for a file: the daemon no longer has it
        return PlatformUnreachable(words)


def failures(response: Any) -> list[dict[str, Any]]:
    """The failures among a message's results (one for every recipient); [] if any succeeded."""
    results = response.get("results") if isinstance(response, dict) else None
    found = [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []
    return [] if any(result.get("type") == "SUCCESS" for result in found) else found


def check_sent(response: Any) -> None:
    """Raise the error of a message that reached none of its recipients."""
    worst = _worst("signal-cli send", failures(response))
    if worst is not None:
        raise worst


def _worst(words: str, results: list[dict[str, Any]]) -> HermesError | None:
    kinds = {str(result.get("type")): result for result in results}
    if "RATE_LIMIT_FAILURE" in kinds:
        return SlowDown(f"{words}: rate limit", seconds(kinds["RATE_LIMIT_FAILURE"].get("retryAfterSeconds"), LATER))
    if "NETWORK_FAILURE" in kinds:
        return PlatformUnreachable(f"{words}: network failure")
    return SendRefused(f"{words}: {', '.join(sorted(kinds))}") if kinds else None


async def _events(lines: AsyncIterator[str], log: Log) -> AsyncIterator[dict[str, Any]]:
    """The "receive" events of a stream; what is no JSON object is left out."""
    kind, data = "message", []
    async for line in lines:
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                data.append(value)
            continue
        if kind == "receive" and data:
            content = read_object("\n".join(data), "Signal", log)
            if content is not None:
                yield content
        kind, data = "message", []
