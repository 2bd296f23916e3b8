"""The supervisor's side of who may ask its server for what: the clients' keys, and the token of its own requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmservice_runtime.access import pod_token
from llmservice_runtime.access.api_keys import KeyFile
from llmservice_runtime.contract import POD_TOKEN_HEADER, Failure
from llmservice_runtime.failures import own_failures
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.loopback import ask
from llmservice_runtime.supervisor.vllm_process import Flags

_GUARDED = "/v1/models"
_SECONDS = 60.0


class Access:
    """One server's."""

    def __init__(
        self, options: ServeOptions, flags: Flags, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        token = pod_token.make(options.drain_file)
        self.headers: Mapping[str, str] = {**flags.authorization(environment), POD_TOKEN_HEADER: token}
        """Of each request that the supervisor makes of vLLM."""
        self._file = KeyFile(options.api_keys_file) if options.api_keys_file else None
        self._say, self._said = say, ""

    @property
    def keys(self) -> int | None:
        """How many are in force; None: nobody is asked for one."""
        return None if self._file is None else len(self._file.current().digests)

    def look(self) -> None:
        """Say in the log what became of the keys, where that changed."""
        if self._file is None:
            return
        keys = self._file.current()
        said = (
            f"nobody is let in: {_place(keys.problem)}" if keys.problem else f"API keys in force: {len(keys.digests)}"
        )
        if said != self._said:
            self._say(said)
        self._said = said

    def failure(self) -> Failure | None:
        """Why nobody could be let in; None where somebody may, or no key is asked for."""
        problem = "" if self._file is None else self._file.current().problem
        return own_failures.api_key_unusable(_place(problem)) if problem else None

    async def unguarded(self, port: int) -> Failure | None:
        """Whether a server that should ask for a key answers without one: its middleware is not at work."""
        if self._file is None:
            return None
        status = (await ask(port, _GUARDED, timeout=_SECONDS)).status
        if status == 401:
            return None
        return own_failures.api_key_unusable(f"vLLM answered GET {_GUARDED} without a key, with {status}")


def _place(problem: str) -> str:
    return f"the Secret's key that spec.endpoint.apiKeySecretRef names is mounted, but {problem}"
