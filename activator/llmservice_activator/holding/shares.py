"""What one namespace, and one address of clients, may take of a total that all share. Pure."""

from __future__ import annotations

from collections import Counter

ADDRESS_SHARE = 3
"""How many times what is left for others an address may have. An ingress gateway, or a node that masquerades, has one
address for all its clients: alone it gets three quarters."""


class Shares:
    """Bounds what each takes by what is left, so that something always is: a namespace may have as much as it leaves,
    an address ADDRESS_SHARE times as much as it leaves to others, of the total and of what its namespace may have.

    One namespace alone gets half of the total, two a third each, and so on; one address of one namespace three
    sevenths. The first that one takes needs twice its size to be left.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.used = 0
        self._of: Counter[tuple[str | None, str | None]] = Counter()
        """By namespace (and None), by address (after None), by both."""

    def take(self, namespace: str, address: str, size: int = 1) -> bool:
        """Take so much more until `give_back`; False: it may not, and nothing is taken."""
        left = self._total - self.used - size
        room = left - self._of[namespace, None] - size
        """What is left for others of the namespace."""
        if (
            room < 0
            or self._of[namespace, address] + size > ADDRESS_SHARE * room
            or self._of[None, address] + size > ADDRESS_SHARE * left
        ):
            return False
        self._change(namespace, address, size)
        return True

    def give_back(self, namespace: str, address: str, size: int = 1) -> None:
        """Others may take it."""
        self._change(namespace, address, -size)

    def of_namespace(self, namespace: str) -> int:
        """What a namespace has."""
        return self._of.get((namespace, None), 0)

    def _change(self, namespace: str, address: str, size: int) -> None:
        self.used += size
        for each in ((namespace, None), (None, address), (namespace, address)):
            self._of[each] += size
            if not self._of[each]:
                del self._of[each]
