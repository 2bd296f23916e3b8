"""The supervisor's side of access control: the clients' API keys, and the token of its own requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmservice_runtime.access import pod_token
from llmservice_runtime.access.api_keys import KeyFile
from llmservice_runtime.contract import POD_TOKEN_HEADER, Failure
from llmservice_runtime.failures import own_failures
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.loopback import http_request
from llmservice_runtime.supervisor.vllm_process import Flags

_GUARDED = "/v1/models"
_SECONDS = 60.0


class Access:
    """Access to one server."""

    def __init__(
        self, options: ServeOptions, flags: Flags, environment: Mapping[str, str], log: Callable[[str], None]
    ) -> None:
        token = pod_token.make(options.drain_file)
        self.headers: Mapping[str, str] = {**flags.authorization(environment), POD_TOKEN_HEADER: token}
        """Headers of the supervisor's requests to vLLM."""
        self._file = KeyFile(options.api_keys_file) if options.api_keys_file else None
        self._log, self._logged = log, ""

    @property
    def keys(self) -> int | None:
        """Number of valid keys; None where no key is required."""
        return None if self._file is None else len(self._file.current().digests)

    def log_changes(self) -> None:
        """Log the state of the keys when it changed."""
        if self._file is None:
            return
        keys = self._file.current()
        line = (
            f"all clients refused: {_place(keys.problem)}" if keys.problem else f"valid API keys: {len(keys.digests)}"
        )
        if line != self._logged:
            self._log(line)
        self._logged = line

    def failure(self) -> Failure | None:
        """The failure where keys are required and none is valid; None otherwise."""
        problem = "" if self._file is None else self._file.current().problem
        return own_failures.api_key_unusable(_place(problem)) if problem else None

    async def check_guarded(self, port: int) -> Failure | None:
        """The failure where keys are required and vLLM serves a request without one (no middleware); None otherwise."""
        if self._file is None:
            return None
        status = (await http_request(port, _GUARDED, timeout=_SECONDS)).status
        if status == 401:
            return None
        return own_failures.api_key_unusable(f"vLLM answered GET {_GUARDED} without a key, with {status}")


def _place(problem: str) -> str:
    return f"the Secret's key that spec.endpoint.apiKeySecretRef names is mounted, but {problem}"
