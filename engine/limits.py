"""Named changes to how a render is computed. Standard library only.

None of them changes a number: frames and sound are the same bits with any of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a render may use.

    threads: 0 for as many as the engine was made with. one_network: only the network that computes
    is mapped, so that the weights of the others leave this process's memory.
    """

    threads: int = 0
    one_network: bool = False

    def names(self) -> list[str]:
        """The changes in force, in words: none for a render without limits."""
        named = []
        if self.threads:
            named.append(f"{self.threads} thread{'s' if self.threads > 1 else ''}")
        if self.one_network:
            named.append("one network at a time")
        return named
