"""Where the files of an adapter come from: they are mounted, or a child process fetches them as it does the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime import adapter_list, fetch_phase, handover
from llmservice_runtime.access import Access
from llmservice_runtime.adapter_list import Adapter
from llmservice_runtime.adapters import AdapterFailed, Adapters, Loras
from llmservice_runtime.engine import Flags
from llmservice_runtime.model_files import read_config
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.processes import Reaper
from llmservice_runtime.surroundings import Surroundings
from llmservice_runtime.waiting import in_thread


def adapters(
    options: ServeOptions,
    flags: Flags,
    access: Access,
    around: Surroundings,
    reaper: Reaper,
    say: Callable[[str], None],
) -> Adapters:
    """The adapters of a server."""
    return Adapters(
        None if options.adapters_file is None else Path(options.adapters_file),
        Loras(flags.port, access.headers),
        Source(around, reaper, Path(options.drain_file).parent / "adapters").prepare,
        max_rank=flags.max_lora_rank,
        base=lambda: read_config(Path(flags.model)),
        clock=around.clock,
        retry_seconds=around.pace.adapter_retry_seconds,
        say=say,
    )


@dataclass(frozen=True)
class Source:
    """Gets adapters."""

    around: Surroundings
    reaper: Reaper
    links: Path

    async def prepare(self, adapter: Adapter) -> Path:
        """The folder of an adapter. AdapterFailed where it cannot be fetched; what is mounted is not looked at here.

        A fetched one is named by its revision's own folder: vLLM tells cached prompts of adapters apart by their paths.
        """
        if adapter.path is not None:
            return Path(adapter.path)
        name = adapter_list.digest(adapter.uri)
        command = (*self.around.fetch, handover.OPTION, f"--fetch={name}={adapter.uri}", f"--links={self.links}")
        failure = await fetch_phase.run(self.reaper, command, self.around.environment, lambda transfer: None)
        if failure is not None:
            raise AdapterFailed(f"{failure.message} {failure.remedy}")
        return await in_thread((self.links / name).resolve)
