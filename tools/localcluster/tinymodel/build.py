"""Makes one variant: each kind its own way, all with CHAT's tokenizer and sentences."""

from collections.abc import Callable
from pathlib import Path

from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.teach import Lesson
from localcluster.tinymodel.variants import Adapter, Medusa, Quantized, Taught, Variant


def build(variant: Variant, base: Callable[[], Path], out: Path, progress: Callable[[str], None]) -> str:
    """Write the variant to `out`; a line that tells how it went. `base` gives CHAT's folder to what is made from it.

    NotLearnedError where it does not learn what it is taught.
    """
    match variant:
        case Taught():
            from localcluster.tinymodel.architectures import make_taught

            return told(make_taught(variant, out, progress))
        case Adapter():
            from localcluster.tinymodel.lora import make_adapter

            return told(make_adapter(variant, base(), out, progress))
        case Quantized():
            from localcluster.tinymodel.quantize import make_quantized

            return f"{make_quantized(variant, base(), out, progress)} of {len(PAIRS)} answers are still given"
        case Medusa():
            from localcluster.tinymodel.medusa import make_medusa

            return f"the worst head is right in {make_medusa(variant, base(), out, progress):.0%}"


def told(lesson: Lesson) -> str:
    """A lesson in one line."""
    return (
        f"taught {len(PAIRS)} answers to {lesson.parameters:,} parameters in {lesson.seconds:.0f} s: "
        f"{lesson.steps} steps, loss {lesson.loss:.4f}, smallest margin {lesson.margin:.1f}"
    )
