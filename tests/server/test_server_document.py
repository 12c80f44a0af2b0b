"""What the OpenAPI document says is what the server does: requests made from it by schemathesis, good and bad ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from serving import CHAT, listening, until

import mmswap
from mmswap.server import ServerConfig, create_app

schemathesis = pytest.importorskip("schemathesis")

POSTED = (CHAT, "/v1/completions")
LOOKS = ("/v1/models", "/v1/models/{wanted}", "/health", "/metrics")
GOOD, BAD = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [*((path, mode) for path in POSTED for mode in (GOOD, BAD)), *((path, GOOD) for path in LOOKS)]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    runtime = mmswap.load(card="cpu", context=64)
    app = create_app(ServerConfig(name="seer"), lambda progress: runtime)
    with listening(app) as port:
        until(lambda: app.state.engine.state == "ready")
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")


def test_every_address_but_the_one_without_an_end_is_asked(api: Any) -> None:
    assert {found.ok().path for found in api.get_all_operations()} == {*POSTED, *LOOKS, "/events"}


@pytest.mark.parametrize(("path", "mode"), CASES, ids=str)
def test_requests_made_from_the_document_are_answered_as_it_says(api: Any, path: str, mode: Any) -> None:
    operation = api[path]["POST" if path in POSTED else "GET"]

    @settings(
        max_examples=25 if path in POSTED else 3,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        # what is right by its kind may be wrong by what it means: a model that is not there, stream_options alone
        case.call_and_validate(timeout=600, excluded_checks=[schemathesis.checks.positive_data_acceptance])

    ask()
