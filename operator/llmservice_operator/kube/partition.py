"""How the work is split over processes: which shard a namespace belongs to, and who is to have which. Pure.

A namespace is what is split by, and not a service: services of one namespace lend each other what is known of a model.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

UNEVEN = 2
"""By how many shards one must be ahead of another to give one up: less would only swap their places."""


def shard_of(namespace: str, shards: int) -> int:
    """The same in every process and every version: two that disagreed would both own a namespace."""
    return zlib.crc32(namespace.encode()) % shards


class ShardLease(NamedTuple):
    """The Lease of one shard, as it was read last."""

    holder: str
    """Identity of the process; empty: nobody's."""
    wanted_by: str = ""
    """Who asked for it and was not heard yet."""


def shard_to_ask_for(me: str, leases: Mapping[int, ShardLease], shards: int) -> int | None:
    """Of whoever has the most, where that is more than a fair share; None: wait.

    One at a time, and none while another has nobody: that one is simply taken. What others have asked for is counted
    as given, so that two newcomers do not ask for more than there is.
    """
    if len(leases) < shards or any(not lease.holder or lease.wanted_by == me for lease in leases.values()):
        return None
    held = Counter(lease.holder for lease in leases.values() if not lease.wanted_by)
    held[me] = sum(lease.holder == me for lease in leases.values())
    asked = [
        shard for shard, lease in leases.items() if not lease.wanted_by and held[lease.holder] - held[me] >= UNEVEN
    ]
    return max(asked, key=lambda shard: (held[leases[shard].holder], shard), default=None)
