"""Where the files of an adapter come from: they are mounted, or a child process fetches them as it does the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime.adapter_list import Adapter
from llmservice_runtime.adapters import Adapters, Loras
from llmservice_runtime.engine import Flags
from llmservice_runtime.model_files import read_config
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.processes import Reaper
from llmservice_runtime.surroundings import Surroundings


def adapters(
    options: ServeOptions, flags: Flags, around: Surroundings, reaper: Reaper, say: Callable[[str], None]
) -> Adapters:
    """The adapters of a server."""
    return Adapters(
        None if options.adapters_file is None else Path(options.adapters_file),
        Loras(flags.port, flags.authorization(around.environment)),
        Source(around, reaper).prepare,
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

    async def prepare(self, adapter: Adapter) -> Path:
        """The folder of an adapter; where it is mounted it is there, or it never will be."""
        assert adapter.path is not None
        return Path(adapter.path)
