"""Requests on a line: the SDK makes the first one, those after it are the same but for their body.

Putting a request together takes the SDK longer than everything a gateway does itself for a message: the address, the headers,
the options are made anew each time, and come out as they were. What a connection or a server says to it is told in the
SDK's own errors.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hermes.harmless import encodable

_OF_THE_BODY = (b"content-length", b"transfer-encoding")


def encoded(body: dict[str, Any]) -> bytes:
    """A body as JSON that every wire can carry (see `encodable`)."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError):  # half a surrogate pair, or a value of another program's that is none of JSON's
        return json.dumps(encodable(body), ensure_ascii=False, allow_nan=False).encode()


class Requests:
    """The client of one line. Not for several threads."""

    def __init__(self, openai: Any, http: Any, sdk: Any, client: Any) -> None:
        """`http` is the library that the SDK is built on, `client` its client that `sdk` was made with."""
        self._openai, self._http, self._sdk, self._client = openai, http, sdk, client
        self._first: Any = None  # the request the SDK made, to be repeated with other bodies
        self._headers: Any = None

    def noted(self, request: Any) -> None:
        """The SDK has made a request; to be called by its client's hook."""
        if self._first is None and request.method == "POST":
            self._first = request
            raw = [(name, value) for name, value in request.headers.raw if name.lower() not in _OF_THE_BODY]
            self._headers = self._http.Headers(raw)

    def post(self, path: str, body: dict[str, Any], stream_class: Any) -> Any:
        """Open a stream of what the server answers."""
        if self._first is None or self._client.cookies:
            return self._sdk.post(path, body=encodable(body), cast_to=object, stream=True, stream_cls=stream_class)
        response = self._sent(self._repeated(encoded(body)))
        return stream_class(cast_to=object, response=response, client=self._sdk)

    def _repeated(self, content: bytes) -> Any:
        first = self._first
        return self._http.Request(
            "POST", first.url, headers=self._headers, content=content, extensions=first.extensions
        )

    def _sent(self, request: Any) -> Any:
        openai, http = self._openai, self._http
        try:
            response = self._client.send(request, stream=True)
        except http.TimeoutException as error:
            raise openai.APITimeoutError(request=request) from error
        except http.HTTPError as error:
            raise openai.APIConnectionError(request=request) from error
        if not response.is_success:
            response.read()
            raise self._sdk._make_status_error_from_response(response)
        return response

    def close(self) -> None:
        """Give the connection back."""
        self._sdk.close()
