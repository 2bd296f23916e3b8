"""Pages of docs/reference that are generated from the models and tables of this package; compatibility.md has the
matrix and the differences between versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from llmservice_vllm.versions import DEFAULT, flag_table, known_versions, words

from llmservice_api.kubernetes import SHAPED_FIELDS, Schema
from llmservice_api.matrix import Check, Incompatibility, backends, methods, techniques
from llmservice_api.matrix.dimensions import CAPABILITIES, DIMENSIONS
from llmservice_api.reasons import SECTIONS, Reason

_INTRODUCTION = """# What goes with what

The operator refuses what vLLM would refuse, ignore or fail on, before a pod is made: the condition `Accepted` is \
False, with the reason, the field and the remedy. What is not known beforehand (which GPU, which model) refuses \
nothing. A line is refused when all of *combined* holds.

*Held against vLLM* says how a test compares the line with the vLLM of this version, on a machine without GPUs: \
"refused" makes an engine configuration that vLLM must refuse, and accept once the remedy is applied; "ignored" makes \
one that vLLM accepts without what was asked for; "lists" asks vLLM's own function or list; "no" is not checkable on a \
CPU.
"""
_SECTIONS = (
    ("Precision", methods.rows),
    ("Attention and the KV cache", backends.rows),
    ("Parallelism, speculation, adapters, batching, context, compilation", techniques.rows),
)
_HELD = {Check.ENGINE: "refused", Check.IGNORED: "ignored", Check.CALL: "lists", Check.NONE: "no"}
_NUMBERS = """## Numbers

| Field | What must hold | Known from |
|-|-|-|
| `spec.parallelism.tensorParallelSize` | divides the attention heads; divides the key/value heads, or is a \
multiple of them | `spec.model.architecture` |
| `spec.parallelism.pipelineParallelSize` | at most the number of layers | `spec.model.architecture` |
"""


def page() -> str:
    lines = [_INTRODUCTION]
    for title, rows in _SECTIONS:
        lines += [f"## {title}\n", *_table(rows())]
        if rows is backends.rows:
            lines += ["### What each attention backend takes\n", *_backends()]
    lines += [_NUMBERS, "## Versions of vLLM\n", *_versions(), _KUBERNETES]
    return "\n".join(lines)


def _table(rows: Iterable[Incompatibility]) -> Iterator[str]:
    yield "| Combined | Why not | What to do | Reason | vLLM's source | Held against vLLM |"
    yield "|-|-|-|-|-|-|"
    for row in rows:
        combined = "<br>".join(f"{_what(name)}: {shown(name, row.when[name])}" for name in row.when)
        yield f"| {combined} | {row.why} | {row.remedy} | `{row.reason}` | {row.source} | {_HELD[row.check]} |"
    yield ""


def _what(dimension: str) -> str:
    label = DIMENSIONS[dimension].label
    return f"{label} `{DIMENSIONS[dimension].field}`".strip()


def shown(dimension: str, values: frozenset[str]) -> str:
    """Values of a dimension in its own order; capabilities as ranges, nearly all values as "all but"."""
    every = DIMENSIONS[dimension].values
    chosen = [value for value in every if value in values]
    if dimension == "capability":
        return ", ".join(_runs(chosen))
    left = [value for value in every if value not in values]
    if len(chosen) > 6 and len(left) < len(chosen):
        return f"any but {', '.join(left)}" if left else "any"
    return ", ".join(chosen)


def _runs(capabilities: list[str]) -> Iterator[str]:
    """6.0, 6.1, 7.0, 9.0 become `6.0 to 7.0` and `9.0`."""
    runs: list[list[str]] = []
    for capability in capabilities:
        if runs and CAPABILITIES.index(capability) == CAPABILITIES.index(runs[-1][-1]) + 1:
            runs[-1].append(capability)
        else:
            runs.append([capability])
    for run in runs:
        yield run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"


def _backends() -> Iterator[str]:
    yield "| Backend | Accelerators | Compute capability | KV cache | Blocks | Computes in | MLA | ALiBi | Offloads |"
    yield "|-|-|-|-|-|-|-|-|-|"
    for backend in backends.BACKENDS:
        nvidia = "nvidia" in backend.accelerators
        cells = (
            f"`{backend.name}`",
            ", ".join(backend.accelerators),
            shown("capability", frozenset(backend.capabilities)) if nvidia else "",
            ", ".join(backend.kv_types),
            ", ".join(map(str, backend.block_sizes)),
            ", ".join(backend.dtypes),
            _yes(backend.mla),
            _yes(backend.alibi),
            _yes(backend.offloads),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


_LISTS = (
    *("attentionBackends", "kvCacheDtypes", "quantizations", "speculativeMethods"),
    *("toolCallParsers", "reasoningParsers"),
)
"""Lists of values that fields accept."""


def _versions() -> Iterator[str]:
    yield (
        "The flags of these are known, and the values that fields take. `spec.runtime.version`, else the tag of the "
        "image, says which of them an image is; a tag that says nothing (a digest, `latest`, a name of your own) needs "
        "the field, and a version that is not here is refused with `UnknownVersion`. An image that holds another one "
        "than it was taken for ends with `VersionMismatch`.\n"
    )
    yield (
        f"{DEFAULT} is what a service gets that names none. What newer ones take and refuse was read in their sources, "
        "and their servers have not run below the supervisor: the package index has no build of them for CPUs. The "
        "default moves when one has.\n"
    )
    yield "| vLLM | Flags | New beside the one before | Gone |"
    yield "|-|-|-|-|"
    names: Mapping[str, frozenset[str]] = {
        series: frozenset().union(
            (flag.name for flag in flag_table(series).flags), *(words(series, each) for each in _LISTS)
        )
        for series in known_versions()
    }
    for series, before in zip(known_versions(), (*known_versions()[1:], None), strict=True):
        older = names[series] if before is None else names[before]
        new, gone = _quoted(names[series] - older), _quoted(older - names[series])
        yield f"| {series} | {len(flag_table(series).flags)} | {new} | {gone} |"
    yield _BESIDE


_BESIDE = """
Flags of `spec.runtime.extraArgs` that a version refuses beside what fields say (`UnsupportedCombination`):

- `--async-scheduling` with `spec.speculativeDecoding.method` ngram or medusa (0.32), and, where `runtime.env` has \
`VLLM_USE_V2_MODEL_RUNNER: "0"`, with ngram or several pipeline stages (0.32 and 0.33).
- `--moe-backend` of a MegaMoE with `spec.lora` or `spec.adapters` (0.33). `--kernel-config` is left to vLLM.
- `--kv-transfer-config` with `spec.runtime.sleepMode` (0.33): Nixl by push or with other backends than UCX, Mooncake \
without RDMA, MooncakeStore and MoRIIO, alone or in a MultiConnector. Keys with dots are left to vLLM, and so are its \
variables for Mooncake (`MC_*`).

From 0.33 on `--tool-strict-level auto` is auto for every parser; without it a parser's own level holds, as before.
"""

_KUBERNETES = """## Versions of Kubernetes

1.31 and later. The chart refuses older ones. What was run on which:

| Kubernetes | What was run | When |
|-|-|-|
| 1.37.2 | every test: the local cluster is of this version, with its kubelet and containerd | 2026-11-28 |
| 1.31.14 | API server, controller manager and scheduler without a kubelet: every contract test of the CRD, the chart \
with its policies and rights and an upgrade of it, the kustomize base, and services from apply to Ready, edited, \
rolled out, put right after drift, scaled to 0 and back, at zero with an activator that holds a request, deleted, with \
the operator restarted; no request of it was deprecated or refused | 2026-11-28 |

What an older one lacks:

| Since | What | Before |
|-|-|-|
| 1.35, or with the feature gate `ImageVolume` | models and adapters from `image://` | `Ready` is False with \
`AdmissionRefused`, no pod is made, and `doctor` names the gate |
| each its own | fields of `podTemplate` that are younger than the cluster | a field that the API server does not know \
is refused with `AdmissionRefused` and its path. One behind a feature gate that is off is left out by the API server \
in silence, and the pods run without it: `supplementalGroupsPolicy` on 1.31, seen there |
"""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_HEADER = "<!-- Generated by `make crds`: do not edit. -->\n\n"


def fields_page(schema: Schema) -> str:
    """Every field of the spec and the status: type, bounds, description, example."""
    lines = ["# Fields of an LLMService\n", f"{schema['description']}\n", "## spec\n"]
    lines += _rows(schema["properties"]["spec"], "spec")
    lines += ["\n## status\n", f"{schema['properties']['status']['description']}\n"]
    lines += _rows(schema["properties"]["status"], "status")
    return _HEADER + "\n".join(lines) + "\n"


def reasons_page() -> str:
    """Every reason by section: what happened, where to look, what to do."""
    lines = [
        "# What went wrong and what to do\n",
        "The words that stand in the column REASON of `kubectl get llms`, in `status.conditions[].reason`, in "
        "`status.failure.reason` and in Events. `status.failure` has the sentence for your case, since when and in "
        "which pod it was seen, the log lines that show it, and what to do. One Event on the LLMService reports "
        "each failure when it begins; the metric `llmservice_failing_services` counts the services that have one, by "
        "reason.\n",
        "For a service: `kubectl get llms NAME`, then `kubectl describe llms NAME`. In the commands below NAME is "
        "that of the LLMService.\n",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}\n", *([f"{section.intro}\n"] if section.intro else [])]
        lines += ["| Reason | What happened | What to look at | What to do |", "|-|-|-|-|"]
        lines += [_reason_row(reason) for reason in Reason if reason.row.section is section]
        lines.append("")
    return _HEADER + "\n".join(lines)


def _reason_row(reason: Reason) -> str:
    cells = [cell.replace("|", "\\|") for cell in (reason.summary, reason.row.look, reason.remedy)]
    return f"| `{reason}` | {' | '.join(cells)} |"


def compatibility_page() -> str:
    """Every incompatible combination: cause and remedy."""
    return _HEADER + page()


def _rows(schema: Schema, path: str) -> list[str]:
    return ["| Field | Type | What it does |", "|-|-|-|", *(_row(*field) for field in _fields(schema, path))]


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    required = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        yield below, part, name in required
        if name not in SHAPED_FIELDS:
            yield from _fields(part, below)
            yield from _fields(part.get("items", {}), f"{below}[]")


def _row(path: str, schema: Schema, required: bool) -> str:
    text = schema.get("description", "").replace("|", "\\|").replace("\n", " ")
    text = re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", text)
    needed = " **Required.**" if required else ""
    return f"| `{path}` | {type_of(schema)} | {text}{needed} |"


def type_of(schema: Schema) -> str:
    """Type and bounds of a value in words, literals in backquotes."""
    if schema.get("x-kubernetes-int-or-string"):
        return _bounded("integer or string", schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'])}, at most {schema['maxItems']}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {type_of(schema['additionalProperties'])}, at most {schema.get('maxProperties')}"
    return _bounded(schema.get("type", "object"), schema)


def _bounded(kind: str, schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if "maxLength" in schema:
        return f"{kind}, at most {schema['maxLength']} characters"
    return kind
