"""`llmservice rollback`: sets spec.rollout.pinnedRevision, or takes it away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmservice_api.constants import LLMSERVICE

from llmservice_cli.api import FIELD_MANAGER, Json
from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, WrongUsage
from llmservice_cli.revisions import Revision, pinned_of, recorded
from llmservice_cli.rollback import Options
from llmservice_cli.services import rollout_of, service
from llmservice_cli.wait.command import Wish, tell, until_known

# What tools that apply from Git write onto an object.
GIT_SIGNS = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
)


async def run(options: Options) -> ExitCode:
    """One patch, after it is known that it can be carried out."""
    if options.undo and options.to is not None:
        raise WrongUsage("--undo removes the pin, and --to sets one", "give one of them")
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name)
        revisions = () if options.undo else await recorded(connection.kube, connection.namespace, options.name)
        wanted = None if options.undo else choose(revisions, found, options.to)
        lacks = next((each.lacks(found) for each in revisions if each.label == wanted), ())
        is_change = wanted != pinned_of(found)
        if is_change and not options.dry_run:
            patch = {"spec": {"rollout": {"pinnedRevision": wanted}}}
            await connection.kube.merge(LLMSERVICE, connection.namespace, options.name, patch)
        show(
            options.output,
            lambda: report(found, wanted, lacks, is_change=is_change, is_dry_run=options.dry_run),
            lambda: document(found, wanted, is_change=is_change, is_dry_run=options.dry_run),
        )
        if not options.wait or options.dry_run:
            return ExitCode.DONE
        wish = Wish(connection.namespace, options.name, timeout=options.timeout)
        answer = await until_known(connection, wish)
    return tell(wish, answer, is_beside=options.output != "table")


def choose(revisions: Sequence[Revision], found: Json, wanted: str | None) -> str:
    """The label of the revision to return to; CliError where there is none."""
    name = found["metadata"]["name"]
    if wanted is not None:
        for revision in revisions:
            if wanted in (revision.label, str(revision.number)):
                return revision.label
        there = ", ".join(f"{each.label} ({each.number})" for each in revisions)
        raise CliError(
            f"{name} has no recorded revision {wanted!r}",
            f"choose one of: {there}" if there else "nothing is recorded yet: wait until the service is accepted",
        )
    rollout = rollout_of(found)
    now, stable = rollout.get("revision"), rollout.get("stableRevision")
    labels = [each.label for each in revisions]
    if stable != now and stable in labels:
        return str(stable)
    earlier = labels[labels.index(now) + 1 :] if now in labels else []
    # One that failed is nothing to return to.
    earlier = [label for label in earlier if label != rollout.get("failedRevision")]
    if earlier:
        return earlier[0]
    others = "see what there is: llmservice history, and name one with --to"
    none = f"correct the spec where it is kept, or: kubectl edit llms {name} -n {found['metadata']['namespace']}"
    raise CliError(
        f"no revision of {name} before {now or 'the current one'} is recorded",
        others if set(labels) - {now} else none,
    )


def report(
    found: Json, wanted: str | None, lacks: Sequence[str], *, is_change: bool, is_dry_run: bool
) -> Iterator[str]:
    """What was done, and how to see what comes of it. `lacks`: fields that protect, and that the revision has not."""
    name = found["metadata"]["name"]
    words = f"{name} -n {found['metadata']['namespace']}"
    if not is_change:
        yield f"{name}: {f'revision {wanted} is pinned already' if wanted else 'nothing is pinned'}"
        return
    if is_dry_run:
        yield f"{name}: would {f'pin revision {wanted}' if wanted else 'remove the pin'}; nothing is changed"
        yield from _protected(lacks)
        return
    if wanted is None:
        yield f"{name}: the pin is removed; what the spec says is rolled out"
    else:
        yield f"{name}: revision {wanted} is pinned (spec.rollout.pinnedRevision)"
        yield from _protected(lacks)
        yield f"  other changes of what needs a restart wait until: llmservice rollback {words} --undo"
    yield f"  see: llmservice status {words}"
    yield from remarks(found)


def _protected(lacks: Sequence[str]) -> Iterator[str]:
    if lacks:
        fields = ", ".join(f"spec.{field}" for field in lacks)
        yield f"  it was made without {fields}: it runs with today's, as a revision of its own"


def document(found: Json, wanted: str | None, *, is_change: bool, is_dry_run: bool) -> Json:
    """Names are only ever added."""
    about = {name: found["metadata"][name] for name in ("name", "namespace")}
    return {"version": 1, **about, "pinnedRevision": wanted, "changed": is_change and not is_dry_run}


def remarks(found: Json) -> Iterator[str]:
    """Who else may set the field."""
    metadata = found["metadata"]
    for entry in metadata.get("managedFields") or ():
        rollout = (entry.get("fieldsV1") or {}).get("f:spec", {}).get("f:rollout", {})
        if "f:pinnedRevision" in rollout and entry.get("manager") != FIELD_MANAGER:
            yield f"  note: {entry['manager']} has set the field before and may set it again: change it there too"
            return
    written = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    if any(sign in written for sign in GIT_SIGNS):
        yield "  note: this object is applied from Git: have spec.rollout.pinnedRevision there too, or it may be lost"
