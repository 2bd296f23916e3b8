"""Provides the files of adapters: mounted, or fetched by the fetch container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from llmservice_runtime.access.access import Access
from llmservice_runtime.adapters import adapter_list
from llmservice_runtime.adapters.adapter_list import Adapter
from llmservice_runtime.adapters.adapters import AdapterFailed, Adapters, LoraEndpoints
from llmservice_runtime.contract import Failure
from llmservice_runtime.fetching.fetch_phase import FetchContainer
from llmservice_runtime.fetching.fetch_protocol import Request
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight.model_files import read_config
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.vllm_process import Flags


def adapters(
    options: ServeOptions,
    flags: Flags,
    access: Access,
    dependencies: Dependencies,
    container: FetchContainer,
    log: Callable[[str], None],
) -> Adapters:
    """The adapters of a server, wired with its dependencies."""
    return Adapters(
        None if options.adapters_file is None else Path(options.adapters_file),
        LoraEndpoints(flags.port, access.headers),
        Source(container).prepare,
        max_rank=flags.max_lora_rank,
        base=lambda: read_config(Path(flags.model)),
        clock=dependencies.clock,
        retry_seconds=dependencies.timing.adapter_retry_seconds,
        log=log,
    )


@dataclass(frozen=True)
class Source:
    """Provides the folder of an adapter."""

    container: FetchContainer

    async def prepare(self, adapter: Adapter) -> Path:
        """The folder of an adapter. AdapterFailed where it cannot be fetched; mounted files are not checked here.

        The path of a fetched one contains its revision, because vLLM separates cached prompts of adapters by path.
        """
        if adapter.path is not None:
            return Path(adapter.path)
        name = adapter_list.artifact(adapter.uri)
        # Adapters are handled in turn and retried, so none waits long for a container that does not run.
        container = replace(self.container, wait_seconds=min(self.container.wait_seconds, 10.0))
        found = await container.get(Request((f"{name}={adapter.uri}",)), lambda progress: None)
        if isinstance(found, Failure):
            raise AdapterFailed(f"{found.message} {found.remedy}")
        if name not in found:
            raise AdapterFailed(f"{adapter.uri} was fetched, but its folder was not reported.")
        return found[name]
