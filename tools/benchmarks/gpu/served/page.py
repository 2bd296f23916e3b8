"""`docs/reference/gpu.md`, from the committed results: what was measured on which GPU, beside the plan.

`python -m benchmarks.gpu.served.page` writes it; `--check` says whether it is stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.served import results
from benchmarks.gpu.served.results import Outcome, Result, Run
from benchmarks.pages import header, main, row

FILE = "docs/reference/gpu.md"
_HEAD = (
    "# Measured on a GPU\n\n"
    "What `python -m benchmarks.gpu.served` saw: a real vLLM under the product's own supervisor and middleware, on one "
    "machine with one GPU and without Kubernetes. Models have their real sizes and no weights "
    "(`--load-format dummy`), which takes the memory of real ones, and all of their time but that of reading them. "
    "On a machine of yours with one GPU, torch and vLLM the same command measures it; `--list` prints the steps."
)
_NOTHING = (
    "**Nothing has been measured yet: no GPU was at hand.** The run is written, and rehearsed with vLLM on CPUs. Plans "
    "for GPUs are [compared with start-ups that others measured](planner-accuracy.md)."
)
_REHEARSAL = (
    "# A rehearsal of the measurements on a GPU\n\n"
    "**These figures are of CPUs and of tiny models, or of recorded logs: none of them says anything about a GPU.** "
    "They show that each step of the run works."
)
_PLAN = {
    "weights_gib": "weights, GiB",
    "activation_gib": "activation peak, GiB",
    "non_torch_gib": "outside of torch, GiB",
    "graph_gib": "CUDA graphs, GiB",
    "kv_cache_gib": "KV cache, GiB",
    "kv_cache_tokens": "KV cache, tokens",
    "max_concurrency": "requests of full length at once",
}
"""Figures that a plan and vLLM's log both have."""


def text(runs: Sequence[Run]) -> str:
    """Markdown."""
    return "\n".join(_lines(runs)).rstrip() + "\n"


def _lines(runs: Sequence[Run]) -> Iterator[str]:
    if any(not run.is_gpu for run in runs):
        yield _REHEARSAL
    else:
        yield _HEAD
    if not runs:
        yield from ("", _NOTHING, "", "## Steps", "", "The most valuable first.", "")
        yield from header("step", "what it measures")
        yield from (row(f"`{name}`", title) for name, title in titles().items())
        return
    for run in runs:
        yield from _of_run(run)


def titles() -> Mapping[str, str]:
    """Every step, in the order of the run."""
    from benchmarks.gpu.served.__main__ import GROUPS

    return {step.name: step.title for group in GROUPS for step in group.steps}


def _of_run(run: Run) -> Iterator[str]:
    machine, known = run.machine, titles()
    yield from ("", f"## {machine.get('product') or 'CPUs'}, {machine['date']}", "")
    packages = ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
    parts = [f"vLLM {machine.get('vllm')}", packages, f"Python {machine['python']}", f"{machine.get('cpus')} CPUs"]
    if run.is_gpu:
        parts = [f"driver {machine['driver']}", f"CUDA {machine['cuda']}", f"{machine['memory_gib']} GiB", *parts]
    yield f"{'; '.join(parts)}. Command: `{machine['command']}`."
    if machine.get("missing"):
        yield f"\nNot in this vLLM: {', '.join(f'`{part}`' for part in machine['missing'])}."
    if machine.get("variables"):
        yield f"\nSet: {', '.join(f'`{name}={value}`' for name, value in machine['variables'].items())}."
    for result in sorted(run.results, key=lambda one: list(known).index(one.step) if one.step in known else len(known)):
        if result.outcome in (Outcome.MEASURED, Outcome.REPLAYED):
            yield from _of_step(result, known.get(result.step, result.step))
    yield from _without_figures(run.results, known)


def _of_step(result: Result, title: str) -> Iterator[str]:
    mark = " (replayed)" if result.outcome is Outcome.REPLAYED else ""
    yield from ("", f"### {title[0].upper()}{title[1:]}{mark}", "", f"`{result.step}`, {result.seconds:g} s.")
    if result.why:
        yield f"\n{result.why[0].upper()}{result.why[1:]}."
    values = dict(result.values)
    if "plan" in values:
        yield from _plan(values.pop("plan"), values.get("log", {}))
    values.pop("startup", None)
    tables = {name: value for name, value in values.items() if _is_table(value)}
    plain = {name: value for name, value in values.items() if name not in tables}
    if plain:
        yield ""
        yield from header("", "")
        for name, value in plain.items():
            yield from _rows(_words(name), value)
    for name, some in tables.items():
        columns = list(some[0])
        yield from ("", f"{_words(name)}:", "")
        yield from header(*map(_words, columns))
        yield from (row(*(_shown(one.get(column)) for column in columns)) for one in some)


def _plan(planned: Mapping[str, Any], log: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield from header("", "planned", "measured", "off by")
    for name, words in _PLAN.items():
        if name not in planned and name not in log:
            continue
        made, seen = planned.get(name), log.get(name)
        yield row(words, _shown(made), _shown(seen), _off(made, seen))
    consumed = log.get("consumed_gib")
    if consumed is not None:
        both = planned.get("weights_gib", 0) + planned.get("non_torch_gib", 0)
        yield row("weights and outside of torch, GiB", _shown(both), _shown(consumed), _off(both, consumed))
    yield row("verdict", str(planned.get("verdict", "")), "", "")
    if "longest_request" in planned:
        yield row(
            "longest request, tokens", _shown(planned["longest_request"]), _shown(log.get("estimated_max_len")), ""
        )


def _off(planned: object, measured: object) -> str:
    """Empty where one of them is not known."""
    if isinstance(planned, int | float) and isinstance(measured, int | float) and measured:
        return f"{planned / measured - 1:+.1%}"
    return ""


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _rows(name: str, value: object) -> Iterator[str]:
    """A row, or one for each part of a mapping."""
    if not isinstance(value, Mapping):
        yield row(name, _shown(value))
        return
    for key, part in value.items():
        yield from _rows(f"{name}: {_words(key)}", part)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: object) -> str:
    """One line of a cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return (str(value) if isinstance(value, str) else json.dumps(value)).replace("\n", " ").replace("|", "\\|")


def _without_figures(some: Sequence[Result], known: Mapping[str, str]) -> Iterator[str]:
    left = [one for one in some if one.outcome in (Outcome.FAILED, Outcome.NOT_REACHED)]
    if left:
        yield from ("", "### Without figures", "")
        yield from header("step", "", "why")
        yield from (row(known.get(one.step, one.step), one.outcome, _shown(one.why)) for one in left)


def generated(root: Path) -> Mapping[str, str]:
    """The page of a checkout."""
    return {FILE: text(results.runs(root / results.COMMITTED.relative_to(Path(__file__).parents[4])))}


if __name__ == "__main__":
    sys.exit(main("benchmarks.gpu.served.page", __doc__, generated))
