"""What completes a line in a shell: the script that `llmservice completion` prints, what that script asks, and kubectl.

Scripts that somebody saved ask later releases, so the variables keep the names that typer gave them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from .app import COMPLETE, whole
from .errors import ExitCode

NAME = "llmservice"
SCRIPTS: Mapping[str, str] = {
    "bash": f"""
_llmservice_completion() {{
    local IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="${{COMP_WORDS[*]}}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   {COMPLETE}=complete_bash $1 ) )
    return 0
}}

complete -o default -F _llmservice_completion {NAME}
""",
    "zsh": f"""
#compdef {NAME}

_llmservice_completion() {{
  eval $(env _TYPER_COMPLETE_ARGS="${{words[1,$CURRENT]}}" {COMPLETE}=complete_zsh {NAME})
}}

compdef _llmservice_completion {NAME}
""",
    "fish": f"complete --command {NAME} --no-files"
    f' --arguments "(env {COMPLETE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args'
    f' _TYPER_COMPLETE_ARGS=(commandline -cp) {NAME})"'
    f' --condition "env {COMPLETE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args'
    f' _TYPER_COMPLETE_ARGS=(commandline -cp) {NAME}"',
}
_NO_FILES, _FILES = 4, 0
"""cobra's ShellCompDirectiveNoFileComp, and none."""


def answer(question: str) -> ExitCode:
    """Print what is asked for: source_SHELL is a script, and it asks complete_SHELL with the line in variables."""
    match question:
        case "source_bash" | "source_zsh" | "source_fish":
            print(SCRIPTS[question.removeprefix("source_")])
        case "complete_bash":
            words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
            print("\n".join(item.value for item in _named(_found(words[1:at], "".join(words[at : at + 1])))))
        case "complete_zsh":
            found = "\n".join(map(_zsh, _of_the_line()))
            print(f"_arguments '*: :(({found}))'" if found else "_files")
        case "complete_fish":
            items = _of_the_line()
            if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
                return ExitCode.DONE if items else ExitCode.FAILED
            print("\n".join(map(_with_help, items)))
        case _:
            return ExitCode.FAILED
    return ExitCode.DONE


def kubectl() -> int:
    """kubectl_complete-llmservice: kubectl runs it with the words after `kubectl llmservice`. It answers as a program
    made with cobra does: a candidate a line, then a number of bits that say what the shell does with them."""
    *words, incomplete = sys.argv[1:] or [""]
    found = _found(words, incomplete)
    named = _named(found)
    for item in named:
        print(_with_help(item))
    print(f":{_NO_FILES if len(named) == len(found) else _FILES}")
    return 0


def _of_the_line() -> Sequence[CompletionItem]:
    """Of zsh and fish, which send the line up to the cursor."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = split_arg_string(line)[1:]
    incomplete = words.pop() if words and not line.endswith(" ") else ""
    return _named(_found(words, incomplete))


def _found(words: list[str], incomplete: str) -> Sequence[CompletionItem]:
    return ShellComplete(whole(), {}, NAME, COMPLETE).get_completions(words, incomplete)


def _named(found: Iterable[CompletionItem]) -> Sequence[CompletionItem]:
    """Without what stands for files, which a shell completes where there is nothing else."""
    return [item for item in found if item.type == "plain"]


def _with_help(item: CompletionItem) -> str:
    return f"{item.value}\t{' '.join(item.help.split())}" if item.help else str(item.value)


def _zsh(item: CompletionItem) -> str:
    def quoted(text: str) -> str:
        doubled = text.replace('"', '""').replace("'", "''")
        return re.sub("([$`])", r"\\\1", doubled).replace(":", r"\\:")

    return f'"{quoted(item.value)}":"{quoted(item.help)}"' if item.help else f'"{quoted(item.value)}"'
