"""`llmservice ui`: finds the page, signs in, opens a browser, and carries its connections until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx
from kubeloop.errors import Forbidden, KubeError, ServerError, TooManyRequests, Unreachable
from kubeloop.resources import POD, Resource
from llmservice_fetch.proxies import proxy_of
from llmservice_operator.facts.pods import PodFacts
from llmservice_runtime.bounded_json import Reader, Refused, clean, parse

from llmservice_cli.cluster import Connection, cli_error, connect
from llmservice_cli.documents import tell
from llmservice_cli.errors import CliError, ExitCode, WrongUsage, say
from llmservice_cli.forward import Forward, PodPort, forwarded
from llmservice_cli.installation import NAMESPACE, PAGES
from llmservice_cli.ui import Options

# The token that is handed to the page: the kubeconfig's, or a short one of a service account.

SECONDS = 3600
_SERVICE_ACCOUNT = Resource("", "v1", "serviceaccounts", "ServiceAccount")
RIGHT = "create on serviceaccounts/token"


async def token_of(connection: Connection, service_account: str | None) -> str:
    """CliError where the kubeconfig has none to hand over, or the service account gives none."""
    if service_account is not None:
        return await _requested(connection, service_account)
    token = await connection.credentials.token()
    if token:
        return token
    raise CliError(
        "this kubeconfig has no token, only a client certificate, which cannot be handed to the page",
        "give --service-account NAMESPACE/NAME, of one that may read what you want to see: kubectl create"
        " serviceaccount, and a rolebinding of it to the ClusterRole view",
    )


async def _requested(connection: Connection, service_account: str) -> str:
    namespace, separator, name = service_account.partition("/")
    if not separator or not namespace or not name or "/" in name:
        raise WrongUsage(
            f"--service-account {service_account!r} is not written as NAMESPACE/NAME", "for example team-a/viewer"
        )
    try:
        answer = await connection.kube.token_for(_SERVICE_ACCOUNT, namespace, name, SECONDS)
    except KubeError as error:
        failed = cli_error(error)
        raise CliError(
            f"no token of the service account {service_account}: {failed.message}",
            f"create it, or ask for the right {RIGHT} in namespace {namespace}",
        ) from error
    try:
        return Reader(answer).within("status").word("token", 64 * 1024)
    except Refused as refused:
        raise CliError(f"the API server's TokenRequest has no token: {refused}", "see the API server's log") from None


PORT = 8080
LOCAL = "127.0.0.1"
LOOKS_EVERY = 30.0
"""Seconds."""
TIMEOUT = httpx.Timeout(30.0)
SIGN_IN = "/sign-in/token"
MOST_ANSWER = 16 * 1024
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


async def run(options: Options) -> ExitCode:
    """Until Ctrl-C, which is how it is ended; with --url until the browser is open."""
    async with connect(options) as connection:
        if options.url is not None:
            return await _by_url(connection, options, options.url)
        token = await token_of(connection, options.service_account)
        to = await _pod(connection, options.page_namespace or NAMESPACE)
        async with forwarded(connection, to, timeout=TIMEOUT) as (http, forward), _listening(forward, options) as port:
            host = f"{LOCAL}:{port}"
            try:
                path = await _code(http, SIGN_IN, token, _namespace(connection, options), {"Host": host})
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}" if forward.error is None else forward.error.message
                raise CliError(f"the page in pod {to.pod} does not answer: {why}", "see the log of that pod") from error
            with contextlib.suppress(asyncio.CancelledError):
                await _open(f"http://{host}{path}", options)
                say("the page is open until Ctrl-C")
                await _until_gone(connection, forward)
    return ExitCode.DONE


async def _by_url(connection: Connection, options: Options, url: str) -> ExitCode:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise WrongUsage(f"--url {url!r} is not https://...", "a token is sent there: give an address with TLS")
    base = f"{parts.scheme}://{parts.netloc}"
    token = await token_of(connection, options.service_account)
    try:
        # A proxy of the environment must not get a token that goes to this machine, unencrypted.
        # httpx knows neither networks nor `*.` in NO_PROXY.
        direct = {base: None} if proxy_of(base) is None else None
        async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=parts.scheme == "https", mounts=direct) as http:
            path = await _code(http, base + SIGN_IN, token, _namespace(connection, options), {})
    except httpx.HTTPError as error:
        raise CliError(f"{base} does not answer: {type(error).__name__}: {error}", "check the address") from error
    await _open(base + path, options)
    return ExitCode.DONE


def _namespace(connection: Connection, options: Options) -> str:
    """Whose services are shown where those of all may not be; empty: a service account's own."""
    if options.service_account is not None:
        return options.namespace or ""
    return connection.namespace


async def _pod(connection: Connection, namespace: str) -> PodPort:
    """A ready pod of the page. Only in the namespace that is named: it gets a token, and anybody may give a pod of
    theirs the chart's labels elsewhere."""
    pods = await connection.kube.list_all(POD, namespace, label_selector=PAGES)
    ready = [facts for facts in map(PodFacts.from_object, pods) if facts.ready and not facts.deleting]
    if ready:
        return PodPort(namespace, min(facts.name for facts in ready), PORT)
    if pods:
        raise CliError(f"the page's pod in namespace {namespace} is not ready", f"kubectl -n {namespace} get pods")
    raise CliError(
        f"there is no page in namespace {namespace}",
        "install the chart with --set ui.enabled=true, or name its namespace with --page-namespace",
    )


async def _code(http: httpx.AsyncClient, address: str, token: str, namespace: str, headers: dict[str, str]) -> str:
    """The path that signs a browser in."""
    body = {"token": token, "namespace": namespace}
    async with http.stream("POST", address, json=body, headers=headers) as response:
        parts, left = [], MOST_ANSWER
        async for part in response.aiter_raw():
            left -= len(part)
            if left < 0:
                raise CliError(
                    f"what answers is not the page: it sends more than {MOST_ANSWER} bytes", "check the address"
                )
            parts.append(part)
    text = b"".join(parts).decode(errors="replace")
    if response.status_code != HTTPStatus.OK:
        said = " ".join(clean(text).split())[:300]
        raise CliError(
            f"the page refuses to sign you in: HTTP {response.status_code}, {said}",
            "kubectl auth whoami shows whether the API server accepts this kubeconfig",
        )
    try:
        path = Reader(parse(text)).word("path", 512)
    except Refused as refused:
        raise CliError(f"what answers is not the page: {refused}", "check the address, and the version") from None
    if not path.startswith("/sign-in/"):
        raise CliError(f"what answers is not the page: it names the path {path!r}", "check the address")
    return path


@asynccontextmanager
async def _listening(forward: Forward, options: Options) -> AsyncIterator[int]:
    """A port of this machine that leads to the pod."""
    try:
        server = await asyncio.start_server(forward.serve, LOCAL, options.port)
    except OSError as error:
        raise CliError(
            f"port {options.port} of {LOCAL} cannot be used: {error.strerror}", "give another --port, or 0"
        ) from error
    try:
        port: int = server.sockets[0].getsockname()[1]
        yield port
    finally:
        server.close()


async def _until_gone(connection: Connection, forward: Forward) -> None:
    """Returns never; CliError where the pod is gone, with which all sessions are.

    Looks when a connection fails, and now and then: without a browser there are none.
    """
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(forward.failed.wait(), LOOKS_EVERY)
        forward.failed.clear()
        try:
            found = await connection.kube.get(POD, forward.to.namespace, forward.to.pod)
        except (Forbidden, ServerError, TooManyRequests, Unreachable) as error:  # the next connection may work
            say(f"warning: {error.message}")
            continue
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise CliError(
                f"pod {forward.to.pod} of the page has ended, and its sessions with it", "run llmservice ui again"
            )
        if forward.error is not None:
            say(f"warning: {forward.error.message}")
            forward.error = None  # said once


async def _open(address: str, options: Options) -> None:
    # The browser may be one that runs until it is closed, and is served by this process.
    if options.no_open or not await asyncio.to_thread(webbrowser.open, address):
        tell(address)
