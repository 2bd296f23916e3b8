"""The page of what vLLM says when it does not start: each message with the reason and remedy that the runtime gives its
log."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from llmservice_api.reasons import Reason
from llmservice_runtime.contract import Failure, Phase
from llmservice_runtime.failures.failures import End, classify
from llmservice_vllm.extract_messages import ANSWER, HOLE, MAKING, REQUESTS, SERVING, TOOLS, Message, load
from llmservice_vllm.versions import order

PAGE = Path(__file__).parents[2] / "docs/reference/vllm-messages.md"
_SHOWN = 140
"""Characters of a message on the page."""
HEAD = """\
<!-- Generated from runtime/llmservice_vllm/messages.json by `make crds`: do not edit. -->

# What vLLM says when it does not start

{number} messages of vLLM {series}, by the [reason](reasons.md) and remedy that `status.failure` gives them. `…` \
stands for what vLLM puts in. A message that several files have is one row, with one of them; a long one is cut. The \
data file has both in full.

Listed is the text of every `raise` and `assert` with a message in vLLM's package that a start can reach, its models, \
layers and kernels among it. Left out by rule:

- tools, other ways to run vLLM, and code of other projects in the package: {tools};
- in files that work on requests, the functions that do not make their objects (those whose names do not begin with \
{making}): {serving};
- elsewhere functions that only a request calls, whose names begin with {requests};
- each `{answer}`, which is an answer to a request.

Not listed is what other packages raise (torch, NCCL, transformers, the hub's client), of which the operator knows the \
usual ones. What is not listed gets its reason by its words or by the file that raised it, else it is StartupFailed, \
with vLLM's own line as its message.

Those under StartupFailed are mostly vLLM's checks of itself, which no field mends. Report them to vLLM, and try \
another version in spec.runtime.image.
"""


def log_of(message: Message) -> list[str]:
    """The end of a log that this message ends: a traceback's last place and its line."""
    filled = message.text.replace(HOLE, "7")
    return [
        "(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120] Traceback (most recent call last):",
        f'(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120]   File "/x/vllm/{message.file}", line 1, in f',
        "(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120]     raise",
        f"(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120] {message.exception}: {filled}",
    ]


def failure_of(message: Message) -> Failure:
    """What the runtime makes of it."""
    return _classified(message.key)


@functools.cache
def _classified(key: tuple[str, str, str]) -> Failure:
    return classify(End(1, None, Phase.LOADING), log_of(Message(*key, ())))


def page_text(messages: Sequence[Message]) -> str:
    """The page: what is listed, and the messages by reason and remedy; equal ones in one row."""
    series = sorted({version for one in messages for version in one.versions}, key=order)
    groups: dict[tuple[str, str], dict[str, list[Message]]] = {}
    for one in messages:
        made = failure_of(one)
        groups.setdefault((str(made.reason), made.remedy), {}).setdefault(one.text, []).append(one)
    left_out = {"tools": TOOLS, "making": MAKING, "serving": SERVING, "requests": REQUESTS}
    told = {name: ", ".join(f"`{one}`" for one in entries) for name, entries in left_out.items()}
    parts = [HEAD.format(number=len(messages), answer=ANSWER, series=" and ".join(series), **told)]
    last = ""
    for (reason, remedy), rows in sorted(groups.items(), key=lambda one: (one[0][0] == "StartupFailed", one[0])):
        if reason != last:
            parts.append(f"## {reason}\n\n{Reason(reason).summary}\n")
        last = reason
        parts.append(f"**What to do:** {remedy}\n\n| message | raised in | only in |\n|-|-|-|")
        parts.extend(f"| {_cell(text)} | {_files(same)} | {_only_in(same, series)} |" for text, same in rows.items())
        parts.append("")
    return "\n".join(parts)


def _files(same: Sequence[Message]) -> str:
    files = sorted({one.file for one in same})
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"`{'/'.join(files[0].split('/')[-2:])}`{more}"


def _only_in(same: Sequence[Message], series: Sequence[str]) -> str:
    versions = {version for one in same for version in one.versions}
    return "" if len(versions) == len(series) else ", ".join(sorted(versions, key=order))


def _cell(text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN].rstrip()} {HOLE}"
    ticks = "``" if "`" in shown else "`"
    return f"{ticks} {shown} {ticks}".replace("|", "\\|") if ticks == "``" else f"`{shown}`".replace("|", "\\|")


def main() -> int:
    """Write the page, or say whether it is stale."""
    parser = argparse.ArgumentParser("python -m scripts.vllm_messages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing: end with 1 where the page is stale")
    text = page_text(load())
    if parser.parse_args().check:
        if PAGE.read_text() == text:
            return 0
        print(f"{PAGE} is stale: run make crds", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
