"""Where the files of an adapter come from: they are mounted, or the fetch container fetches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from llmservice_runtime.access.access import Access
from llmservice_runtime.adapters import adapter_list
from llmservice_runtime.adapters.adapter_list import Adapter
from llmservice_runtime.adapters.adapters import AdapterFailed, Adapters, Loras
from llmservice_runtime.contract import Failure
from llmservice_runtime.fetching.fetch_phase import FetchContainer
from llmservice_runtime.fetching.fetch_protocol import Request
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight.model_files import read_config
from llmservice_runtime.supervisor.dependencies import Surroundings
from llmservice_runtime.supervisor.vllm_process import Flags


def adapters(
    options: ServeOptions,
    flags: Flags,
    access: Access,
    around: Surroundings,
    container: FetchContainer,
    say: Callable[[str], None],
) -> Adapters:
    """The adapters of a server."""
    return Adapters(
        None if options.adapters_file is None else Path(options.adapters_file),
        Loras(flags.port, access.headers),
        Source(container).prepare,
        max_rank=flags.max_lora_rank,
        base=lambda: read_config(Path(flags.model)),
        clock=around.clock,
        retry_seconds=around.pace.adapter_retry_seconds,
        say=say,
    )


@dataclass(frozen=True)
class Source:
    """Gets adapters."""

    container: FetchContainer

    async def prepare(self, adapter: Adapter) -> Path:
        """The folder of an adapter. AdapterFailed where it cannot be fetched; what is mounted is not looked at here.

        A fetched one is named by its revision's own folder: vLLM tells cached prompts of adapters apart by their paths.
        """
        if adapter.path is not None:
            return Path(adapter.path)
        name = adapter_list.artifact(adapter.uri)
        # Adapters take turns, and each is tried again: none waits long for a container that does not run.
        container = replace(self.container, wait_seconds=min(self.container.wait_seconds, 10.0))
        found = await container.get(Request((f"{name}={adapter.uri}",)), lambda news: None)
        if isinstance(found, Failure):
            raise AdapterFailed(f"{found.message} {found.remedy}")
        if name not in found:
            raise AdapterFailed(f"{adapter.uri} was fetched, and its folder was not told.")
        return found[name]
