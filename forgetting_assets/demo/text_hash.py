"""Vectors for the demo without a model: signed feature hashing of a text's words.

Belongs here: the one function that turns a text into a vector. A real embedding model does not.
"""

import hashlib
import math
import re
from collections import Counter

EMBEDDING_MODEL = "demo-text-hash-1536"
DIMENSIONS = 1536

_WORD = re.compile(r"\w+")


def embed(text: str) -> list[float]:
    """Hash a text's lower-cased words into a unit vector of 1536 dimensions.

    It measures shared words only and is no language model: two texts are near when they use the
    same words, whatever they mean.
    """
    counts = Counter(_WORD.findall(text.lower()))
    if not counts:
        raise ValueError("a text without a word has no vector")
    vector = [0.0] * DIMENSIONS
    for word, count in sorted(counts.items()):
        digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
        sign = 1.0 if digest & 1 else -1.0
        vector[(digest >> 1) % DIMENSIONS] += sign * count
    norm = math.sqrt(math.fsum(value * value for value in vector))
    if norm == 0.0:
        raise ValueError("the words of this text cancel each other out and leave no vector")
    return [round(value / norm, 6) for value in vector]
