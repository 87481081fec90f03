"""Every random choice has a seed of its own, derived from the recipe's seed, the replicate and the purpose."""

import hashlib


def derive(seed: int, replicate: int, purpose: str) -> int:
    """A seed in 0 .. 2^31 - 1 for one purpose (`initialisation`, `order`, ...) of one replicate."""
    digest = hashlib.sha256(f"{seed}/{replicate}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
