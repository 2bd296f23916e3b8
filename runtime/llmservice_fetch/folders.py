"""Access to files in a folder that others may write, without following symbolic links.

In a shared claim another tenant may replace any file or folder by a link to a place that only this pod may write. Each
component of a path is therefore opened relative to its parent, which is safe against concurrent replacement; checking
the path first is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not block.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def opened(base: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[Folder]:
    """Open a folder below a trusted base, with `make` creating it. OSError where a component is missing or a link."""
    with _walked(os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), base, parts, make=make) as folder:
        yield folder


@contextmanager
def _walked(descriptor: int, path: Path, parts: Sequence[str], *, make: bool) -> Iterator[Folder]:
    try:
        for part in parts:
            inner = _open_folder(descriptor, part, path, make=make)
            os.close(descriptor)
            descriptor = inner
        yield Folder(descriptor, path.joinpath(*parts))
    finally:
        os.close(descriptor)


def _open_folder(descriptor: int, part: str, base: Path, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=descriptor)
    try:
        return os.open(part, _FOLDER, dir_fd=descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        words = f"{part} in {base} is a link or a file, not a folder"
        raise OSError(errno.ELOOP, words) from None


class Folder:
    """An open folder. Names are single path components; OSError for files that are not regular."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor, self.path = descriptor, path

    def names(self) -> list[str]:
        """Its entries, sorted."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - of a descriptor

    def stat(self, name: str) -> os.stat_result | None:
        """lstat of an entry; None where it is missing."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def size(self, name: str) -> int:
        """Size of a regular file in bytes; -1 for anything else."""
        found = self.stat(name)
        return found.st_size if found and stat.S_ISREG(found.st_mode) else -1

    def is_folder(self, name: str) -> bool:
        """Whether an entry is a folder and not a link to one."""
        found = self.stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def target(self, name: str) -> str | None:
        """Target of a link; None for anything else."""
        with contextlib.suppress(OSError):
            return os.readlink(name, dir_fd=self.descriptor)
        return None

    def read(self, name: str, limit: int) -> str:
        """A text of at most `limit` bytes; ValueError where it is longer, or not UTF-8."""
        with FileIO(self.open(name, os.O_RDONLY)) as source:
            found = b""
            while len(found) <= limit and (part := source.read(limit + 1 - len(found))):
                found += part
        if len(found) > limit:
            raise ValueError(f"{name} is longer than {limit} bytes")
        return found.decode()

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        staging = self._staging()
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=self.descriptor)
        try:
            with FileIO(descriptor, "w") as target:
                left = memoryview(text.encode())
                while left:
                    left = left[target.write(left) :]
            self.rename(staging, name)
        except OSError:
            self.remove(staging)
            raise

    def append(self, name: str) -> FileIO:
        """Open for reading and appending, unbuffered. An existing entry that is not a regular file is removed."""
        if self.stat(name) is not None and self.size(name) < 0:
            self.remove(name)
        return FileIO(str(self.path / name), "ab+", opener=lambda _, flags: self.open(name, flags))

    def open(self, name: str, flags: int) -> int:
        """Open a regular file; its descriptor."""
        descriptor = os.open(name, flags | _FILE, 0o666, dir_fd=self.descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.ELOOP, f"{name} in {self.path} is not a regular file")

    def link(self, name: str, target: str) -> None:
        """Create or replace a symbolic link atomically."""
        if self.target(name) == target:
            return
        staging = self._staging()
        os.symlink(target, staging, dir_fd=self.descriptor)
        try:
            self.rename(staging, name)
        except OSError:
            self.remove(staging)
            raise

    def rename(self, name: str, new: str) -> None:
        """Rename within this folder; an existing file or link is replaced."""
        os.replace(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, a link or a folder with its content, without following links."""
        if self.is_folder(name):
            shutil.rmtree(name, dir_fd=self.descriptor)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    @contextmanager
    def folder(self, *parts: str, make: bool = False) -> Iterator[Folder]:
        """Open a folder below this one."""
        with _walked(os.dup(self.descriptor), self.path, parts, make=make) as folder:
            yield folder

    def _staging(self) -> str:
        """A temporary name, unique across processes and threads."""
        return f".new-{os.uname().nodename[:64]}-{os.getpid()}-{os.urandom(4).hex()}"
