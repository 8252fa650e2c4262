"""The server: the page, the numbers it asks for, and a wall around them."""

import asyncio
import hmac
import json
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

try:
    from fastapi import Body, FastAPI, Header, HTTPException, Path, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as missing:
    raise ImportError("the explorer needs FastAPI and uvicorn: install firststep[web]") from missing

from firststep import __version__
from firststep.explorer import views
from firststep.explorer.service import LAST, Overtaken, Service, finite
from firststep.explorer.simulation import MOST_REPLICAS, RefusedError, Simulations, stored
from firststep.explorer.state import State, choices
from firststep.explorer.workers import BusyError, LostError, Pool, TooSlowError

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
LONGEST_ADDRESS = 4096
LARGEST_BODY = 16 * 1024
# Seconds that a request may take with all its parts.
REQUEST_LIMIT = 40.0
# Longer for what nobody waits for, since it stands back for everything else.
BACKGROUND_LIMIT = 120.0
# How far processes for spectra and for curves at rest stand back for those that a moving slider waits for ("nice"),
# and those that refine spectra and compute ahead.
PATIENCE, MORE_PATIENCE = 10, 14
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
KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGE_FILES = ("app.js", "charts.js", "style.css", "icon.svg", "d3.js")

Client = Annotated[str, Header(alias="x-firststep-client", max_length=64, pattern="^[A-Za-z0-9-]*$")]
Token = Annotated[str, Header(alias="x-firststep-token", max_length=128)]
Quality = Annotated[Literal["draft", "exact"], Header(alias="x-firststep-quality")]
StateQuery = Annotated[State, Query()]

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The Host header or the address is not acceptable"},
    409: {"description": "Overtaken by a newer request, or another simulation is running"},
    413: {"description": "The body is too large"},
    422: {"description": "The state is not one that can be computed; says why"},
    429: {"description": "Too many requests"},
    503: {"description": "The computation took too long or the server is busy"},
}
CHANGES: dict[int | str, dict[str, Any]] = {
    403: {"description": "Not asked by the page itself"},
    404: {"description": "No such simulation"},
}


class SimulationRequest(BaseModel):
    """Networks to draw for a state."""

    model_config = ConfigDict(extra="forbid")

    state: State
    replicas: int = Field(default=8, ge=2, le=MOST_REPLICAS)


class _Wall:
    """Outermost layer: hosts, sizes, rates and headers, before anything is parsed."""

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, {host.lower() for host in hosts}
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
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
        left = LARGEST_BODY

        async def limited() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
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
        if scope["method"] not in ("GET", "HEAD") and not _from_here(headers, host):
            return 403, "only the page itself may change anything"
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
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _from_here(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a browser says that the request comes from our own page; other programs say nothing."""
    site = headers.get(b"sec-fetch-site")
    if site is not None and site not in (b"same-origin", b"none"):
        return False
    origin = headers.get(b"origin")
    return origin is None or urlsplit(origin.decode("latin-1")).netloc.lower() == host


def create_app(
    store: str, *, hosts: Sequence[str] = LOCAL_NAMES, workers: int = 2, pool: Pool | None = None
) -> FastAPI:
    """The explorer as an ASGI application.

    Parameters
    ----------
    store : str
        File that keeps simulated points, the same as for experiments.
    hosts : sequence of str
        Names under which it may be reached; the Host header must be one of them.
    workers : int
        Computing processes.
    pool : Pool, optional
        In place of one of its own; then nothing is computed ahead.
    """
    _d3()
    patient = background = None
    if pool is None:
        pool = Pool(workers, views.warm_up)
        patient = Pool(max(1, workers - 1), views.warm_up, patience=PATIENCE)
        background = Pool(1, views.warm_up, time_limit=BACKGROUND_LIMIT, patience=MORE_PATIENCE)
    pools = [each for each in (pool, patient, background) if each is not None]
    service = Service(pool, patient, background)
    simulations = Simulations(store)
    token = secrets.token_urlsafe(24)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for each in pools:
            each.start()
        yield
        await simulations.stop()
        await service.stop()
        for each in pools:
            await each.stop()

    app = FastAPI(
        title="firststep explorer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.pool, app.state.service, app.state.simulations, app.state.token = (
        pool,
        service,
        simulations,
        token,
    )

    @app.exception_handler(RequestValidationError)
    async def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        sentences = [_sentence(entry) for entry in error.errors()]
        return JSONResponse({"detail": "; ".join(sentences)}, 422)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(
            page_text("index.html", token), media_type=KINDS["html"], headers={"cache-control": "no-store"}
        )

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name == "palette.css":
            return Response(palette(), media_type=KINDS["css"], headers={"cache-control": "no-cache"})
        if name not in PAGE_FILES:
            raise HTTPException(404, "no such file")
        kind = KINDS[name.rpartition(".")[2]]
        return Response(page_text(name, ""), media_type=kind, headers={"cache-control": "no-cache"})

    @app.get("/api/choices")
    async def get_choices() -> JSONResponse:
        """Presets, names of functions and ranges."""
        return JSONResponse(choices())

    @app.get("/api/curves", responses=REFUSALS)
    async def get_curves(state: StateQuery, client: Client = "", quality: Quality = "exact") -> JSONResponse:
        """Errors, learned functions and alignment for every position of the step slider."""

        async def work() -> Any:
            return await service.curves_for(state.with_exponent(), quality == "draft")

        return await _answer(service, client, "curves", work)

    @app.get("/api/spectrum/{of}", responses=REFUSALS)
    async def get_spectrum(
        of: Literal["features", "weights"], state: StateQuery, client: Client = "", quality: Quality = "exact"
    ) -> JSONResponse:
        """Density and outliers at one step size."""

        async def work() -> Any:
            view = state.with_exponent()
            found = await service.spectrum_for(view, of, quality == "draft")
            if client:
                service.look_ahead(client, view)
            return found

        return await _answer(service, client, of, work)

    @app.get("/api/simulated", responses=REFUSALS)
    async def get_simulated(state: StateQuery, client: Client = "") -> JSONResponse:
        """Simulated points that the store has for this problem."""

        async def work() -> Any:
            found = await pool.call(
                stored, state.with_exponent().model_dump(), simulations.path, priority=LAST
            )
            return {"points": found}

        return await _answer(service, client, "simulated", work)

    @app.post("/api/simulations", status_code=201, responses=REFUSALS | CHANGES)
    async def start_simulation(
        asked: Annotated[SimulationRequest, Body()], given: Token = ""
    ) -> JSONResponse:
        """Draw networks in the background."""
        _check_token(given, token)

        async def work() -> Any:
            return simulations.start(asked.state.with_exponent(), asked.replicas).to_dict()

        if simulations.running is not None:
            raise HTTPException(409, "a simulation is running: cancel it or wait for its end")
        return await _answer(service, "", "", work, status=201)

    @app.get("/api/simulations/{identity}", responses=REFUSALS | {404: CHANGES[404]})
    async def get_simulation(identity: Annotated[str, Path(max_length=64)]) -> JSONResponse:
        """How far a simulation is, with the points that have arrived."""
        job = simulations.jobs.get(identity)
        if job is None:
            raise HTTPException(404, "no such simulation")
        return JSONResponse(finite(job.to_dict()))

    @app.delete("/api/simulations/{identity}", responses=REFUSALS | CHANGES)
    async def cancel_simulation(
        identity: Annotated[str, Path(max_length=64)], given: Token = ""
    ) -> JSONResponse:
        """Stop a simulation; what it finished stays in the store."""
        _check_token(given, token)
        if identity not in simulations.jobs:
            raise HTTPException(404, "no such simulation")
        return JSONResponse(finite(simulations.cancel(identity).to_dict()))

    app.add_middleware(_Wall, hosts=tuple(hosts))
    return app


def _check_token(given: str, token: str) -> None:
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise HTTPException(403, "only the page itself may change anything: its token is missing")


async def _answer(
    service: Service, client: str, view: str, work: Callable[[], Awaitable[Any]], status: int = 200
) -> JSONResponse:
    """A computed answer, or a status that says what came in between."""
    try:
        async with asyncio.timeout(REQUEST_LIMIT):
            found = await (service.newest(client, view, work()) if client else work())
    except TimeoutError:
        return JSONResponse({"detail": f"no answer within {REQUEST_LIMIT:g} s"}, 503, {"retry-after": "1"})
    except Overtaken:
        return JSONResponse({"detail": "overtaken by a newer request"}, 409)
    except (RefusedError, ValueError, TypeError) as error:
        return JSONResponse({"detail": str(error)}, 422)
    except MemoryError:
        return JSONResponse({"detail": "the computation does not fit into the memory allowed"}, 503)
    except (TooSlowError, BusyError, LostError) as error:
        return JSONResponse({"detail": str(error)}, 503, {"retry-after": "1"})
    except (ArithmeticError, RuntimeError, ImportError, OSError) as error:
        # The theory found no answer for this state, or says that it does not apply.
        return JSONResponse({"detail": str(error) or type(error).__name__}, 422)
    return JSONResponse(finite(found), status)


def _sentence(entry: Any) -> str:
    place = [str(part) for part in entry["loc"] if part not in ("query", "body", "header", "path")]
    message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(place)}: {message}" if place else message


def palette() -> str:
    """The colours of all figures as a style sheet, light and dark."""
    from firststep.figures import PALETTES

    def block(name: str) -> str:
        return " ".join(f"--{role.replace('_', '-')}: {value};" for role, value in PALETTES[name].items())

    return (
        f":root {{ {block('light')} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {block('dark')} }} }}\n"
        f":root[data-theme=dark] {{ {block('dark')} }}\n"
    )


def page_text(name: str, token: str) -> str:
    """A file of the page, with the token that lets it start simulations."""
    if name == "d3.js":
        return _d3()
    text = (files("firststep.explorer") / "page" / name).read_text(encoding="utf-8")
    return text.replace("{{token}}", token).replace("{{version}}", __version__)


@lru_cache(maxsize=1)
def _d3() -> str:
    """The D3 library as the package mpld3 ships it."""
    # The package itself is not imported: it would import matplotlib.
    found = find_spec("mpld3")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        raise ImportError("the explorer's charts are drawn by D3, which mpld3 ships: install firststep[web]")
    return (FilePath(places[0]) / "js" / "d3.v5.min.js").read_text(encoding="utf-8")


def _listener(host: str, port: int) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, asyncio sends small parts at once; else the body of an answer waits 40 ms for its head's receipt.
    listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    store: str,
    names: Sequence[str] = (),
    workers: int = 2,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Run the explorer until Ctrl-C.

    Parameters
    ----------
    host : str
        Address to listen on; anything but this machine's own opens it to the network.
    port : int
        0 takes a free one.
    store : str
        File that keeps simulated points.
    names : sequence of str
        Further names under which browsers may reach it.
    workers : int
        Computing processes.
    ready : callable, optional
        Called with the address once it listens.
    """
    import uvicorn

    listener = _listener(host, port)
    bracketed = f"[{host}]" if ":" in host else host
    app = create_app(store, hosts=(*LOCAL_NAMES, bracketed, *names), workers=workers)
    shown = LOCAL_NAMES[0] if host in ("0.0.0.0", "::") else bracketed
    if ready is not None:
        ready(f"http://{shown}:{listener.getsockname()[1]}/")
    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=200,
    )
    uvicorn.Server(settings).run(sockets=[listener])
