"""Which images, chart and values a release has, before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from llmservice_planner.versions import image_version

from localcluster.errors import ClusterError
from localcluster.paths import REPOSITORY
from release import provenance
from release.chart import resolved_values, with_home
from release.plan import Part, Source, by_tag_only, images_to_resolve, plan
from release.provenance import builder_of, without_credentials
from release.references import Reference, pinned_text
from release.sbom import container, stable

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
VALUES = (REPOSITORY / "charts" / "llmservice-operator" / "values.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("debian:bookworm-slim", "docker.io/library/debian:bookworm-slim"),
        ("debian", "docker.io/library/debian:latest"),
        ("vllm/vllm-openai:v0.32.0", "docker.io/vllm/vllm-openai:v0.32.0"),
        ("registry.example.com/team/x:1", "registry.example.com/team/x:1"),
        ("registry.example.com:5000/x", "registry.example.com:5000/x:latest"),
        ("127.0.0.1:5000/x:1", "127.0.0.1:5000/x:1"),
        ("localhost/x:1", "localhost/x:1"),
        (f"x@{A}", f"docker.io/library/x@{A}"),
        (f"r.example.com/x:1@{A}", f"r.example.com/x:1@{A}"),
    ],
)
def test_a_reference_is_read_as_container_tools_read_it(text: str, whole: str) -> None:
    assert str(Reference.parse(text)) == whole


@pytest.mark.parametrize("text", ["", ":1", "x:", "x@", "x@sha256:12", f"x@md5:{'a' * 64}", "x y", "/x:y", "x:1:2"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="not an image reference"):
        Reference.parse(text)


@pytest.mark.parametrize(
    ("text", "mirror", "place"),
    [
        ("debian:bookworm-slim", "m.example.com/hub", "m.example.com/hub/library/debian:bookworm-slim"),
        ("vllm/vllm-openai:v0.32.0", "127.0.0.1:5000/m", "127.0.0.1:5000/m/vllm/vllm-openai:v0.32.0"),
        (f"debian@{A}", "m.example.com", f"m.example.com/library/debian@{A}"),
        ("debian:1", "", "docker.io/library/debian:1"),
    ],
)
def test_a_mirror_has_the_same_paths(text: str, mirror: str, place: str) -> None:
    assert str(Reference.parse(text).in_mirror(mirror)) == place


def test_a_digest_stands_behind_the_tag_which_names_the_engines_version() -> None:
    assert pinned_text("vllm/vllm-openai:v0.32.0", A) == f"vllm/vllm-openai:v0.32.0@{A}"
    with pytest.raises(ClusterError):
        pinned_text("vllm/vllm-openai:v0.32.0", "sha256:12")


def test_the_values_name_every_image_by_digest_and_nothing_else_changes() -> None:
    operator = Reference.parse(f"r.example.com/llm/llmservice-operator:0.1.0@{A}")
    cpu = Reference.parse(f"r.example.com/llm/vllm-cpu:v0.32.0-0.1.0@{B}")
    router = Reference.parse(f"r.example.com/llm/llmservice-router:0.1.0@{B}")
    (gpu,) = images_to_resolve(yaml.safe_load(VALUES))
    text = resolved_values(VALUES, operator, cpu, router, {gpu: C})
    before, after = yaml.safe_load(VALUES), yaml.safe_load(text)
    assert after["image"] == before["image"] | {"repository": "r.example.com/llm/llmservice-operator", "digest": A}
    changed = {"defaultGpuImage": f"{gpu}@{C}", "defaultCpuImage": str(cpu)}
    assert after["services"] == before["services"] | changed
    assert after["routing"] == before["routing"] | {"image": str(router)}
    others = {"image": 0, "services": 0, "routing": 0}
    assert {**after, **others} == {**before, **others}
    assert [line for line in text.splitlines() if "#" in line] == [line for line in VALUES.splitlines() if "#" in line]
    assert by_tag_only(after) == ()


def test_what_is_left_by_tag_is_found() -> None:
    assert by_tag_only(yaml.safe_load(VALUES)) == ("image.digest", "services.defaultGpuImage")


def test_a_value_that_is_not_there_is_an_error() -> None:
    operator = Reference.parse(f"r.example.com/x:1@{A}")
    with pytest.raises(ClusterError, match=r"no line image\.digest"):
        resolved_values(VALUES.replace("  digest:", "  hash:"), operator, None, None, {})


def test_names_of_a_release() -> None:
    planned = plan(REPOSITORY, "oci://registry.example.com:5000/llm/")
    version = planned.version
    vllm = VALUES.partition("vllm-openai:v")[2].split()[0]
    assert [str(planned.reference(image)) for image in planned.images] == [
        f"registry.example.com:5000/llm/llmservice-operator:{version}",
        f"registry.example.com:5000/llm/llmservice-router:{version}",
        f"registry.example.com:5000/llm/vllm-cpu:v{vllm}-{version}",
    ]
    assert str(planned.chart) == f"registry.example.com:5000/llm/charts/llmservice-operator:{version}"


def test_the_cpu_images_tag_tells_the_operator_its_version() -> None:
    (_, _, cpu) = plan(REPOSITORY, "registry.example.com/llm").images
    stated = image_version(f"registry.example.com/llm/{cpu.name}:{cpu.tag}@{A}")
    assert stated is not None
    assert f"vllm-openai:v{stated}" in VALUES


@pytest.mark.parametrize(
    ("registry", "version", "only", "message"),
    [
        ("", "", [], "no registry is named"),
        ("https://r.example.com", "", [], "not an image reference"),
        ("r.example.com/llm", "9.9.9", [], "VERSION is 9.9.9, but"),
        ("r.example.com/llm", "", [Part.CHART], "--only operator"),
    ],
)
def test_a_release_that_cannot_be_is_refused_first(registry: str, version: str, only: list[Part], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        plan(REPOSITORY, registry, version, only)


def test_versions_that_differ_are_named(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "charts/llmservice-operator/Chart.yaml", "runtime/requirements-cpu.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    chart = tmp_path / "charts/llmservice-operator/Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: ", "appVersion: 9"))
    with pytest.raises(ClusterError, match=r"the versions differ: .*Chart\.yaml appVersion: 9"):
        plan(tmp_path, "r.example.com/llm")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://user:s3cr3t@git.example.com/team/x.git", "https://git.example.com/team/x.git"),
        ("https://token@git.example.com:8443/x", "https://git.example.com:8443/x"),
        ("https://git.example.com/x?access_token=s3cr3t", "https://git.example.com/x"),
        ("ssh://git@git.example.com/x.git", "ssh://git.example.com/x.git"),
        ("git@git.example.com:team/x.git", "git.example.com:team/x.git"),
        ("/srv/x.git", "local"),
        ("file:///srv/x.git", "local"),
        ("", "local"),
    ],
)
def test_provenance_names_the_repository_without_credentials(uri: str, shown: str) -> None:
    assert without_credentials(uri) == shown


def test_provenance_names_what_went_in() -> None:
    base = Reference.parse(f"debian:bookworm-slim@{B}")
    source = Source("c" * 40, 1700000000, "https://git.example.com/x")
    inputs = provenance.Inputs(source, "0.1.0", {"uv.lock": "d" * 64}, {"debian:bookworm-slim": base}, "builder")
    stated = json.loads(provenance.statement("r.example.com/x", "a" * 64, inputs, "debian:bookworm-slim"))
    assert stated["subject"] == [{"name": "r.example.com/x", "digest": {"sha256": "a" * 64}}]
    materials = {each["uri"]: each["digest"] for each in stated["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert materials == {
        f"git+https://git.example.com/x@{'c' * 40}": {"gitCommit": "c" * 40},
        "uv.lock": {"sha256": "d" * 64},
        "docker://docker.io/library/debian:bookworm-slim": {"sha256": "b" * 64},
    }


@pytest.mark.parametrize(
    ("environment", "builder"),
    [
        ({}, provenance.LOCAL_BUILDER),
        (
            {"GITHUB_WORKFLOW_REF": "o/r/.github/workflows/release.yml@refs/tags/v1"},
            "https://github.com/o/r/.github/workflows/release.yml@refs/tags/v1",
        ),
    ],
)
def test_who_builds(environment: dict[str, str], builder: str) -> None:
    assert builder_of(environment) == builder


def test_an_sbom_of_the_same_content_is_the_same_document() -> None:
    first, second = (
        {"serialNumber": n, "metadata": {"timestamp": n, "component": {"bom-ref": n}}, "dependencies": [{"ref": n}]}
        for n in ("scan-1", "scan-2")
    )
    assert stable(first, A, 0) == stable(second, A, 0)
    assert json.loads(stable(second, A, 0))["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_the_chart_sbom_names_images_by_digest() -> None:
    part = container(Reference.parse(f"r.example.com:5000/llm/vllm-cpu:v1@{A}"))
    assert part["purl"] == (
        f"pkg:oci/vllm-cpu@sha256%3A{'a' * 64}?repository_url=r.example.com%3A5000%2Fllm%2Fvllm-cpu"
    )
    assert part["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]


@pytest.mark.parametrize(
    ("repository", "home"),
    [
        ("https://code.example.com/team/operator.git", "https://code.example.com/team/operator"),
        ("https://code.example.com/team/operator", "https://code.example.com/team/operator"),
        ("code.example.com:team/operator.git", None),
        ("local", None),
        ("", None),
    ],
)
def test_the_chart_names_the_repository_that_is_released(repository: str, home: str | None) -> None:
    about = (REPOSITORY / "charts" / "llmservice-operator" / "Chart.yaml").read_text()
    changed = yaml.safe_load(with_home(about, repository))
    wanted = {"home": home, "sources": [home]} if home else {}
    assert changed == {**yaml.safe_load(about), **wanted}
