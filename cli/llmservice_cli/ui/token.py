"""The token that is handed to the page: the kubeconfig's, or a short one of a service account."""

from __future__ import annotations

from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.resources import Resource
from llmservice_runtime.bounded_json import Reader, Refused

from llmservice_cli.cluster import Connection, cli_error
from llmservice_cli.errors import CliError, WrongUsage

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
