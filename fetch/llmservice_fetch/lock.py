"""One download for each cache: the lock is the kernel's, so that a killed process holds none."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# What file systems say that cannot lock.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@contextmanager
def exclusive(
    opened: Callable[[], int],
    folder: Path,
    say: Callable[[str], None],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> Iterator[bool]:
    """Hold the lock of a file in `folder`, whose descriptor `opened` gives.

    False where the file system has no locks: other processes may work in the folder as well.
    `while_waiting` is entered when another process holds it, until that one is done.
    """
    descriptor = opened()
    try:
        yield _acquire(descriptor, folder, say, while_waiting)
    finally:
        os.close(descriptor)


def _acquire(
    descriptor: int,
    folder: Path,
    say: Callable[[str], None],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another process fetches this into the same cache: waiting for it")
        with while_waiting():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        say(f"{folder} is on a file system without locks: replicas may fetch the same files at once")
        return False
    return True
