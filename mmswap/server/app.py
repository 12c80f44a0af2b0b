"""The application: which address does what. Knows how requests come and go, not how they are answered.

app = create_app(ServerConfig(), load=lambda progress: mmswap.load(progress=progress))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mmswap.server.asking import Asked, PictureLimits, ask_chat, ask_completion
from mmswap.server.body import read_object
from mmswap.server.config import ServerConfig
from mmswap.server.counting import Counting
from mmswap.server.document import describe
from mmswap.server.engine import READY, UNLOADED, Engine, Load
from mmswap.server.events import card_events
from mmswap.server.facts import Facts
from mmswap.server.fetch import Fetcher
from mmswap.server.grammar import Grammars
from mmswap.server.guard import Guard
from mmswap.server.metrics import CONTENT_TYPE, Metrics
from mmswap.server.page import is_file, mount_page
from mmswap.server.pictures import Fetch
from mmswap.server.refusal import Refusal, refusal_of
from mmswap.server.replies import ChatReply, CompletionReply, Reply
from mmswap.server.schema import ChatRequest, CompletionRequest, Sampled, read
from mmswap.server.sending import answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ALIAS = "default"  # what a request may call the model, whatever it is
DECODERS = 2  # requests whose pictures are decoded at once


def create_app(config: ServerConfig, load: Load, *, fetch: Fetch | None = None) -> FastAPI:
    """The application around one engine, which begins to load when the server begins.

    Args:
        load: gives the runtime; called with `progress(done, total)` on the engine's thread.
        fetch: gets pictures from the web, where the config allows it.
    """
    metrics = Metrics()
    engine = Engine(load, config, metrics.answer)
    metrics.watch(engine)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await run_in_threadpool(engine.stop, 1.0)

    app = FastAPI(title="mmswap", lifespan=life, docs_url=None, redoc_url=None)
    app.state.engine, app.state.config = engine, config
    limits = PictureLimits(config.max_images, (fetch or Fetcher()) if config.allow_image_urls else None)
    _add_answers(app, engine, config, limits)
    _add_looks(app, engine, config, metrics)
    mount_page(app)
    describe(app, {CHAT: ChatRequest, COMPLETIONS: CompletionRequest})
    app.add_exception_handler(Refusal, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_error)
    app.add_middleware(_middleware(Guard), config=config)
    app.add_middleware(_middleware(Counting), metrics=metrics)
    return app


def _add_answers(app: FastAPI, engine: Engine, config: ServerConfig, limits: PictureLimits) -> None:
    name = config.name or ALIAS
    decoders = anyio.CapacityLimiter(DECODERS)
    grammars: list[Grammars] = []

    def grammars_of(facts: Facts) -> Grammars:
        if not grammars:
            grammars.append(Grammars(facts))
        return grammars[0]

    async def respond(
        request: Request, wish: Sampled, ask: Callable[[Facts], Asked], kind: type[Reply], logprobs: bool
    ) -> Response:
        if wish.model not in (None, name, ALIAS):
            sentence = f"There is no model {wish.model[:80]!r} here: this server has {name!r}."
            raise Refusal(404, sentence, param="model", code="model_not_found")
        facts = engine.require()
        try:
            asked = await anyio.to_thread.run_sync(ask, facts, limiter=decoders)
            work = asked.work(_owner(request, wish))
            usage = bool(wish.stream_options and wish.stream_options.include_usage)
            reply = kind(
                name, facts.spelling, each=wish.n or 1, usage_asked=usage, logprobs=logprobs, offer=asked.offer
            )
            return await answer(request, work, reply, engine, stream=bool(wish.stream))
        except Exception as error:
            raise refusal_of(error) from None

    @app.post(CHAT, summary="Answer a chat")
    async def chat(request: Request) -> Response:
        wish = read(ChatRequest, await read_object(request, config.max_body))

        def ask(facts: Facts) -> Asked:
            return ask_chat(wish, facts, limits, grammars_of(facts))

        return await respond(request, wish, ask, ChatReply, bool(wish.logprobs))

    @app.post(COMPLETIONS, summary="Go on with a text")
    async def completions(request: Request) -> Response:
        wish = read(CompletionRequest, await read_object(request, config.max_body))
        asked = wish.logprobs is not None
        return await respond(request, wish, lambda facts: ask_completion(wish, facts), CompletionReply, asked)


def _add_looks(app: FastAPI, engine: Engine, config: ServerConfig, metrics: Metrics) -> None:
    name = config.name or ALIAS

    def model() -> dict[str, Any]:
        facts = engine.require()
        return {"id": name, "object": "model", "created": 0, "owned_by": "mmswap", "context_length": facts.context}

    def look(path: str, summary: str, **more: Any) -> Callable[[Any], Any]:
        """GET, and HEAD of the same: what watches servers asks so."""

        def add(answers: Any) -> Any:
            app.add_api_route(path, answers, methods=["HEAD"], include_in_schema=False)
            return app.get(path, summary=summary, **more)(answers)

        return add

    @look("/v1/models", "The one model there is")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [model()]})

    @look("/v1/models/{wanted:path}", "What is known of a model")
    async def one_model(wanted: str) -> JSONResponse:
        if wanted not in (name, ALIAS):
            raise Refusal(404, f"There is no model {wanted[:80]!r} here.", param="model", code="model_not_found")
        return JSONResponse(model())

    @look("/health", "Whether the server can answer")
    async def health() -> JSONResponse:
        state = "stuck" if engine.stuck else engine.state
        good = state in (READY, UNLOADED)
        shown = {"status": "ok" if good else state, "model": engine.state, "progress": round(engine.progress, 3)}
        return JSONResponse(shown, status_code=200 if good else 503)

    @look("/metrics", "Figures for Prometheus", response_class=PlainTextResponse)
    async def figures() -> Response:
        return Response(await run_in_threadpool(metrics.text), media_type=CONTENT_TYPE)

    @app.get("/events", summary="The card as it changes, as server-sent events", response_class=PlainTextResponse)
    async def events(request: Request) -> Response:
        return card_events(request, engine)


def _owner(request: Request, wish: Sampled) -> str:
    """Whose request it is: as it says, else by where it comes from."""
    said = wish.user or getattr(wish, "safety_identifier", None)
    return f"user {said}" if said else f"from {request.client.host if request.client else 'here'}"


async def _on_error(request: Request, error: Exception) -> Response:
    refusal = refusal_of(error)
    return JSONResponse(refusal.body(), status_code=refusal.status, headers=refusal.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the page's files would say of an address of the API is not what the address says."""
    assert isinstance(error, HTTPException)
    allowed = _allowed(request)
    status = error.status_code
    if status in (404, 405):
        status = 405 if allowed and request.method not in allowed else 404
    headers = {name.lower(): value for name, value in (error.headers or {}).items() if name.lower() != "allow"}
    if status == 405:
        headers["allow"] = ", ".join(sorted(allowed))
    known = {404: f"There is nothing at {request.url.path[:100]}.", 405: f"{request.method} is not for this address."}
    refusal = Refusal(status, known.get(status, str(error.detail)), headers=headers)
    return JSONResponse(refusal.body(), status_code=refusal.status, headers=refusal.headers)


def _allowed(request: Request) -> set[str]:
    """Methods of an address: of the API, or else of a file of the page; none where there is nothing."""
    path = request.url.path
    found = [route.methods for route in request.app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    if found:
        return {method for methods in found for method in methods or ()}
    return {"GET", "HEAD"} if is_file(path) else set()


def _middleware(kind: Any) -> Callable[..., ASGIApp]:
    """As `add_middleware` is typed."""
    made: Callable[..., ASGIApp] = kind
    return made
