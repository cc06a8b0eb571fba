"""Prints images of the permutation of the global order as docs/DATA.md describes it, one JSON line per case.

{"size": n, "seed": s, "epoch": e, "source": i, "indices": [...], "images": [...]}
"""

import json

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def permuted(index, size, seed, epoch, source=0):
    state, half = 0, max(1, ((size - 1).bit_length() + 1) // 2)
    for word in (seed, epoch, source):
        state = mix(state + word + GOLDEN & MASK)
    keys = [mix(state + (i + 1) * GOLDEN & MASK) for i in range(8)]
    while True:
        left, right = index >> half, index & 2**half - 1
        for key in keys:
            left, right = right, left ^ mix(right + key & MASK) & 2**half - 1
        index = left << half | right
        if index < size:
            return index


if __name__ == "__main__":
    for size in (1, 2, 3, 10, 100, 1000, 10**9 + 7, 2**40, 2**62 + 1):
        for seed, epoch, source in ((0, 0, 0), (12345, 6, 2), (2**63 - 1, 10**6, 1)):
            indices = sorted({0, 1 % size, size // 2, size - 1})
            images = [permuted(index, size, seed, epoch, source) for index in indices]
            print(json.dumps({"size": size, "seed": seed, "epoch": epoch, "source": source, "indices": indices,
                              "images": images}))
