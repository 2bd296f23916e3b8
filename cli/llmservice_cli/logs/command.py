"""`llmservice logs`: what the pods of a service print, or why there is nothing to print."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from zlib import crc32

from kubeloop.errors import KubeError
from kubeloop.resources import POD
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import selector_text
from llmservice_api.reasons import Reason
from llmservice_runtime.bounded_json import clean
from llmservice_runtime.redact import Redactor

from llmservice_cli.api import Json, versions
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.documents import in_a_line, tell
from llmservice_cli.errors import CliError, ExitCode, WrongUsage, say
from llmservice_cli.logs import Options
from llmservice_cli.masking import redactor_of
from llmservice_cli.services import service
from llmservice_cli.terminal import Row, show
from llmservice_cli.wait.command import assess

from .reading import SUPERVISOR, Follower, Line, Origin, Reader, chosen, merged, origins

# How lines of a log are printed.

VERSION = 1
_PODS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta")
_LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
_SOURCE = len(SUPERVISOR)


def write(lines: Sequence[Line], redactor: Redactor, options: Options) -> None:
    """On standard output, at once."""
    if options.output == "json":
        for line in lines:
            tell(in_a_line(_document(line, redactor)))
    elif lines:
        show(_row(line, redactor, has_time=options.timestamps) for line in lines)


def _row(line: Line, redactor: Redactor, *, has_time: bool) -> Row:
    return (
        *(((f"{line.time}  ", "dim"),) if has_time else ()),
        (f"{line.origin.end} ", _PODS[crc32(line.origin.pod.encode()) % len(_PODS)]),
        (f"{line.source:<{_SOURCE}}  ", "bold" if line.source == SUPERVISOR else "dim"),
        (redactor.clean(line.text), _LEVELS.get(line.level, "")),
    )


def _document(line: Line, redactor: Redactor) -> dict[str, object]:
    return {
        "version": VERSION,
        "time": line.time,
        "pod": line.origin.pod,
        "container": line.origin.container,
        "source": line.source,
        "level": line.level,
        "text": redactor.clean(line.text),
    }


DEFAULT_TAIL = 100
BATCH = 200
"""Lines that are printed together."""
MOST_LOGS = 64
"""Connections that are open at once."""


async def run(options: Options) -> ExitCode:
    """Print them. CliError where there is no line to print."""
    if options.follow and options.previous:
        raise WrongUsage("--previous is a log that is over, and cannot be followed", "leave out --follow or --previous")
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name)
        if options.follow:
            return await _follow(connection, options, found)
        return await _print(connection, options, found)


async def _print(connection: Connection, options: Options, found: Json) -> ExitCode:
    everyone = await connection.kube.list_all(POD, connection.namespace, label_selector=selector_text(options.name))
    pods = _named(everyone, options)
    redactor = redactor_of(found, *pods)
    wanted = origins(pods, options.container, previous=options.previous)
    if not wanted:
        raise _nothing(found, has_pods=bool(pods), previous=options.previous)
    if wanted[MOST_LOGS:]:
        _note(f"of {len(wanted)} logs the first {MOST_LOGS} are shown; choose with --pod or --container")
    reader = Reader(connection.kube, connection.namespace)
    printed, unread = await _copied(reader, wanted[:MOST_LOGS], options, redactor)
    for origin, why in unread.items():
        _note(f"{origin.pod}, {origin.container} is not readable: {redactor.clean(why)}")
    if not printed and unread:
        raise _nothing(found, has_pods=True, previous=options.previous)
    if not printed:
        again = not options.previous and origins(pods, options.container, previous=True)
        more = ", or add --previous for the run before the last restart" if again else ""
        remedy = f"leave out --source, --level or --since, or raise --tail{more}"
        raise CliError("no line is left by the filters", remedy)
    return ExitCode.DONE


async def _copied(
    reader: Reader, wanted: Sequence[Origin], options: Options, redactor: Redactor
) -> tuple[int, dict[Origin, str]]:
    """How many lines were printed, and why logs could not be read."""
    unread = dict[Origin, str]()
    params = {**_window(options), "previous": str(options.previous).lower()}
    streams = {origin: reader.lines(origin, params, follow=False) for origin in wanted}
    printed, batch = 0, list[Line]()
    async with aclosing(_filtered(merged(streams, unread.__setitem__), options)) as lines:
        async for line in lines:
            batch.append(line)
            printed += 1
            if len(batch) >= BATCH:
                write(batch, redactor, options)
                batch.clear()
    write(batch, redactor, options)
    return printed, unread


async def _follow(connection: Connection, options: Options, found: Json) -> ExitCode:
    """Until Ctrl-C, which is the usual end and no error."""

    def tell() -> None:
        _note(str(_nothing(found, has_pods=False, previous=False)))

    kube, namespace = connection.kube, connection.namespace
    pods = versions(kube, POD, namespace, {"labelSelector": selector_text(options.name)}, _note)
    refused: list[KubeError] = []
    is_read = True
    try:
        async with asyncio.TaskGroup() as tasks:
            window = _window(options)
            follower = Follower(
                Reader(kube, namespace), options.pod, options.rank, options.container, window, note=_note, none=tell
            )
            tasks.create_task(follower.run(pods))
            tasks.create_task(_copy(follower, options, found))
    except* KubeError as group:
        refused += _leaves(group)
    except* BrokenPipeError:
        is_read = False
    except* asyncio.CancelledError:
        pass  # Ctrl-C
    if refused:
        raise refused[0]
    if not is_read:
        raise BrokenPipeError  # the reader (head, less) has seen enough
    return ExitCode.DONE


def _leaves(group: BaseExceptionGroup[KubeError]) -> list[KubeError]:
    found = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found


async def _copy(follower: Follower, options: Options, found: Json) -> None:
    while True:
        batch = [await follower.queue.get()]
        while not follower.queue.empty() and len(batch) < BATCH:
            batch.append(follower.queue.get_nowait())
        kept = [line for line in batch if _is_wanted(line, options)]
        write(kept, redactor_of(found, *follower.pods.values()), options)
        sys.stdout.flush()


def _named(pods: list[Json], options: Options) -> list[Json]:
    found = chosen(pods, options.pod, options.rank)
    if pods and not found:
        names = ", ".join(pod["metadata"]["name"] for pod in chosen(pods, None, None))
        ranked = "" if options.rank is None else f" of rank {options.rank}"
        what = "pod" if options.pod is None else f"pod {options.pod!r}"
        raise CliError(f"{options.name} has no {what}{ranked}", f"choose one of: {names}")
    return found


def _nothing(found: Json, *, has_pods: bool, previous: bool) -> CliError:
    """Why there is no log, by the service's own conditions."""
    name = found["metadata"]["name"]
    if previous and has_pods:
        return CliError(f"no container of {name} has ended and started again", "leave out --previous")
    seen = assess(found, ConditionType.READY, was_there=True)
    what = f"no container of {name} has a log that can be read" if has_pods else f"{name} has no pod"
    remedy = seen.remedy or (Reason(seen.reason).remedy if seen.reason in set(Reason) else "")
    return CliError(clean(f"{what}: {seen}"), clean(remedy) or f"see llmservice status {name}")


def _window(options: Options) -> dict[str, str]:
    """What is read of a log that is longer, as the API server takes it."""
    found = {} if options.since is None else {"sinceSeconds": str(max(1, round(options.since)))}
    tail = DEFAULT_TAIL if options.tail is None and options.since is None else options.tail
    return found if tail is None else {**found, "tailLines": str(tail)}


async def _filtered(lines: AsyncGenerator[Line], options: Options) -> AsyncGenerator[Line]:
    async with aclosing(lines):
        async for line in lines:
            if _is_wanted(line, options):
                yield line


def _is_wanted(line: Line, options: Options) -> bool:
    is_of_source = options.source in ("all", line.source)
    return is_of_source and (options.level is None or line.is_at_least(options.level.upper()))


def _note(text: str) -> None:
    say(f"note: {text}")
