"""A file lock for one download per cache; the kernel releases it when a process is killed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# Errors of file systems without locks.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@contextmanager
def exclusive(
    opened: Callable[[], int],
    folder: Path,
    log: Callable[[str], None],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> Iterator[bool]:
    """Hold the lock of a file in `folder`, which `opened` opens.

    Yields False where the file system has no locks, so that other processes may work in the folder too.
    The context `while_waiting` is entered while another process holds the lock.
    """
    descriptor = opened()
    try:
        yield _acquire(descriptor, folder, log, while_waiting)
    finally:
        os.close(descriptor)


def _acquire(
    descriptor: int,
    folder: Path,
    log: Callable[[str], None],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log("another process fetches this into the same cache: waiting")
        with while_waiting():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log(f"{folder} is on a file system without locks: replicas may fetch the same files at once")
        return False
    return True
