"""Errors as OpenAI's clients understand them: a status and {"error": {"message", "type", "param", "code"}}.

An error of ours is sent with its own text, with secrets masked; an unexpected exception is sent as a number to look for in
the log, never with its details.
"""

from __future__ import annotations

import logging
import math
import secrets
from typing import Any

from starlette.responses import JSONResponse

from hermes.errors import (
    ContextTooLong,
    InvalidInput,
    MissingExtra,
    ModelError,
    RateLimited,
    SessionNotFound,
    StoreBusy,
    StoreError,
)
from hermes.store.redact import redact

_log = logging.getLogger("hermes.serve")
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that fails, and the error its sender gets."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Its JSON body."""
        kind = _TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Its HTTP response."""
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def api_error_of(error: BaseException) -> ApiError:
    """The API error for an exception."""
    if isinstance(error, ApiError):
        return error
    text = redact(" ".join(str(error).split()))[:1000] or type(error).__name__
    if isinstance(error, ContextTooLong):
        return ApiError(400, text, code="context_length_exceeded", param="messages")
    if isinstance(error, RateLimited) and (error.status or 0) >= 500:
        return ApiError(502, text, code="model_error", retry_after=error.retry_after)
    if isinstance(error, RateLimited):
        return ApiError(429, text, code="rate_limit_exceeded", retry_after=error.retry_after)
    if isinstance(error, ModelError):
        return ApiError(502, text, code="model_error")
    if isinstance(error, SessionNotFound):
        return ApiError(404, text, code="session_not_found")
    if isinstance(error, InvalidInput):
        return ApiError(400, text)
    if isinstance(error, MissingExtra):
        return ApiError(500, text, code="missing_extra")
    if isinstance(error, StoreBusy):
        return ApiError(503, "the store is busy; try again", code="store_busy", retry_after=1)
    if isinstance(error, StoreError):
        return ApiError(503, f"the store can't be used; see {_logged(error)} in the server's log", code="store_error")
    return unforeseen(error)


def unforeseen(error: BaseException) -> ApiError:
    """An internal error: its details go to the log, a number to the caller."""
    return ApiError(500, f"an internal error occurred; see {_logged(error)} in the server's log", code="internal_error")


def _logged(error: BaseException) -> str:
    """Log an error; returns the number it has there."""
    number = secrets.token_hex(4)
    _log.error("request failed (%s)", number, exc_info=error)
    return number
