"""python -m release make | check"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.builds import Store
from localcluster.errors import ClusterError
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from release.check import Check
from release.make import Maker, Options, checkout, source_of, with_key
from release.plan import Part, Plan, agreed_version, plan
from release.registry import Registry
from release.signing import KEYLESS, Verifier
from release.tools import Tools, release_tools

EXAMPLES = """examples:
  make release REGISTRY=registry.example.com/llm DRY_RUN=1             what would be made
  make release REGISTRY=registry.example.com/llm KEY=cosign.key        all of it, signed (COSIGN_PASSWORD: the key's)
  make release REGISTRY=127.0.0.1:5000/llm INSECURE=1 ONLY="python operator chart" MIRROR=127.0.0.1:5000/mirror
  make release-check REGISTRY=registry.example.com/llm KEY=cosign.pub  verify what was made
"""


def parser() -> argparse.ArgumentParser:
    """The command line; the Makefile passes its variables on."""
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="python -m release", description=__doc__, epilog=EXAMPLES, formatter_class=form)
    commands = top.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="make a release", epilog=EXAMPLES, formatter_class=form)
    check = commands.add_parser("check", help="verify a release", epilog=EXAMPLES, formatter_class=form)
    for command in (make, check):
        command.add_argument("--registry", required=True, metavar="HOST/PATH", help="where images and the chart are")
        command.add_argument("--version", default="", help="must be what pyproject.toml and Chart.yaml state")
        command.add_argument("--output", type=Path, metavar="FOLDER", help="the release's files (dist/release-VERSION)")
        command.add_argument("--insecure", action="store_true", help="the registry has no TLS")
        command.add_argument(
            "--logged", action="store_true", help="signatures of a key are in the transparency log too"
        )
    make.add_argument(
        "--key", default="", help=f"cosign's private key, a KMS address, or {KEYLESS}: a CI job's identity"
    )
    make.add_argument("--only", action="append", choices=[*Part], default=[], help="this part; may be repeated")
    make.add_argument("--mirror", default="", metavar="HOST/PATH", help="base and vLLM images are looked up below it")
    make.add_argument("--keep-tags", action="store_true", help="leave the default vLLM images of the chart by tag")
    make.add_argument("--dry-run", action="store_true", help="print what would be made")
    check.add_argument("--key", default="", help="cosign's public key or a KMS address")
    check.add_argument("--identity", default="", metavar="REGEXP", help="keyless: who signed, with --issuer")
    check.add_argument("--issuer", default="", help="keyless: who vouches for the identity")
    return top


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one command; problems are printed without a traceback."""
    arguments = parser().parse_args(words)
    try:
        version = agreed_version(REPOSITORY, arguments.version)
        folder = (arguments.output or REPOSITORY / "dist" / f"release-{version}").absolute()
        arguments.version = version
        command = _make if arguments.command == "make" else _check
        return command(arguments, folder, environment, Progress())
    except ClusterError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except (subprocess.SubprocessError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command makes it anew", file=sys.stderr)
        return 130


def described(planned: Plan, folder: Path, commit: str) -> str:
    """The plan, one artifact a line."""
    lines = [f"version {planned.version} of commit {commit}"]
    if Part.PYTHON in planned.parts:
        lines.append(f"wheel, sdist and plugin of krew  {folder}")
    lines += [f"image            {planned.reference(image)}" for image in planned.images]
    if Part.CHART in planned.parts:
        lines.append(f"chart            oci://{planned.chart}")
    return "\n".join([*lines, f"SBOMs, provenance, checksums  {folder}"])


def _tools(groups: Sequence[Group], environment: Mapping[str, str], progress: Progress) -> Tools:
    """With Helm: the cluster's where that is built, else built alone."""
    has_cluster = Store(cache_root(environment, Path.home())).has(Group.CLUSTER)
    return release_tools(progress, [*groups, Group.CLUSTER if has_cluster else Group.HELM], environment)


def _make(arguments: argparse.Namespace, folder: Path, environment: Mapping[str, str], progress: Progress) -> int:
    source = source_of(REPOSITORY)
    with checkout(REPOSITORY, source, progress) as root:
        planned = plan(root, arguments.registry, arguments.version, [Part(name) for name in arguments.only])
        print(described(planned, folder, source.commit), flush=True)
        if arguments.dry_run:
            return 0
        tools = _tools([Group.RELEASE, Group.CRANE, *([Group.IMAGES] if planned.images else [])], environment, progress)
        state = REPOSITORY / ".cluster" / "release"
        options = Options(folder, state, arguments.insecure, arguments.mirror, arguments.keep_tags)
        options = with_key(options, arguments.key, tools, logged=arguments.logged)
        made = Maker(planned, source, root, options, tools, progress).make()
    for artifact in made.artifacts:
        print(f"{artifact.kind:<6} {artifact.title}")
    return 0


def _check(arguments: argparse.Namespace, folder: Path, environment: Mapping[str, str], progress: Progress) -> int:
    if bool(arguments.identity) != bool(arguments.issuer):
        raise ClusterError("--identity and --issuer belong together")
    tools = _tools([Group.RELEASE, Group.CRANE], environment, progress)
    whose = (arguments.key, arguments.identity, arguments.issuer)
    verifier = Verifier(tools, *whose, insecure=arguments.insecure, logged=arguments.logged) if any(whose) else None
    registry = arguments.registry.removeprefix("oci://").rstrip("/")
    problems = Check(folder, arguments.version, registry, Registry(tools, arguments.insecure), verifier, progress).run()
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        print(f"problems: {len(problems)}; do not install this release", file=sys.stderr)
        return 1
    signed = "signed and unchanged" if verifier else "unchanged; it has no signatures"
    print(f"the release in {folder} is {signed}")
    return 0


if __name__ == "__main__":
    # A CI job that is cancelled gets SIGTERM: servers that this process started end with it either way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], os.environ))
