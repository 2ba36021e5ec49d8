"""What a request is told when it cannot be answered: one form, and the status that is meant."""

from __future__ import annotations

import math
from typing import Any

from genesis.llm import BadGrammar, Refused, RequestFailed
from genesis.llm.chat_template import TemplateError
from genesis.llm.request import Busy

_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 429: "rate_limit_error", 500: "server_error", 503: "unavailable_error",
}  # fmt: skip


class ApiError(Exception):
    """An answer that is an error. `retry_after` is in seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    def body(self) -> dict[str, Any]:
        """The error as clients read it.

        >>> ApiError(404, "there is no model x", param="model").body()["error"]["type"]
        'not_found_error'
        """
        kind = _TYPES.get(self.status, "invalid_request_error")
        about = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": about}

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        found = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            found["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return found


def explained(error: BaseException) -> ApiError:
    """An exception of the engine, as an answer."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Busy):
        return ApiError(429, str(error), code="queue_full", retry_after=1)
    if isinstance(error, Refused):
        long = "context" in str(error)
        return ApiError(400, str(error), code="context_length_exceeded" if long else None)
    if isinstance(error, BadGrammar):
        return ApiError(400, str(error), param="response_format")
    if isinstance(error, TemplateError):
        return ApiError(400, str(error), param="messages")
    if isinstance(error, RequestFailed):
        return ApiError(500, str(error), code="request_failed")
    if isinstance(error, ValueError | TypeError):
        return ApiError(400, str(error).removeprefix("SamplingParams: "))
    return ApiError(500, f"the server failed: {type(error).__name__}", code="internal")


__all__ = ["ApiError", "explained"]
