"""Pictures of the command line in docs/cli, of real commands on the local cluster (`make cluster`).

python tools/scripts/terminal_pictures.py            all of them
python tools/scripts/terminal_pictures.py top chat   those

Each command runs on a pseudo terminal of its own, so that it shows what a person would see. The services are made for
it in a namespace of their own, which is deleted afterwards.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from localcluster.paths import ClusterPaths  # noqa: E402
from tests.support.cluster import Cluster  # noqa: E402
from tests.support.services import llmservice, one_of_several  # noqa: E402

NAMESPACE, NAME, BROKEN = "pictures", "tiny-chat", "too-large"
COLUMNS, ROWS = 120, 64
AT_MOST = 120.0
HEX = re.compile(r"[0-9a-f]{6}")
COLOURS = {"brown": "yellow", "brightblack": "bright_black", "brightbrown": "bright_yellow"}
"""pyte's names that rich has otherwise."""
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
"""Of Qwen2.5-7B-Instruct."""


@dataclass(frozen=True)
class Picture:
    """One file: a command, and for how long it is looked at; 0: until it ends."""

    words: Sequence[str]
    seconds: float = 0.0
    typed: Sequence[str] = ()
    """What its user types, each time that it waits."""


PICTURES: Mapping[str, Picture] = {
    "status": Picture(("status", NAME, "-n", NAMESPACE)),
    "status-broken": Picture(("status", BROKEN, "-n", NAMESPACE)),
    "top": Picture(("top", "-n", NAMESPACE), seconds=9.0),
    "chat": Picture(("chat", NAME, "-n", NAMESPACE, "--temperature", "0"), typed=("What is PagedAttention?\n", "\x04")),
    "plan-compare": Picture(("plan", "--config", "CONFIG", "--compare", "--gpu", "T4,L4,L40S,A100-80,H100")),
}


def on_a_terminal(command: Sequence[str], picture: Picture, environment: Mapping[str, str]) -> pyte.Screen:
    """What stands on a terminal of COLUMNS x ROWS when a command has ended, or after its time."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if not pid:
        os.execve(command[0], list(command), dict(environment))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    ends, left = time.monotonic() + (picture.seconds or AT_MOST), list(picture.typed)
    try:
        while time.monotonic() < ends:
            if select.select([terminal], [], [], 0.5)[0]:
                stream.feed(os.read(terminal, 65536))
            elif left and any(line.startswith(">") for line in screen.display):  # it waits for its user
                os.write(terminal, left.pop(0).encode())
    except OSError:  # EIO: the command has ended and closed the terminal
        pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return screen


def styled(screen: pyte.Screen) -> Text:
    """Its lines with their colours, without the empty ones at the end."""
    lines = []
    for row in range(ROWS):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        for style, run in groupby(cells, style_of):
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def style_of(cell: pyte.screens.Char) -> Style:
    colour = COLOURS.get(cell.fg, f"#{cell.fg}" if HEX.fullmatch(cell.fg) else cell.fg)
    return Style(color=None if colour == "default" else colour, bold=cell.bold, reverse=cell.reverse)


def draw(name: str, title: str, shown: Text) -> None:
    """An SVG without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {title}", "bold"))
    console.print(shown)
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="llmservice"), flags=re.DOTALL)
    place = ROOT / "docs" / "cli" / f"{name}.svg"
    place.write_text("\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n", encoding="utf-8")
    print(f"wrote {place.relative_to(ROOT)}")


@contextmanager
def services(cluster: Cluster) -> Iterator[None]:
    """One that serves, and one that does not fit."""
    facts = {name: CONFIG[key] for name, key in FACTS.items()}
    large = llmservice(BROKEN, model={"architecture": facts}, batching={"maxModelLen": None})
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    cluster.kubectl("create", "namespace", NAMESPACE)
    try:
        cluster.apply_all([one_of_several(NAME), large], NAMESPACE)
        cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=300)
        yield
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


FACTS = {
    "numHiddenLayers": "num_hidden_layers",
    "hiddenSize": "hidden_size",
    "numAttentionHeads": "num_attention_heads",
    "numKeyValueHeads": "num_key_value_heads",
    "vocabSize": "vocab_size",
    "intermediateSize": "intermediate_size",
    "maxPositionEmbeddings": "max_position_embeddings",
}


@contextmanager
def load(environment: Mapping[str, str]) -> Iterator[None]:
    """A few requests a second, for the figures of `top`."""
    words = ["bench", NAME, "-n", NAMESPACE, "--discipline", "continuous", "--requests", "400", "--rate", "6", "-q"]
    process = subprocess.Popen([*COMMAND, *words], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


COMMAND = (sys.executable, "-m", "llmservice_cli")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="default: all")
    chosen = parser.parse_args().names or list(PICTURES)
    paths = ClusterPaths.of_this_clone()
    connected = Cluster.connect(paths)
    config = paths.state / "pictures-config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    environment = {**connected.environment, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    environment.pop("NO_COLOR", None)
    with connected.api, services(connected), load(environment):
        for name in chosen:
            picture = PICTURES[name]
            words = [str(config) if word == "CONFIG" else word for word in picture.words]
            shot = styled(on_a_terminal([*COMMAND, *words], picture, environment))
            shown = " ".join(word for word in picture.words if word not in ("-n", NAMESPACE))
            draw(name, f"llmservice {shown.replace('CONFIG', 'config.json')}", shot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
