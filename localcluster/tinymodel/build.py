"""Makes one variant: each kind its own way, all with CHAT's tokenizer, sentences and teaching."""

from collections.abc import Callable
from pathlib import Path

from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.teach import Lesson
from localcluster.tinymodel.variants import Adapter, Taught, Variant


def build(variant: Variant, base: Callable[[], Path], out: Path, progress: Callable[[str], None]) -> Lesson:
    """Write the variant to `out`. `base` gives CHAT's folder to those that are made from it; NotLearnedError."""
    match variant:
        case Taught():
            from localcluster.tinymodel.teach import make

            return make(variant.config, PAIRS, out, progress)
        case Adapter():
            from localcluster.tinymodel.lora import make_adapter

            return make_adapter(variant, base(), out, progress)
