"""The server: the page and the numbers it asks for."""

import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

try:
    from fastapi import Body, FastAPI, Header, HTTPException, Path, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as missing:
    raise ImportError("the explorer needs FastAPI and uvicorn: install firststep[web]") from missing

from firststep import __version__
from firststep.explorer import views
from firststep.explorer.checks import refusals
from firststep.explorer.pages import KINDS, PAGE_FILES, d3, page_text, palette
from firststep.explorer.pool import BusyError, LostError, Pool, TooSlowError
from firststep.explorer.service import LAST, URGENT, Overtaken, Service, finite
from firststep.explorer.simulation import MOST_REPLICAS, RefusedError, Simulations, stored
from firststep.explorer.state import State, choices
from firststep.explorer.wall import Wall

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
# Seconds that a request may take with all its parts.
REQUEST_LIMIT = 40.0
# Longer than for a slider where others go first, and longer still for what nobody waits for.
PATIENT_LIMIT, BACKGROUND_LIMIT = 35.0, 120.0
# How far processes for spectra and for curves at rest stand back for those that a moving slider waits for ("nice"),
# and those that refine spectra and compute ahead.
PATIENCE, MORE_PATIENCE = 4, 9
CLIENT = "x-firststep-client"
Client = Annotated[str, Header(alias=CLIENT, max_length=64, pattern="^[A-Za-z0-9-]*$")]
Token = Annotated[str, Header(alias="x-firststep-token", max_length=128)]
Quality = Annotated[Literal["draft", "fair", "exact"], Header(alias="x-firststep-quality")]
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
    d3()
    patient = background = None
    if pool is None:
        pool = Pool(workers, views.warm_up)
        patient = Pool(max(1, workers - 1), views.warm_up, time_limit=PATIENT_LIMIT, patience=PATIENCE)
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
    async def explain(request: Request, error: RequestValidationError) -> JSONResponse:
        sentences = [_sentence(entry) for entry in error.errors()]
        return _refused("; ".join(sentences), 422, request.headers.get(CLIENT, ""))

    _add_page(app, token)
    _add_views(app, service)
    _add_questions(app, service, pool, simulations.path)
    _add_simulations(app, service, simulations, token)
    app.add_middleware(Wall, hosts=tuple(hosts))
    return app


def _add_page(app: FastAPI, token: str) -> None:
    """The page itself and its files."""

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


def _add_views(app: FastAPI, service: Service) -> None:
    """What the page draws of a state."""

    @app.get("/api/choices")
    async def get_choices() -> JSONResponse:
        """Presets, names of functions and ranges."""
        return JSONResponse(choices())

    @app.get("/api/curves", responses=REFUSALS)
    async def get_curves(state: StateQuery, client: Client = "", quality: Quality = "exact") -> JSONResponse:
        """Errors, learned functions and alignment for every position of the step slider."""

        async def work() -> Any:
            return await service.curves_for(state.with_exponent(), quality)

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

    @app.get("/api/critical", responses=REFUSALS)
    async def get_critical(state: StateQuery, client: Client = "") -> JSONResponse:
        """Exponents at which the first spikes leave the bulk."""
        return await _answer(service, client, "critical", lambda: service.critical_for(state.with_exponent()))

    @app.get("/api/second", responses=REFUSALS)
    async def get_second(state: StateQuery, client: Client = "") -> JSONResponse:
        """Errors and overlaps after a second step of every size."""
        return await _answer(service, client, "second", lambda: service.second_for(state.with_exponent()))

    @app.get("/api/network", responses=REFUSALS)
    async def get_network(state: StateQuery, client: Client = "") -> JSONResponse:
        """Some neurons of a drawn network before and after the step, and what is fitted."""
        return await _answer(service, client, "network", lambda: service.network_for(state.with_exponent()))


def _add_questions(app: FastAPI, service: Service, pool: Pool, store: str) -> None:
    """What the page asks about a state before it draws: is it one, and what is known of it."""

    @app.get("/api/check", responses=REFUSALS)
    async def get_check(request: Request, client: Client = "") -> JSONResponse:
        """What is wrong with the values of a state, each with its field."""

        async def work() -> Any:
            return {"refused": await pool.call(refusals, dict(request.query_params), priority=URGENT)}

        return await _answer(service, client, "check", work)

    @app.get("/api/simulated", responses=REFUSALS)
    async def get_simulated(state: StateQuery, client: Client = "") -> JSONResponse:
        """Simulated points that the store has for this problem."""

        async def work() -> Any:
            return await pool.call(stored, state.with_exponent().model_dump(), store, priority=LAST)

        return await _answer(service, client, "simulated", work)


def _add_simulations(app: FastAPI, service: Service, simulations: Simulations, token: str) -> None:
    """Networks drawn in the background: begun, followed, cancelled."""

    @app.post("/api/simulations", status_code=201, responses=REFUSALS | CHANGES)
    async def start_simulation(
        asked: Annotated[SimulationRequest, Body()], client: Client = "", given: Token = ""
    ) -> JSONResponse:
        """Draw networks in the background."""
        _check_token(given, token)

        async def work() -> Any:
            return simulations.start(asked.state.with_exponent(), asked.replicas).to_dict()

        if simulations.running is not None:
            raise HTTPException(409, "a simulation is running: cancel it or wait for its end")
        return await _answer(service, client, "simulations", work, status=201)

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


def _check_token(given: str, token: str) -> None:
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise HTTPException(403, "only the page itself may change anything: its token is missing")


async def _answer(
    service: Service, client: str, view: str, work: Callable[[], Awaitable[Any]], status: int = 200
) -> JSONResponse:
    """A computed answer, or a status that says what came in between.

    The page itself, which names its client, is told so in an answer: a browser writes every refused request into its
    console, as if something were broken.
    """
    try:
        async with asyncio.timeout(REQUEST_LIMIT):
            found = await (service.newest(client, view, work()) if client else work())
    except TimeoutError:
        return _refused(
            f"no answer within {REQUEST_LIMIT:g} s: choose smaller or more even sizes", 503, client
        )
    except Overtaken:
        return _refused("overtaken by a newer request", 409, client)
    except (RefusedError, ValueError, TypeError) as error:
        return _refused(str(error), 422, client)
    except MemoryError:
        reason = "the computation does not fit into the memory allowed: choose smaller or more even sizes"
        return _refused(reason, 503, client)
    except (TooSlowError, BusyError, LostError) as error:
        return _refused(str(error), 503, client)
    except (ArithmeticError, RuntimeError, ImportError, OSError) as error:
        # The theory found no answer for this state, or says that it does not apply.
        return _refused(str(error) or type(error).__name__, 422, client)
    return JSONResponse(finite(found), status)


def _refused(reason: str, status: int, client: str) -> JSONResponse:
    """A refusal: as a status, or for the page as an answer."""
    if client:
        return JSONResponse({"refusal": reason, "status": status})
    return JSONResponse({"detail": reason}, status, {"retry-after": "1"} if status == 503 else None)


def _sentence(entry: Any) -> str:
    place = [str(part) for part in entry["loc"] if part not in ("query", "body", "header", "path")]
    message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(place)}: {message}" if place else message


def _listener(host: str, port: int) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, asyncio sends small parts at once; else the body of an answer waits 40 ms for its head's receipt.
    listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # From here on a browser waits for the server to be ready, in place of being turned away.
        listener.listen(256)
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

    if not host.strip():
        raise ValueError("an empty --host would listen everywhere: say 0.0.0.0 if that is meant")
    listener = _listener(host, port)
    bracketed = f"[{host}]" if ":" in host else host
    app = create_app(store, hosts=(*LOCAL_NAMES, bracketed, *names), workers=workers)
    shown = LOCAL_NAMES[0] if host in ("0.0.0.0", "::") else bracketed
    if ready is not None:
        ready(f"http://{shown}:{listener.getsockname()[1]}/")
    uvicorn.Server(server_settings(app)).run(sockets=[listener])


def server_settings(app: FastAPI) -> Any:
    """How uvicorn serves the explorer."""
    import uvicorn

    from firststep.explorer.connections import MOST_WAITING, Connection

    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        # A request that cannot be read is answered; it is not the user's business.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        # Connections with a request under way, beside those that wait for one.
        limit_concurrency=200 + MOST_WAITING,
    )
