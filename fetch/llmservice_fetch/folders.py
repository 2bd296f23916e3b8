"""Files below a folder that others may write into: no symbolic link on the way is followed, nor one at the end.

A shared claim is such a folder: another tenant may replace any file or folder of it by a link to a place that only
this pod may write. Each part of a path is therefore opened from the one before it, which holds against replacement
at the same time as well; a check of the path beforehand would not.
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
from itertools import count
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe in the place of a file must not block whoever opens it.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_numbers = count()


@contextmanager
def opened(base: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[Folder]:
    """A folder below a base that is trusted, made where asked for. OSError where a part is missing, or is a link."""
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
        words = f"{part} is a link or a file, where {base} has a folder"
        raise OSError(errno.ELOOP, words) from None


class Folder:
    """An open folder. Every name is one part of a path; OSError where a file is not a regular one."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor, self.path = descriptor, path

    def names(self) -> list[str]:
        """What is in it, sorted."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - of a descriptor

    def stat(self, name: str) -> os.stat_result | None:
        """Of the name itself; None where there is none."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def size(self, name: str) -> int:
        """Of a regular file, in bytes; -1 for everything else."""
        found = self.stat(name)
        return found.st_size if found and stat.S_ISREG(found.st_mode) else -1

    def is_folder(self, name: str) -> bool:
        """Whether it is a folder, and not a link to one."""
        found = self.stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def target(self, name: str) -> str | None:
        """Where a link points; None for everything else."""
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
        """In one step for whoever reads."""
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
        """To read, and to write at its end, unbuffered. Whatever stands there and is no regular file is removed."""
        if self.stat(name) is not None and self.size(name) < 0:
            self.remove(name)
        return FileIO(str(self.path / name), "ab+", opener=lambda _, flags: self.open(name, flags))

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a regular file."""
        descriptor = os.open(name, flags | _FILE, 0o666, dir_fd=self.descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.ELOOP, f"{name} in {self.path} is not a regular file")

    def link(self, name: str, target: str) -> None:
        """A symbolic link, in one step for whoever looks."""
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
        """Within this folder; a file or link of the new name is replaced."""
        os.replace(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """A file, a link or a whole folder; links in it are removed, and not what they lead to."""
        if self.is_folder(name):
            shutil.rmtree(name, dir_fd=self.descriptor)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    @contextmanager
    def folder(self, *parts: str, make: bool = False) -> Iterator[Folder]:
        """One below."""
        with _walked(os.dup(self.descriptor), self.path, parts, make=make) as folder:
            yield folder

    def _staging(self) -> str:
        """A name that no other process or thread uses, however long the final one is."""
        return f".new-{os.uname().nodename[:64]}-{os.getpid()}-{os.urandom(4).hex()}"
