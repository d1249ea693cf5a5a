"""A request that is not answered, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response


class ApiError(Exception):
    """A request that is not answered, in OpenAI's shape.

    Parameters
    ----------
    status
        Of HTTP.
    message
        One sentence or two, with both numbers.
    param
        The field that is wrong.
    code
        A word for programs.
    headers
        Of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
        self.table = {"error": {"message": _printable(message), "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        """Return it as a response."""
        return JSONResponse(self.table, self.status, self.headers)


def _printable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no body holds."""
    return text.encode(errors="replace").decode()
