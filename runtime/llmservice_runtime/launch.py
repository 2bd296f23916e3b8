"""python -m llmservice_runtime.launch MODULE [RECORD]: import a module, then run it as vLLM's own process.

The arguments of MODULE arrive as a JSON list on standard input, once the supervisor has them: the import of vLLM takes
seconds, and runs during the preflight and the fetch.

vLLM starts an engine process, which starts workers, with multiprocessing's method "spawn": each is a new interpreter
that imports vLLM for seconds, one after the other. Here interpreters are started in advance as "spawn" would, import,
and wait. When vLLM starts a process, a waiting interpreter that inherited the same is used, else a new one is started.
Both continue in multiprocessing's own `spawn_main`, as a child of their parent. What a process inherits must be equal
(`Inherited`), since native libraries read the environment when they are loaded. The rest (arguments, pipes, the pickled
process) is sent over a socket.

RECORD is a folder with the environments of an earlier start of the same command line, image and device, as differences
from the parents' environments, one file per process. They are used only if vLLM then requests exactly the same, so that
a wrong record costs only time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import re
import resource
import runpy
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn, util
from pathlib import Path
from typing import Any, ClassVar

from llmservice_vllm.modules import ENGINE_MODULES, WORKERS

from llmservice_runtime import atomic_file
from llmservice_runtime.bounded_json import Reader, Refused, parse, read
from llmservice_runtime.credentials import is_credential
from llmservice_runtime.redact import log

MAX_PROCESSES = 64
"""Recorded children of one process; a node has at most 16 GPUs."""
_MAX_VARIABLES = 128
_MAX_TEXT = 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True)
class Change:
    """The difference between two environments."""

    set: Mapping[str, str]
    unset: tuple[str, ...] = ()

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Change:
        """The change from `before` to `after`, without credentials: the record is a file."""
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        return cls(
            {name: value for name, value in sorted(changed.items()) if not is_credential(name)},
            tuple(sorted(before.keys() - after.keys())),
        )

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in environment.items() if name not in self.unset}
        return kept | dict(self.set)

    @classmethod
    def from_document(cls, document: object) -> Change:
        """The inverse of `to_document`; Refused for invalid documents."""
        given = Reader(document, "environment")
        values: dict[str, str] = {}
        for item in given.items("set", _MAX_VARIABLES):
            variable = Reader(item, "set")
            values[_name(variable.word("name"))] = variable.word("value", _MAX_TEXT)
        return cls(values, tuple(map(_name, given.words("unset", _MAX_VARIABLES, _MAX_TEXT))))

    def to_document(self) -> dict[str, Any]:
        return {"set": [{"name": name, "value": self.set[name]} for name in self.set], "unset": list(self.unset)}


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Refused("set and unset hold names of environment variables")
    return text


def recorded_children(folder: Path, parent: str) -> dict[int, Change]:
    """Recorded children of a process by their order; empty without a record. Damaged files are skipped."""
    found: dict[int, Change] = {}
    for number in range(MAX_PROCESSES):
        try:
            found[number] = Change.from_document(read(_record_file(folder, parent, number)))
        except FileNotFoundError:
            break
        except (Refused, OSError):
            continue
    return found


def record_child(folder: Path, parent: str, number: int, change: Change) -> None:
    """Write the file of a child. OSError."""
    if number < MAX_PROCESSES:
        atomic_file.write_json(_record_file(folder, parent, number), change.to_document())


def name_of(parent: str, number: int) -> str:
    """The name of a process, by the order in which it and its parents were started: "0-1" is the second child of the
    first."""
    return f"{parent}-{number}" if parent else str(number)


def _record_file(folder: Path, parent: str, number: int) -> Path:
    return folder / f"{name_of(parent, number)}.json"


WAIT_SECONDS = 900.0
"""Seconds after which an unused process ends, to free its memory."""
_CODE = "from llmservice_runtime.launch import become; become()"
# multiprocessing's own marker of processes that it started.
_MARK = "--multiprocessing-fork"
_COUNT_BYTES = 4


@dataclass(frozen=True)
class Inherited:
    """What a process inherits at its start, and native libraries may read when they are loaded."""

    environment: Mapping[str, str]
    directory: str
    processors: frozenset[int]

    @classmethod
    def now(cls) -> Inherited:
        """What a process started now would inherit."""
        return cls(dict(os.environ), os.getcwd(), frozenset(os.sched_getaffinity(0)))  # noqa: PTH109


class Prepared:
    """An interpreter that imports vLLM and waits; a child of this process."""

    def __init__(self, launch: Launch, name: str, *, is_last: bool = False) -> None:
        """`is_last`: it started no process itself in the record, so it is a worker, or an engine that contains the
        worker."""
        self.inherited = Inherited.now()
        self._socket, theirs = socket.socketpair()
        executable = spawn.get_executable()
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        words = [str(theirs.fileno()), launch.module, str(launch.record or ""), name, "last" if is_last else ""]
        command = [executable, *flags, "-c", _CODE, _MARK, *words]
        with theirs:
            self.pid = util.spawnv_passfds(os.fsencode(executable), [*map(os.fsencode, command)], [theirs.fileno()])

    def become(self, descriptors: Sequence[int]) -> bool:
        """Make it the requested process, with these open files. False if it has ended."""
        try:
            with self._socket:
                self._socket.sendall(len(descriptors).to_bytes(_COUNT_BYTES, "little"))
                socket.send_fds(self._socket, [_limits()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def end(self) -> None:
        """Kill and reap it."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class Launch:
    """Starts the child processes of this one. `name` is its name among vLLM's processes: "" for the first."""

    def __init__(self, module: str, record: Path | None, name: str = "") -> None:
        self.module, self.record, self.name = module, record, name
        self._started = 0
        self._base = dict(os.environ)
        self._prepared: dict[int, Prepared] = {}

    def prepare(self) -> None:
        """Start the processes of the record. Call it before threads exist: the environment changes."""
        recorded = recorded_children(self.record, self.name) if self.record else {}
        for number, change in recorded.items():
            name = name_of(self.name, number)
            is_last = self.record is not None and not recorded_children(self.record, name)
            with _environment(change.applied_to(self._base)):
                self._prepared[number] = Prepared(self, name, is_last=is_last)

    def start(self, descriptors: Sequence[int]) -> int:
        """Returns the id of a process with these open files: a prepared one if what it inherited is still equal."""
        number, inherited = self._started, Inherited.now()
        self._started += 1
        if found := self._prepared.pop(number, None):
            if found.inherited == inherited and found.become(descriptors):
                return found.pid
            found.end()
        self._keep(number, inherited)
        process = Prepared(self, name_of(self.name, number))
        if not process.become(descriptors):
            process.end()
            raise ChildProcessError("a new Python interpreter ended at once")
        return process.pid

    def _keep(self, number: int, inherited: Inherited) -> None:
        """Record the environment for the next start."""
        if self.record is None:
            return
        change = Change.between(self._base, inherited.environment)
        try:
            record_child(self.record, self.name, number, change)
        except OSError as error:
            log(f"cannot record how vLLM starts its processes, so that the next start is no faster: {error}")


class _Descriptor:
    """An open file of the parent in a pickled process: its index among those that were sent."""

    received: ClassVar[list[int]] = []

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """The file descriptor in this process."""
        return self.received[self._place]


class _Popen(popen_spawn_posix.Popen):
    """multiprocessing's Popen of "spawn", with a process of `Launch` instead of a new interpreter."""

    DupFd = _Descriptor  # type: ignore[assignment]
    _fds: list[int]

    def __init__(self, process: Any, launch: Launch) -> None:
        self._source = launch
        super().__init__(process)

    def duplicate_for_child(self, fd: int) -> int:
        """The index of a file among those that are sent."""
        self._fds.append(fd)
        return len(self._fds) - 1

    def _launch(self, process_obj: Any) -> None:
        message = self._pickled(process_obj)
        parent_r, child_w = os.pipe()
        child_r, parent_w = os.pipe()
        try:
            tracker: int = resource_tracker.getfd()  # type: ignore[assignment]
            descriptors = [child_r, tracker, child_w, *self._fds]
            self.pid = self._source.start(descriptors)
        except BaseException:
            for descriptor in (parent_r, parent_w):
                os.close(descriptor)
            raise
        finally:
            os.close(child_r)
            os.close(child_w)
        self.sentinel = parent_r
        # The write end stays open until this process ends: the child detects the end of its parent by it.
        self.finalizer = util.Finalize(self, util.close_fds, (parent_r, parent_w))  # type: ignore[attr-defined]
        with os.fdopen(parent_w, "wb", closefd=False) as pipe:
            pipe.write(message)

    def _pickled(self, process_obj: Any) -> bytes:
        """Input of `spawn_main`."""
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj._name), buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        return buffer.getvalue()


def begin(module: str, record: str, name: str = "") -> None:
    """Start the recorded processes, and pass all further processes of "spawn" to `Launch`."""
    launch = Launch(module, Path(record) if record else None, name)
    launch.prepare()

    def popen(process: Any) -> Any:
        if os.fsdecode(spawn.get_executable()) != sys.executable:
            # vLLM's NUMA binding starts another program that starts Python.
            return popen_spawn_posix.Popen(process)
        return _Popen(process, launch)

    context.SpawnProcess._Popen = staticmethod(popen)  # type: ignore[assignment]


def become() -> None:
    """Import, wait for the parent's request, and continue as multiprocessing's process. Does not return."""
    descriptor, module, record, name, last = sys.argv[2:7]
    begin(module, record, name)
    import_modules(module)
    if module.startswith(("vllm.", __package__)):
        import_modules("", *ENGINE_MODULES, _worker() if last else "")
    with socket.socket(fileno=int(descriptor)) as parent:
        parent.settimeout(WAIT_SECONDS)
        descriptors = _received(parent)
    _Descriptor.received = descriptors[3:]
    del sys.argv[2:]
    spawn.spawn_main(pipe_handle=descriptors[0], tracker_fd=descriptors[1])


def import_modules(*names: str) -> None:
    """Import modules that this process will need. An error occurs again where vLLM imports the module.

    Garbage collection is off, since it takes a fifth of the time and finds nothing.
    """
    gc.disable()
    try:
        for name in filter(None, names):
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001  # a process that does not need it must not end because of it
                log(f"{name} was not imported in advance: {error}")
    finally:
        # The first one is run later under another name; a second entry would cause a warning.
        sys.modules.pop(names[0], None)
        gc.freeze()
        gc.enable()


def _worker() -> str:
    """vLLM's worker for this device, which is otherwise imported only after the worker's process started."""
    if not (platforms := sys.modules.get("vllm.platforms")):
        return ""
    return WORKERS.get(platforms.current_platform.device_type, "")


def _received(parent: socket.socket) -> list[int]:
    """Open files from the parent. Ends this process if the parent ended, or sends no request."""
    try:
        count = int.from_bytes(parent.recv(_COUNT_BYTES), "little")
        limits, descriptors, _, _ = socket.recv_fds(parent, 64, count, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        os._exit(0)
    if not descriptors:
        os._exit(0)
    _set_limits(limits)
    return descriptors


def _limits() -> bytes:
    """vLLM raises the limit of open files before it starts its processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{soft} {hard}".encode()


def _set_limits(text: bytes) -> None:
    soft, hard = map(int, text.split())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Changes this process's environment temporarily, for processes that it starts."""
    before = dict(os.environ)
    try:
        _replace_environment(variables)
        yield
    finally:
        _replace_environment(before)


def _replace_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


MAX_ARGUMENT_BYTES = 1 << 21
"""Linux's limit of a command line."""


def main(module: str, record: str) -> None:
    """Run MODULE as __main__, like `python -m MODULE`. Does not return if it exits."""
    begin(module, record)
    import_modules(module)
    arguments = _arguments()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _arguments() -> list[str]:
    """Read the arguments from standard input; ends this process without any, as when the supervisor ended."""
    try:
        given = parse(sys.stdin.buffer.read(MAX_ARGUMENT_BYTES + 1), MAX_ARGUMENT_BYTES)
    except Refused as why:
        sys.exit(f"the supervisor's arguments are missing: {why}")
    if not isinstance(given, list) or not all(isinstance(argument, str) for argument in given):
        sys.exit("the supervisor's arguments are no list of texts")
    return given


if __name__ == "__main__":
    # By its own name: __main__ becomes vLLM's module, and pickled objects must not be looked up there.
    from llmservice_runtime import launch

    launch.main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
