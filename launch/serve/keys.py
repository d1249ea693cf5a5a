"""Who may ask: keys, addresses, and what a page of a stranger's may make a browser send.

A key comes from a file or from the environment, never from a command line, which other users of the machine can read.
Without one the service answers this machine alone: a browser on it could still be sent here by a page from elsewhere,
so requests of other origins, and those for a name that is not this machine's, are refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from launch.api.errors import ApiError
from solver.base.errors import HeptiError, explained

VARIABLE = "HEPTI_API_KEY"
LEAST_CHARACTERS = 16  # of a key: fewer can be tried out
OPEN = ("/", "/health", "/version")  # without a key: the page itself, and whether the service is there
OPEN_BELOW = "/static/"


def read_keys(path: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the keys of a file, one a line, or the one in the environment; none where there is neither.

    Raises
    ------
    HeptiError
        If the file cannot be read, has no key or may be read by other users, or a key is too short.
    """
    if path is None:
        keys = [environment.get(VARIABLE, "").strip()]
        source = f"environment variable {VARIABLE}"
    else:
        source = f"key file {path}"
        if path.is_dir():
            raise HeptiError(f"{source} is a folder: name a file with a key a line")
        with explained(f"cannot read {source}", (OSError, UnicodeDecodeError)):
            if others := path.stat().st_mode & 0o077:
                raise HeptiError(f"{source} may be used by other users (mode bits {others:03o}): chmod 600 {path}")
            keys = [line.strip() for line in path.read_text().splitlines()]
    keys = [key for key in keys if key]
    if path is not None and not keys:
        raise HeptiError(f"{source} has no key: write one a line")
    for key in keys:
        if len(key) < LEAST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
            raise HeptiError(
                f"a key of {source} has {len(key)} characters: at least {LEAST_CHARACTERS} are needed, "
                "letters, digits and signs of ASCII alone"
            )
    return tuple(keys)


def check_address(host: str, keys: Collection[str]) -> None:
    """Refuse to listen where other machines can ask, without a key.

    Raises
    ------
    HeptiError
        If there is no key and the address is another than this machine's own.
    """
    if not keys and not is_local(host):
        raise HeptiError(
            f"{host or 'every address'} can be reached by other machines, and there is no key: give a key file or "
            f"{VARIABLE}, or listen on 127.0.0.1"
        )


def is_local(host: str) -> bool:
    """Return whether a name or address is always this machine's own."""
    host = host.removeprefix("[").removesuffix("]").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """Lets requests in that may come in; in front of an app.

    Parameters
    ----------
    app
        What answers them.
    keys
        One of which is needed; none: no key is asked for, and only names of this machine are answered.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "http":
            try:
                self._check(scope["path"], Headers(scope=scope))
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._keys and host and not is_local(_name(f"//{host}")):
            raise ApiError(
                403, "this name is not this machine's: ask localhost, or serve with a key", code="wrong_host"
            )
        if origin is not None and origin.partition("://")[2] != host:
            raise ApiError(403, "pages from elsewhere may not ask, only the service's own", code="wrong_origin")
        if self._keys and path not in OPEN and not path.startswith(OPEN_BELOW):
            self._check_key(headers.get("authorization", ""))

    def _check_key(self, authorization: str) -> None:
        scheme, _, given = authorization.partition(" ")
        key = given.strip().encode()
        # All are compared, so that the time says nothing.
        matches = [hmac.compare_digest(key, one) for one in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            what = "this key is wrong" if given else "a key is needed: Authorization: Bearer KEY"
            raise ApiError(401, what, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def _name(address: str) -> str:
    """Return the name of a host without its port; empty where it is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
