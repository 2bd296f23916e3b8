"""Every route of the real vLLM asks for a key: its own app, all its routers, the operator's middleware."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from llmservice_runtime import shared_counters
from llmservice_runtime.contract import API_KEYS_FILE_ENV, DRAIN_FILE_ENV, DRAIN_MIDDLEWARE, KEYLESS_PATHS

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

TASKS = ("generate", "render", "transcription", "realtime", "embed", "classify", "token_embed", "token_classify")
# The routers of pooling models ask this of the model.
MODEL = SimpleNamespace(get_pooling_task=lambda supported: "embed")
# Answered without a key by vLLM's own check, whose prefixes are /v1, /v2, /inference and /cohere.
UNGUARDED_BY_VLLM = ("/invocations", "/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM's FastAPI application with every router that it has, development's among them."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text("right\n")
    path = str(folder / "board")
    shared_counters.create(path).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        patch.setenv(DRAIN_FILE_ENV, path)
        patch.setenv(API_KEYS_FILE_ENV, str(folder / "keys"))
        root = logging.getLogger()
        level = root.level
        yield build()
        root.setLevel(level)  # a module that vLLM imports for SageMaker raises it for the whole process


def build() -> Any:
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", "m", "--middleware", DRAIN_MIDDLEWARE, "--allowed-origins", '["*"]'])
    return build_app(args, TASKS, MODEL)


def paths(app: Any) -> set[str]:
    """Of all routes, mounted ones too, with something in the place of parameters."""
    return {re.sub(r"{[^}]*}", "x", route.path) for route in app.routes}


def status(app: Any, path: str, method: str, headers: tuple[tuple[bytes, bytes], ...] = (), **more: Any) -> int:
    """Of an empty request; 0 where nothing was answered."""
    return asyncio.run(_status(app, path, method, headers, more))


async def _status(app: Any, path: str, method: str, headers: tuple[tuple[bytes, bytes], ...], more: Any) -> int:
    found = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal found
        found = message.get("status", found)

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "server": ("h", 80),
        "path": path, "raw_path": path.encode(), "query_string": b"", "headers": list(headers),
        "client": ("127.0.0.1", 1), "root_path": "", **more,
    }  # fmt: skip
    await app(scope, receive, send)
    return found


def test_the_app_has_what_is_to_be_guarded(app: Any) -> None:
    assert {"/v1/chat/completions", "/v1/models", "/v1/embeddings", *UNGUARDED_BY_VLLM} <= paths(app)
    assert {"/sleep", "/collective_rpc", "/docs", "/openapi.json"} <= paths(app)
    assert paths(app) >= KEYLESS_PATHS


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_every_route_asks_for_a_key(app: Any, method: str) -> None:
    answers = {path: status(app, path, method) for path in paths(app) - KEYLESS_PATHS}
    assert {path for path, code in answers.items() if code != 401} == set()
    wrong = ((b"authorization", b"Bearer wrong"),)
    assert {path for path in answers if status(app, path, method, wrong) != 401} == set()


@pytest.mark.parametrize(
    "trick", ["/{}", "{}/", "/.{}", "/x/..{}", "{}?", "{};", "{}%2F", "/metrics/..{}", "/health/{}"]
)
def test_no_spelling_of_a_route_gets_past_it(app: Any, trick: str) -> None:
    spelled = {trick.format(path) for path in paths(app) - KEYLESS_PATHS}
    spelled |= {trick.format(path.upper()) for path in paths(app) - KEYLESS_PATHS}
    assert {path for path in spelled - KEYLESS_PATHS if status(app, path, "POST") != 401} == set()


@pytest.mark.parametrize("root", ["/api", "/api/", "/", "/health"])
def test_no_root_path_gets_past_it(app: Any, root: str) -> None:
    for path in paths(app) - KEYLESS_PATHS:
        for asked in (path, root + path, f"{root.rstrip('/')}{path}"):
            if asked not in KEYLESS_PATHS:
                assert status(app, asked, "POST", root_path=root) == 401, asked


def test_with_a_key_requests_come_through(app: Any) -> None:
    right = ((b"authorization", b"Bearer right"),)
    assert status(app, "/docs", "GET", right) == 200
    assert status(app, "/nowhere", "GET", right) == 404
    assert status(app, "/tokenize", "POST", right) not in (0, 401, 403)
    assert status(app, "/sleep", "POST", right) == 403


def test_what_a_browser_asks_beforehand_is_answered_by_vllms_cors(app: Any) -> None:
    preflight = ((b"origin", b"https://a.example"), (b"access-control-request-method", b"POST"))
    answers = {path: status(app, path, "OPTIONS", preflight) for path in paths(app)}
    assert set(answers.values()) == {200}


def test_vllm_has_no_key_of_its_own(app: Any) -> None:
    """It would refuse those that are rotated in."""
    assert "AuthenticationMiddleware" not in {middleware.cls.__name__ for middleware in app.user_middleware}
    assert app.user_middleware[0].cls.__name__ == "DrainMiddleware", "the outermost: nothing answers before it"


def test_the_routed_path_is_starlettes() -> None:
    from llmservice_runtime.middleware import routed
    from starlette._utils import get_route_path

    folders = ("", "/", "/a", "/a/", "/a/b", "a")
    for root in folders:
        for path in (*folders, "/ab", "/a/b/c", "//a", "/a//b"):
            scope = {"path": path, "root_path": root}
            assert routed(scope) == get_route_path(scope), (root, path)
