"""kubectl_complete-llmservice: kubectl runs it with the words after `kubectl llmservice`, and prints what it answers.

As a program made with cobra answers: a candidate a line, then a number of bits that say what the shell does with them.
"""

from __future__ import annotations

import sys

from typer._completion_classes import BashComplete, completion_init
from typer.main import get_command

from .app import COMPLETE, whole

NO_FILES = 4
"""cobra's ShellCompDirectiveNoFileComp."""
FILES = 0


def main() -> int:
    *words, incomplete = sys.argv[1:] or [""]
    completion_init()
    found = BashComplete(get_command(whole()), {}, "llmservice", COMPLETE).get_completions(words, incomplete)
    for item in found:
        if item.type == "plain":
            print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(f":{NO_FILES if all(item.type == 'plain' for item in found) else FILES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
