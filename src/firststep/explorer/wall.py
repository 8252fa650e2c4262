"""The wall around the server: hosts, sizes, rates and headers, before anything is parsed."""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

LONGEST_ADDRESS = 4096
LARGEST_BODY = 16 * 1024
# Seconds in which each part of a request's body must arrive.
BODY_LIMIT = 8.0
# Requests that one client may make: as many at once, and so many for each second.
BURST, RATE = 240.0, 80.0


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Wall:
    """Outermost layer of the application."""

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, {host.lower() for host in hosts}
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer what is refused; pass on the rest, with a limit to its body and headers for its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reason = self._refusal(scope)
        if reason is not None:
            code, sentence = reason
            body = json.dumps({"detail": sentence}).encode()
            await send(
                {"type": "http.response.start", "status": code, "headers": self._headers(_json_head(body))}
            )
            await send({"type": "http.response.body", "body": body})
            return
        left, more = LARGEST_BODY, True

        async def limited() -> Any:
            nonlocal left, more
            try:
                async with asyncio.timeout(BODY_LIMIT if more else None):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            left -= len(message.get("body", b""))
            more = bool(message.get("more_body"))
            if left < 0:
                # A body that is longer than it said: nothing of it is looked at.
                return {"type": "http.disconnect"}
            return message

        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._headers(message.get("headers", []))
            await send(message)

        await self.app(scope, limited, headed)

    def _headers(self, given: Any) -> list[tuple[bytes, bytes]]:
        return [*given, *((name.encode(), value.encode()) for name, value in HEADERS.items())]

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        host = headers.get(b"host", b"").decode("latin-1").lower()
        # A name that an attacker's own DNS points at this machine is not one of ours.
        if _host_name(host) not in self.hosts:
            return 400, "this server answers only under its own name, such as http://127.0.0.1"
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > LONGEST_ADDRESS:
            return 414, f"the address is longer than {LONGEST_ADDRESS} characters"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            return 413, f"a request may have {LARGEST_BODY} bytes"
        # Another site's page can make a browser ask; it must not make this machine compute.
        guarded = scope["method"] not in ("GET", "HEAD") or scope["path"].startswith("/api")
        if guarded and not _from_here(headers, host):
            return 403, "only the page itself may ask for this"
        client = scope.get("client") or ("", 0)
        if not self._allowed(str(client[0])):
            return 429, "too many requests: wait a second"
        return None

    def _allowed(self, client: str) -> bool:
        now = time.monotonic()
        allowance, last = self._allowances.pop(client, (BURST, now))
        allowance = min(BURST, allowance + RATE * (now - last))
        good = allowance >= 1
        self._allowances[client] = (allowance - 1 if good else allowance, now)
        while len(self._allowances) > 1000:
            self._allowances.popitem(last=False)
        return good


def _json_head(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]


def _host_name(host: str) -> str:
    """The host without its port."""
    name, found, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not found:
        return host
    # What is no port belongs to the name, which is then none of ours.
    return name if port.isdecimal() or not port else host


def _from_here(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a browser says that the request comes from our own page; other programs say nothing."""
    site = headers.get(b"sec-fetch-site")
    if site is not None and site not in (b"same-origin", b"none"):
        return False
    origin = headers.get(b"origin")
    try:
        return origin is None or urlsplit(origin.decode("latin-1")).netloc.lower() == host
    except ValueError:
        return False
