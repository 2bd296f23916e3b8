"""All manifests with one wrong thing each."""

from tests.contract.bad_models import cache, engine, model, names
from tests.contract.bad_pods import arguments, pods
from tests.contract.bad_structure import fractions, structural
from tests.contract.bad_techniques import between, within
from tests.contract.manifests import Bad

BAD: tuple[Bad, ...] = (
    *structural(),
    *fractions(),
    *names(),
    *model(),
    *cache(),
    *engine(),
    *within(),
    *between(),
    *arguments(),
    *pods(),
)
