"""Weights by a formula: one number for each element of each tensor, from the tensor's name alone.

Element i of the tensor `name` is `offset + q / 2^(bits - 1) * 2^exponent`. Here q is a signed integer of
`bits` bits: the upper bits of the i-th number of SplitMix64 seeded with FNV-1a of the name. `formula.json` gives
bits, exponent and offset by the name's suffix; the first entry whose suffix and family match decides. Every
such number is exact in f32, bf16 and f16. Tensors of bytes (blocks of four-bit floats and their scales) are
`offset + the upper bits`, unsigned.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
TABLE = json.loads((HERE / "formula.json").read_text())["kinds"]


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def splitmix64(seed, count):
    """The first `count` numbers of SplitMix64 with this seed."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def kind_of(family, name):
    """The table's first entry for this tensor."""
    for kind in TABLE:
        if name.endswith(kind["suffix"]) and family in kind.get("families", [family]):
            return kind
    raise KeyError(f"formula.json has no entry for {name} of {family}")


def tensor(family, name, shape, unsigned=False):
    """The numbers of one tensor: f32, or bytes where `unsigned`."""
    kind = kind_of(family, name)
    bits = kind.get("bits", 8)
    count = int(np.prod(shape, dtype=np.int64))
    upper = (splitmix64(fnv1a64(name), count) >> np.uint64(64 - bits)).astype(np.int64)
    if unsigned:
        return (upper + kind.get("offset", 0)).astype(np.uint8).reshape(shape)
    half = 1 << (bits - 1)
    values = kind.get("offset", 0) + (upper - half) / half * 2.0 ** kind["exponent"]
    exact(name, values)
    return values.astype(np.float32).reshape(shape)


def exact(name, values):
    """Fails unless the numbers are the same in bf16 and f16."""
    single = values.astype(np.float32)
    brain = (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if not (np.array_equal(brain, values) and np.array_equal(values.astype(np.float16), values)):
        raise ValueError(f"{name}: not all numbers are exact in bf16 and f16")


def checksum(values):
    """The first 16 hexadecimal digits of SHA-256 over the little-endian bytes."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def tokens(vocabulary, count):
    """The sequence of the fixtures."""
    return (splitmix64(fnv1a64("tokens"), count) % np.uint64(vocabulary)).astype(int).tolist()
