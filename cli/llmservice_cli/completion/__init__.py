"""The options of `llmservice completion`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.parameters import Argument

DESCRIPTION = "Print a script that completes commands, options and, from the cluster, names of services."
EPILOG = """\
examples:
  source <(llmservice completion bash)                                      this shell; in ~/.bashrc: every one
  llmservice completion zsh > "${fpath[1]}/_llmservice"
  llmservice completion fish > ~/.config/fish/completions/llmservice.fish

kubectl completes `kubectl llmservice` by itself where kubectl_complete-llmservice, which is installed with this
program, is in the PATH. Names come from the cluster that the line names, for at most two seconds.
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was typed."""

    shell: Annotated[Literal["bash", "zsh", "fish"], Argument(metavar="SHELL", help="bash, zsh or fish")]
