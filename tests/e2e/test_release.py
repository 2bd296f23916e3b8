"""A release is made into a registry, verified, tampered with, installed from it, and upgraded from the one before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby, pairwise
from pathlib import Path

import pytest

from localcluster.install import CPU_IMAGE
from localcluster.paths import REPOSITORY
from localcluster.programs import Group
from localcluster.progress import Progress
from release.make import Maker, Options, checkout
from release.plan import Part, Source, plan
from release.record import RECORD, Record, sha256
from release.references import Reference
from release.tools import release_tools
from tests.e2e._chart import PREVIOUS_COMMIT
from tests.e2e.conftest import make_namespace, own_namespace
from tests.support import rolling
from tests.support.audit import writes_since
from tests.support.cluster import JSON, Cluster, CommandFailed, eventually, is_ready
from tests.support.oci_registry import OciRegistry, oci_registry
from tests.support.operator import scale_operator
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.full

PASSWORD = "of-the-test's-key"
NAMESPACE = "e2e-release"


@dataclass(frozen=True)
class Release:
    """What `make release` made of this commit: without the CPU image, whose 5 GB show nothing more."""

    folder: Path
    registry: OciRegistry
    key: Path

    @property
    def record(self) -> Record:
        return Record.parse((self.folder / RECORD).read_text())

    def reference(self, kind: str) -> Reference:
        (found,) = (a.reference for a in self.record.artifacts if a.kind == kind)
        return Reference.parse(found)

    def by_tag(self, kind: str) -> str:
        reference = self.reference(kind)
        return f"{reference.name}:{reference.tag}"

    def check(self, folder: Path | None = None, key: Path | None = None) -> str:
        """What `make release-check` prints; empty when it finds nothing."""
        public = (key or self.key).with_suffix(".pub")
        done = run_release("check", self.registry, folder or self.folder, "--key", str(public))
        assert (done.returncode == 0) == ("problems" not in done.stderr), done.stderr
        return "" if done.returncode == 0 else done.stderr


def run_release(command: str, registry: OciRegistry, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ("--registry", f"{registry.host}/llm", "--insecure", "--output", str(folder), *more)
    environment = {**os.environ, "COSIGN_PASSWORD": PASSWORD}
    return subprocess.run(
        (sys.executable, "-m", "release", command, *words),
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def make(registry: OciRegistry, folder: Path, key: Path) -> Release:
    parts = [word for part in ("python", "operator", "chart") for word in ("--only", part)]
    done = run_release("make", registry, folder, "--key", str(key), "--mirror", registry.mirror, *parts)
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    return Release(folder, registry, key)


def new_key(registry: OciRegistry, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / "cosign"
    more = {"COSIGN_PASSWORD": PASSWORD}
    registry.tools.run("cosign", "generate-key-pair", "--output-key-prefix", str(prefix), more=more)
    return prefix.with_suffix(".key")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("release")
    (folder / "registry").mkdir()
    with oci_registry(folder / "registry", Group.RELEASE) as registry:
        registry.with_upstream_images()
        yield make(registry, folder / "made", new_key(registry, folder / "key"))


def test_a_release_holds_what_it_claims(released: Release) -> None:
    assert released.check() == ""


def test_the_sboms_list_what_was_installed(released: Release) -> None:
    kinds = {artifact.kind: artifact for artifact in released.record.artifacts}
    names = {
        kind: {part["name"] for part in json.loads((released.folder / artifact.sbom).read_text())["components"]}
        for kind, artifact in kinds.items()
    }
    assert {"kopf", "obstore", "python3", "libc6"} <= names["image"]
    assert {"kopf", "llmservice-operator"} <= names["wheel"]
    assert names["chart"] == {released.reference("image").name, "docker.io/vllm/vllm-openai"}


def test_the_same_commit_makes_the_same_release(released: Release, tmp_path: Path) -> None:
    again = make(released.registry, tmp_path / "again", released.key)
    assert again.record == released.record
    for name in ("*.whl", "*.tar.gz", "*.tgz", "sbom/*.json", "provenance/*.json"):
        for path in released.folder.glob(name):
            assert sha256(again.folder / path.relative_to(released.folder)) == sha256(path), path.name


@contextmanager
def moved_tag(released: Release, kind: str) -> Iterator[None]:
    """The tag names another image for a while."""
    tag, stated = released.by_tag(kind), released.reference(kind)
    released.registry.crane("copy", f"{released.registry.mirror}/vllm/vllm-openai:v0.32.0", tag)
    try:
        yield
    finally:
        released.registry.crane("copy", stated.pinned, tag)


@contextmanager
def changed_blob(released: Release, kind: str) -> Iterator[None]:
    """The registry's storage has one byte more of the artifact's last layer."""
    manifest = json.loads(released.registry.crane("manifest", released.reference(kind).pinned))
    blob = released.registry.blob(manifest["layers"][-1]["digest"])
    before = blob.read_bytes()
    try:
        blob.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        yield
    finally:
        blob.write_bytes(before)


TAMPERINGS = [
    pytest.param(partial(moved_tag, kind="image"), "error: tag of", id="the image's tag"),
    pytest.param(partial(moved_tag, kind="chart"), "error: tag of", id="the chart's tag"),
    pytest.param(partial(changed_blob, kind="image"), "error: content of", id="a layer of the image"),
    pytest.param(partial(changed_blob, kind="chart"), "error: content of", id="the chart's archive in the registry"),
]


@pytest.mark.parametrize(("tampering", "message"), TAMPERINGS)
def test_a_registry_that_was_tampered_with_is_found_out(
    released: Release, tampering: Callable[[Release], AbstractContextManager[None]], message: str
) -> None:
    with tampering(released):
        assert message in released.check()
    assert released.check() == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sbom/llmservice-operator.cdx.json", "llmservice-operator.cdx.json differs from its checksum"),
        ("SHA256SUMS", "error: signature of SHA256SUMS"),
        ("release.json", "release.json differs from its checksum"),
    ],
)
def test_a_file_that_was_changed_is_found_out(released: Release, tmp_path: Path, name: str, message: str) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(released.folder, folder)
    path = folder / name
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    assert message in released.check(folder)


def test_another_key_verifies_nothing(released: Release, tmp_path: Path) -> None:
    assert "error: signature of SHA256SUMS" in released.check(key=new_key(released.registry, tmp_path))


def test_an_attestation_that_somebody_else_signed_counts_for_nothing(released: Release, tmp_path: Path) -> None:
    """A second SBOM in the registry, by another key: the release's own is still the one that is found."""
    forged = tmp_path / "forged.json"
    forged.write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": []}')
    (tmp_path / "config.json").write_text(
        '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", "rekorTlogConfig": {}, "tsaConfig": {}}'
    )
    key, config = new_key(released.registry, tmp_path / "key"), str(tmp_path / "config.json")
    released.registry.tools.run(
        "cosign", "attest", "--yes", "--key", str(key), "--signing-config", config, "--type", "cyclonedx",
        "--predicate", str(forged), released.reference("image").pinned, more={"COSIGN_PASSWORD": PASSWORD},
    )  # fmt: skip
    assert released.check() == ""


@pytest.fixture(scope="module")
def previous(released: Release, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The chart of the release before in the registry, and with it its operator's image: made of its commit."""
    known = subprocess.run(
        ("git", "-C", str(REPOSITORY), "log", "-1", "--format=%ct", PREVIOUS_COMMIT),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if known.returncode != 0:
        pytest.skip(f"the commit of the release before is not in this clone: {known.stderr.strip()}")
    source, progress = Source(PREVIOUS_COMMIT, int(known.stdout), ""), Progress()
    folder = tmp_path_factory.mktemp("previous")
    options = Options(folder / "made", folder / "state", insecure=True, mirror=released.registry.mirror)
    tools = release_tools(progress, [Group.RELEASE, Group.CRANE, Group.IMAGES, Group.CLUSTER])
    with checkout(REPOSITORY, source, progress) as root:
        planned = plan(root, f"{released.registry.host}/before", only=(Part.OPERATOR, Part.CHART))
        record = Maker(planned, source, root, options, tools, progress).make()
    (found,) = (artifact.reference for artifact in record.artifacts if artifact.kind == "chart")
    return Reference.parse(found)


@pytest.fixture
def namespace_of_the_release(cluster: Cluster) -> Iterator[str]:
    """The cluster-wide release stands still meanwhile, so that who acts is plain."""
    make_namespace(cluster, NAMESPACE)
    with scale_operator(cluster, 0):
        yield NAMESPACE
        cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "120s")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", KUBECTL_TIMEOUT)


RELEASE = "from-registry"
OF_ONE_NAMESPACE = ("--set", f"watch.namespaces={{{NAMESPACE}}}", "--set", f"services.defaultCpuImage={CPU_IMAGE}")


def helm(cluster: Cluster, verb: str, chart: Reference, *more: str) -> None:
    """Install or upgrade the release from the registry, as docs/releases.md does, and wait for its operator."""
    place = (f"oci://{chart.name}", "--version", chart.tag, "--plain-http", "-n", NAMESPACE)
    cluster.helm(verb, RELEASE, *place, "--wait", "--timeout", "180s", *more)


def operator_image(cluster: Cluster) -> str:
    pods = cluster.list("pods", NAMESPACE, f"app.kubernetes.io/instance={RELEASE}")
    (pod,) = (pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return str(pod["spec"]["containers"][0]["image"])


def supervisor_images(pod: JSON) -> set[str]:
    return {container["image"] for container in pod["spec"]["initContainers"]}


def test_the_chart_in_the_registry_installs(cluster: Cluster, released: Release, namespace_of_the_release: str) -> None:
    helm(cluster, "install", released.reference("chart"), *OF_ONE_NAMESPACE)
    image = released.reference("image").pinned
    assert operator_image(cluster) == image
    cluster.apply(stand_in("served"), NAMESPACE)
    cluster.wait_condition(NAMESPACE, "served", "Ready", "True", timeout=120)
    (pod,) = rolling.pods(cluster, NAMESPACE, "served").values()
    assert supervisor_images(pod) == {image}


def test_an_upgrade_from_the_release_before_and_back(
    cluster: Cluster, released: Release, previous: Reference, namespace_of_the_release: str
) -> None:
    """Of chart and operator's image: no model pod is replaced on either way, and new ones are of who acts."""
    # Who shares the cluster keeps today's CRD: what becomes of it is in test_chart_lifecycle.py.
    helm(cluster, "install", previous, *OF_ONE_NAMESPACE, "--set", "crds.install=false")
    old_image = operator_image(cluster)
    assert old_image.startswith(f"{released.registry.host}/before/")
    cluster.apply(stand_in("served"), NAMESPACE)
    cluster.wait_condition(NAMESPACE, "served", "Ready", "True", timeout=120)
    ((serving, pod),) = rolling.pods(cluster, NAMESPACE, "served").items()
    assert supervisor_images(pod) == {old_image}

    helm(cluster, "upgrade", released.reference("chart"), "--reset-then-reuse-values")
    new_image = released.reference("image").pinned
    assert operator_image(cluster) == new_image
    cluster.apply(stand_in("new"), NAMESPACE)
    cluster.wait_condition(NAMESPACE, "new", "Ready", "True", timeout=120)
    ((added, pod),) = rolling.pods(cluster, NAMESPACE, "new").items()
    assert supervisor_images(pod) == {new_image}
    cluster.wait_condition(NAMESPACE, "served", "Ready", "True", timeout=60)
    assert list(rolling.pods(cluster, NAMESPACE, "served")) == [serving], "an upgrade restarts no model"

    cluster.helm("rollback", RELEASE, "1", "-n", NAMESPACE, "--wait", "--timeout", "180s")
    assert operator_image(cluster) == old_image
    cluster.kubectl("scale", "llms/served", "--replicas=2", "-n", NAMESPACE)
    eventually("a replica by the operator of before", lambda: _ready(cluster, "served") == 2, 120)
    assert serving in rolling.pods(cluster, NAMESPACE, "served")
    assert list(rolling.pods(cluster, NAMESPACE, "new")) == [added], "a rollback restarts none either"


def _ready(cluster: Cluster, name: str) -> int:
    return sum(map(is_ready, rolling.pods(cluster, NAMESPACE, name).values()))


FULL_NAME = f"{RELEASE}-llmservice-operator"
SHARDED = tuple(
    next(name for name in (f"{NAMESPACE}-{number}" for number in count()) if zlib.crc32(name.encode()) % 2 == shard)
    for shard in range(2)
)
"""A namespace in each of two shards, as the release before divides them."""
EDIT_EVERY = 0.5


def holders(cluster: Cluster) -> Mapping[str, str]:
    """The pod that holds each Lease of the release before."""
    found = {}
    for name in (FULL_NAME, f"{FULL_NAME}-1"):
        lease: JSON = cluster.get("leases", NAMESPACE, name) or {}
        found[name] = (lease.get("spec", {}).get("holderIdentity") or "").partition("_")[0]
    return found


@contextmanager
def edited(cluster: Cluster) -> Iterator[None]:
    """The services are edited all the time, so that whoever may write has something to write."""
    stopping, numbers = threading.Event(), count(8)

    def edit() -> None:
        with Cluster.connect(cluster.paths).api as api:
            own = Cluster(cluster.paths, api)
            while not stopping.wait(EDIT_EVERY):
                number = next(numbers)
                for namespace in SHARDED:
                    own.patch("llmservices", namespace, "served", {"spec": {"batching": {"maxNumSeqs": number}}})

    thread = threading.Thread(target=edit)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def is_done(cluster: Cluster, namespace: str) -> bool:
    """Whether the Deployment has what the spec says."""
    wanted = cluster.must_get("llmservices", namespace, "served")["spec"]["batching"]["maxNumSeqs"]
    deployment = cluster.get("deployments", namespace, "served")
    if deployment is None:
        return False
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*server.get("command", ()), *server.get("args", ())]
    return ("--max-num-seqs", str(wanted)) in pairwise(words)


def test_an_upgrade_from_two_shards_has_no_object_written_by_both(
    cluster: Cluster, released: Release, previous: Reference, namespace_of_the_release: str
) -> None:
    """The value of before is refused with what to do; with 1 the new process waits until both of before have ended."""
    with own_namespace(cluster, SHARDED[0]), own_namespace(cluster, SHARDED[1]):
        values = ("crds.install=false", "replicas=2", "operator.shards=2", f"watch.namespaces={{{','.join(SHARDED)}}}")
        given = [word for value in values for word in ("--set", value)]
        helm(cluster, "install", previous, *given, "--set", f"services.defaultCpuImage={CPU_IMAGE}")
        eventually("a Lease for each of two pods", lambda: len({*holders(cluster).values()} - {""}) == 2, 60)
        before = {*holders(cluster).values()}
        moment = time.time()
        for namespace in SHARDED:
            cluster.apply(idle("served", fitPolicy="Ignore", batching={"maxNumSeqs": 4}), namespace)
        for namespace in SHARDED:
            eventually("its Deployment", partial(is_done, cluster, namespace), 30)

        new = released.reference("chart")
        with edited(cluster):
            with pytest.raises(CommandFailed, match=r"watch\.namespaces"):
                helm(cluster, "upgrade", new, "--reset-then-reuse-values")
            assert {*holders(cluster).values()} == before, "a refused upgrade changes nothing"
            helm(cluster, "upgrade", new, "--reset-then-reuse-values", "--set", "operator.shards=1")
            eventually("the new process", lambda: holders(cluster)[FULL_NAME] not in {*before, ""}, 60)
            time.sleep(20)  # the pause, and some edits after it
        for namespace in SHARDED:
            eventually("the last edit", partial(is_done, cluster, namespace), 60)

        user = f"system:serviceaccount:{NAMESPACE}:{FULL_NAME}"
        written = sorted(writes_since(cluster, moment, user), key=lambda request: request.at)
        for namespace in SHARDED:
            requests = [request for request in written if request.namespace == namespace]
            pods = [pod for pod, _ in groupby(request.pod for request in requests)]
            assert len(pods) == len({*pods}) > 1, f"{namespace}: a pod wrote after the one that came after it: {pods}"
            assert pods[0] in before
            assert pods[-1] == holders(cluster)[FULL_NAME]
            for one, after in pairwise(requests):
                assert one.pod == after.pod or one.until <= after.at, f"{namespace}: {one} and {after}"
        cluster.kubectl("delete", "lease", f"{FULL_NAME}-1", "-n", NAMESPACE)
