#!/usr/bin/env python3
"""How well a model that sees only the previous byte can do, in nats per byte.

usage: bigram_entropy.py TRAIN VALID [--json]

conditional entropy   H(next | current) = - sum over pairs (a, b) of p(a, b) * ln p(b | a), with p from the pair counts of
                      the whole text (TRAIN and VALID, each by itself, counts added). It is the mean loss of the best
                      bigram model there can be for this text: fitted on what it is judged by, without smoothing.
bigram on VALID       mean of - ln q(b | a) over the pairs of VALID, with q(b | a) = (n(a, b) + 1) / (n(a) + 256) from
                      the counts of TRAIN: what a bigram model reaches that has not seen VALID.
"""

import json
import math
import sys
from collections import Counter
from pathlib import Path


def pair_counts(text: bytes) -> Counter:
    """How often byte b follows byte a, by (a, b)."""
    return Counter(zip(text, text[1:]))


def first_counts(pairs: Counter) -> Counter:
    totals: Counter = Counter()
    for (first, _), count in pairs.items():
        totals[first] += count
    return totals


def conditional_entropy(pairs: Counter) -> float:
    totals = first_counts(pairs)
    return -sum(n * math.log(n / totals[a]) for (a, _), n in pairs.items()) / pairs.total()


def cross_entropy(fitted: Counter, judged: Counter) -> float:
    totals = first_counts(fitted)
    return -sum(n * math.log((fitted[a, b] + 1) / (totals[a] + 256)) for (a, b), n in judged.items()) / judged.total()


def self_test() -> None:
    """Texts whose entropy is known: a cycle has none, and two equally likely followers have ln 2."""
    assert conditional_entropy(pair_counts(b"abcabcabca")) == 0
    assert abs(conditional_entropy(pair_counts(b"aabaabaabaaba")) - 8 / 12 * math.log(2)) < 1e-12
    assert abs(cross_entropy(Counter(), pair_counts(b"xyz")) - math.log(256)) < 1e-12


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--json"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    self_test()
    train, valid = (pair_counts(Path(path).read_bytes()) for path in arguments)
    result = {"conditional_entropy": conditional_entropy(train + valid), "bigram_on_valid": cross_entropy(train, valid)}
    if "--json" in sys.argv:
        print(json.dumps(result))
    else:
        print(f"conditional entropy of the byte bigrams  {result['conditional_entropy']:.4f} nats/byte")
        print(f"bigram model of TRAIN, judged by VALID   {result['bigram_on_valid']:.4f} nats/byte")


if __name__ == "__main__":
    main()
