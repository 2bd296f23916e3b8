"""The cluster that a command talks to, by the rules of kubectl: flags, then $KUBECONFIG, then the pod's own account.

A failure of it is told in the words for somebody at a terminal.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubeloop import credentials
from kubeloop.credentials import Credentials
from kubeloop.errors import KubeError, NotFound, ProxyRefusal, ServerError, Unreachable, lacks_right
from llmservice_api.constants import LLMSERVICE
from llmservice_runtime.bounded_json import clean

from llmservice_cli.options import is_namespace

from .api import USER_AGENT, Api
from .errors import CliError, WrongUsage
from .options import Scope
from .streams import StreamTransport
from .text import shown

if TYPE_CHECKING:
    import httpx

LONGEST = 300
"""Characters of a line about what could not be read."""
LOGIN_TIMEOUT = 65.0
"""Seconds for a token that is renewed while a command runs: somebody may have to confirm it in a browser. Longer than
the login program's own limit, so that the program's error is the one that is shown."""


@dataclass(frozen=True)
class Connection:
    """One API server, and the namespace of objects that are named without one."""

    kube: Api
    credentials: Credentials
    namespace: str

    def http(self, path: str = "", **options: Any) -> httpx.AsyncClient:
        """A client for the API server's proxy and for logs, which give no Kubernetes objects; a context manager."""
        # Not at the top: most commands need no such client, and importing httpx takes as long as most of `status`.
        import httpx

        token_of = self.credentials.token

        class Auth(httpx.Auth):
            """The kubeconfig's token, asked for at each request since the kubelet renews it."""

            async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
                if token := await token_of():
                    request.headers["Authorization"] = f"Bearer {token}"
                yield request

        context = self.credentials.ssl_context()
        return httpx.AsyncClient(
            base_url=self.credentials.server + path,
            auth=Auth(),
            verify=True if context is None else context,
            proxy=self.credentials.proxy,
            trust_env=False,
            **options,
        )


@asynccontextmanager
async def connect(options: Scope) -> AsyncIterator[Connection]:
    """A connection by its options; everything that fails inside comes out as CliError."""
    if options.namespace and not is_namespace(options.namespace):
        raise WrongUsage(f"{shown(options.namespace)} is no name of a namespace", "give one with -n NAME")
    try:
        found = await credentials.load(
            kubeconfig=options.kubeconfig or os.environ.get("KUBECONFIG") or None, context=options.context
        )
        async with StreamTransport(found, user_agent=USER_AGENT, login_timeout=LOGIN_TIMEOUT) as transport:
            yield Connection(Api(transport), found, options.namespace or found.namespace)
    except KubeError as error:
        raise cli_error(error) from error


def cli_error(error: KubeError) -> CliError:
    """The same failure, with a remedy for somebody at a terminal: the operator's own remedies are about retries."""
    if isinstance(error, Unreachable):
        return CliError(error.message, "check the server's address in the kubeconfig, and that you can reach it")
    if isinstance(error, ProxyRefusal):
        return CliError(error.message, "see what is between you and the API server: a proxy, a gateway, a firewall")
    if isinstance(error, ServerError):
        return CliError(error.message, "see the API server's log if it stays")
    if isinstance(error, NotFound):
        return CliError(error.message, f"install the operator: it brings the kind {LLMSERVICE.full_name}")
    return CliError(error.message, error.remedy or "see the message of the API server")


def line_of(text: str) -> str:
    """One line, cleaned, of LONGEST characters at most."""
    return " ".join(clean(text).split())[:LONGEST]


def why(error: KubeError, namespace: str | None) -> str:
    """Why something could not be read, in one line: the right that is missing, where it is one, and what the API server
    says. None: of all namespaces."""
    if lacks_right(error):
        where = "all namespaces" if namespace is None else f"namespace {namespace}"
        return line_of(f"needs {error.right} in {where}: {error.message}")
    return line_of(error.message)
