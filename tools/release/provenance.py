"""Provenance: in-toto statements with SLSA's predicate, version 1. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from release.plan import Source
from release.references import Reference

JSON = dict[str, Any]
BUILD_TYPE = "https://llmservice.dev/release/v1"
LOCAL_BUILDER = "https://llmservice.dev/release/local"


@dataclass(frozen=True)
class Inputs:
    """What went into all artifacts of a release: `files` are hashes of lock files, `images` resolved base images."""

    source: Source
    version: str
    files: Mapping[str, str]
    images: Mapping[str, Reference]
    builder: str


def statement(name: str, sha256: str, inputs: Inputs, base: str | None = None) -> str:
    """The statement about one artifact. `base` is its base image as its Dockerfile names it."""
    return json.dumps(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name, "digest": {"sha256": sha256}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": predicate(inputs, base),
        },
        indent=1,
        sort_keys=True,
    ) + "\n"  # fmt: skip


def predicate(inputs: Inputs, base: str | None) -> JSON:
    """How an artifact was made. It has no time of day, so that a second build can be compared with the first."""
    source = inputs.source
    materials = [{"uri": f"git+{source.uri}@{source.commit}", "digest": {"gitCommit": source.commit}}]
    materials += [{"uri": name, "digest": {"sha256": digest}} for name, digest in sorted(inputs.files.items())]
    if base is not None:
        image = inputs.images[base]
        digest = image.digest.removeprefix("sha256:")
        materials.append({"uri": f"docker://{image.name}:{image.tag}", "digest": {"sha256": digest}})
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"version": inputs.version, "commit": source.commit},
            "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch},
            "resolvedDependencies": materials,
        },
        "runDetails": {"builder": {"id": inputs.builder}},
    }


def builder_of(environment: Mapping[str, str]) -> str:
    """Who builds: the workflow on GitHub, else a machine of somebody's own."""
    workflow = environment.get("GITHUB_WORKFLOW_REF", "")
    return f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{workflow}" if workflow else LOCAL_BUILDER


def without_credentials(uri: str) -> str:
    """A repository's address without the user and password that git may have been given in it."""
    parts = urlsplit(uri)
    if not parts.scheme or parts.scheme == "file":
        return "local" if parts.scheme == "file" or uri.startswith(("/", ".")) or not uri else uri.rpartition("@")[2]
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))
