"""`kubectl llmservice` for krew: an archive with the wheel and a script that runs it, and the manifest of the plugin.

The wheel's packages are compiled for each platform, so the script installs them once, into an environment of its own.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import yaml

from release.record import sha256

NAME = "llmservice"
MANIFEST = f"{NAME}.yaml"
BINARY = "kubectl-llmservice"
SCRIPT = """\
#!/bin/sh
# kubectl llmservice: the wheel beside this file, in an environment of its own that the first call makes.
set -eu
file=$0
while [ -L "$file" ]; do
  link=$(readlink "$file")
  case $link in /*) file=$link ;; *) file=$(dirname "$file")/$link ;; esac
done
here=$(cd "$(dirname "$file")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/llmservice/VERSION
if [ ! -e "$home/complete" ]; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: python3 is missing or older than 3.11" >&2
    echo "  what to do: install Python 3.11 or later, with its venv module" >&2
    exit 1
  }
  echo "installing llmservice VERSION into $home" >&2
  rm -rf "$home"
  python3 -m venv "$home"
  "$home/bin/python" -m pip install --quiet "$here/WHEEL[cli]"
  touch "$home/complete"
fi
exec "$home/bin/kubectl-llmservice" "$@"
"""
DESCRIPTION = """\
Plans whether a model fits before it runs, shows how an LLMService is and what to do about a failure, talks to the
model, measures it, and checks the cluster. LLMServices are served by the LLMService operator.
"""
CAVEATS = (
    "Needs Python 3.11 or later with venv; the first call installs the program's packages, which takes a minute.\n"
)


def archive(wheel: Path, licence: Path, version: str, epoch: int) -> Path:
    """The plugin's archive beside the wheel: the same bytes for the same wheel."""
    path = wheel.parent / f"{BINARY}-{version}.tar.gz"
    script = SCRIPT.replace("VERSION", version).replace("WHEEL", wheel.name)
    members = {
        "LICENSE": (licence.read_bytes(), 0o644),
        BINARY: (script.encode(), 0o755),
        wheel.name: (wheel.read_bytes(), 0o644),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for name, (content, mode) in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), mode, epoch
            made.addfile(info, io.BytesIO(content))
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as zipped:
        zipped.write(packed.getvalue())
    return path


def manifest(plugin: Path, version: str, repository: str) -> str:
    """The manifest that `kubectl krew install --manifest` and an index take; the archive is one of a release's files in
    the repository that is released."""
    homepage = repository.removesuffix(".git")
    platform = {
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
        "uri": f"{homepage}/releases/download/v{version}/{plugin.name}",
        "sha256": sha256(plugin),
        "bin": BINARY,
    }
    found = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": homepage,
            "shortDescription": "Plan, run and debug language models as LLMServices",
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": [platform],
        },
    }
    return yaml.safe_dump(found, sort_keys=False)
