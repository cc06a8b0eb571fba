#!/usr/bin/env python3
"""Ids of fsdp-train tokenize are those of the Python packages tokenizers and sentencepiece, on text of all sorts, for the
patterns of GPT-2, Llama 3, Qwen2 and others. The tokenizers are trained here, on a part of the text.

usage: tokenizer_test.py --bin DIR [--bytes 500000]
"""

import argparse
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BOUNDARIES = ["\r\n", "\n\n", "\t", " ", "  ", " \n", "\0", "\x85", "\u3000", "\u180e", "\u2028", "\u200d", ".", ", ", "!?", "--",
              "'s", "'S", "'ll", "'LL", "\u2019s", "'\u017f", "'re", "'VE", "'m", " '", "_", "/\n"]


def words() -> list[str]:
    """Of many scripts, and what is hard about each."""
    return ["the", "quick", "Brown", "FOX", "jumps", "don't", "naïve", "café", "cafe\u0301", "Straße", "ŒUVRE", "été", "ﬁnd", "Ǆ", "ʰ",
            "Привет", "мир", "Ελλάδα", "שלום", "مرحبا", "العالم", "हिन्दी", "क्षत्रिय", "தமிழ்", "ไทยแลนด์", "漢字", "日本語です", "カタカナ",
            "中文测试", "한국어", "\u1112\u1161\u11ab", "\u1100\u1161", "🙂", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "❤️", "a\u0323\u0301", "a\u0301\u0323",
            "q\u0307\u0323", "x\u0898\u0301", "e\u0301\u0898e\u0301", "\U00011935\U00011930", "0", "12", "12345678", "3.14159", "½", "²³",
            "Ⅷ", "٣٤٥", "१२३", "\U0001d7d8", "\U00011de0", "def f(x):", "    return x", "if (a && b) { c[0] += 1; }", "http://a.b/c?d=e&f",
            "\U00031350", "\U00010d50\U00010d70", "\U00011f04\U00011f41", "\U0001ccf0", "\ufeff", "\ue000", "\uffff", "x" * 3000,
            "ab" * 700, "漢" * 500, "!" * 400, "9" * 300, " " * 300]


def documents(size: int, seed: int, has_runs: bool = True) -> list[str]:
    """About `size` bytes, of the words, some of which are very long, and of code points from everywhere."""
    chance = random.Random(seed)
    vocabulary, found, total = words(), [], 0
    usual = [word for word in vocabulary if len(word) < 100]
    while total < size:
        parts = []
        for _ in range(chance.randint(1, 400)):
            kind = chance.random()
            if kind < 0.80:
                parts.append(chance.choice(usual))
            elif kind < 0.95:
                begin = chance.choice([0x20, 0xa0, 0x250, 0x300, 0x900, 0x1e00, 0x2000, 0x3000, 0xac00, 0x1f300, 0x10000, 0x20000])
                code = chance.randrange(begin, begin + chance.choice([0x100, 0x1000, 0xf000]))
                parts.append(chr(code) if not 0xd800 <= code < 0xe000 else "?")
            elif kind < 0.99:
                parts.append(chance.choice(SPECIAL + ["<cut>", "  <cut>\n", "[one]", "a[one]b", " [one] ", "[n\u0303]", "[\u00f1]"]))
            else:
                parts.append(chance.choice(vocabulary if has_runs else usual))
            parts.append(chance.choice(BOUNDARIES) if chance.random() < 0.4 else " ")
        found.append("".join(parts))
        total += len(found[-1].encode())
    return found


def all_code_points() -> list[str]:
    """Each that is assigned, in a context of its own, so that it is seen which class it has."""
    points = [chr(code) for code in [*range(0xd800), *range(0xe000, 0x33000), *range(0xe0000, 0xe0200), 0xfffff, 0x10ffff]]
    return ["".join(f"a{point} 1{point}'{point}" for point in points[begin:begin + 5000]) for begin in range(0, len(points), 5000)]


def trained(pre_tokenizer, normalizer, texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL,
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split(pattern: str, behavior: str = "isolated", invert: bool = False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(use_regex: bool = False, add_prefix_space: bool = False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def tokenizers_of(texts: list[str]) -> dict[str, Tokenizer]:
    """One of each sort. Those that differ from another in what a file says alone have its merges."""
    found = {
        "gpt2": trained(byte_level(use_regex=True), None, texts),
        "llama3": trained(pre_tokenizers.Sequence([split(LLAMA3), byte_level()]), None, texts),
        "qwen2": trained(pre_tokenizers.Sequence([split(QWEN2), byte_level()]), normalizers.NFC(), texts),
    }

    def variant(name: str, change) -> Tokenizer:
        copy = Tokenizer.from_str(found[name].to_str())
        change(copy)
        return copy

    def prefix(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = byte_level(use_regex=True, add_prefix_space=True)

    def bos(tokenizer: Tokenizer) -> None:
        file = json.loads(tokenizer.to_str())
        file["model"]["ignore_merges"] = True
        tokenizer.__setstate__(json.dumps(file).encode())
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|im_start|> $A", pair="$A $B", special_tokens=[("<|im_start|>", 1)])])

    def o200k(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(O200K), byte_level()])

    def steps(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(r"\s+", "merged_with_next"), pre_tokenizers.Digits(individual_digits=True),
            split(r"[a-c]+", "merged_with_previous"), split("!", "contiguous"), split(r"\p{P}", "removed"), byte_level(use_regex=True)])

    def added(tokenizer: Tokenizer) -> None:
        tokenizer.add_tokens([AddedToken("<cut>", lstrip=True, rstrip=True, normalized=False),
                              AddedToken("[one]", single_word=True, normalized=False), AddedToken("[n\u0303]", normalized=True),
                              AddedToken("the qu", normalized=False), AddedToken("the", normalized=False, rstrip=True)])

    return found | {"gpt2_prefix": variant("gpt2", prefix), "llama3_bos": variant("llama3", bos), "o200k": variant("llama3", o200k),
                    "steps": variant("gpt2", steps), "qwen2_added": variant("qwen2", added)}


def sentencepieces(texts: list[str]) -> dict[str, bytes]:
    found = {}
    for kind in ("bpe", "unigram"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for text in texts for line in text.split("\n") if 0 < len(line.encode()) < 4000), model_writer=model,
            vocab_size=1200, model_type=kind, byte_fallback=True, character_coverage=0.98, split_digits=kind == "bpe",
            normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc", num_threads=1, minloglevel=2,
            max_sentence_length=8192, hard_vocab_limit=False)
        found[f"sentencepiece_{kind}"] = model.getvalue()
    return found


def ids_of_ours(train: Path, tokenizer: Path, texts: Path, output: Path, *options: str) -> numpy.ndarray:
    subprocess.run([train, "tokenize", "--tokenizer", tokenizer, "--output", output, "--format", "raw", "--threads", "2",
                    "--no-append-document-end", "--force", *options, texts], check=True, capture_output=True)
    return numpy.fromfile(f"{output}.bin", dtype=numpy.uint16)


def compare(name: str, ours: numpy.ndarray, theirs: list[list[int]], texts: list[str]) -> bool:
    expected = numpy.array([number for ids in theirs for number in ids], dtype=numpy.uint16)
    if numpy.array_equal(ours, expected):
        print(f"ok   {name}: {len(ours)} ids of {sum(len(text.encode()) for text in texts)} bytes")
        return True
    common = min(len(ours), len(expected))
    at = int(numpy.argmax(ours[:common] != expected[:common])) if (ours[:common] != expected[:common]).any() else common
    begin = 0
    for text, ids in zip(texts, theirs, strict=True):
        if at < begin + len(ids):
            place = ids[max(0, at - begin - 3):at - begin + 3]
            print(f"FAIL {name}: id {at}: ours {ours[max(0, at - 3):at + 3].tolist()}, theirs {place} in a text of {len(text)} characters")
            break
        begin += len(ids)
    else:
        print(f"FAIL {name}: {len(ours)} ids, expected {len(expected)}")
    return False


def compare_unigram(name: str, ours: numpy.ndarray, theirs: list[list[int]], texts: list[str]) -> bool:
    """As compare(), but of divisions with the same pieces, which have the same score, each version of the library takes another
    where it rounds otherwise: in one text of a hundred they may stand in another order."""
    begin, moved = 0, []
    for text, ids in zip(texts, theirs, strict=True):
        found = ours[begin:begin + len(ids)].tolist()
        begin += len(ids)
        if found != ids:
            if sorted(found) != sorted(ids):
                return compare(name, ours, theirs, texts)
            moved.append(text)
    print(f"ok   {name}: {len(ours)} ids, in another order in {len(moved)} of {len(texts)} texts")
    return begin == len(ours) and len(moved) <= max(1, len(texts) // 100)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--bytes", type=int, default=500_000)
    parser.add_argument("--all-code-points", action="store_true")
    arguments = parser.parse_args()
    train = arguments.bin / "fsdp-train"
    texts = documents(arguments.bytes, seed=1)
    if arguments.all_code_points:
        texts += all_code_points()
    sample = documents(60_000, seed=2)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        begin = time.monotonic()
        for name, tokenizer in tokenizers_of(sample).items():
            tokenizer.save(str(place / f"{name}.json"))
            # What is read back is what is compared: it numbers tokens anew.
            reread = Tokenizer.from_file(str(place / f"{name}.json"))
            special = name == "llama3_bos"
            theirs = [encoding.ids for encoding in reread.encode_batch(texts, add_special_tokens=special)]
            options = ["--add-special-tokens"] if special else []
            ours = ids_of_ours(train, place / f"{name}.json", place / "in.jsonl", place / "out", *options)
            results.append(compare(name, ours, theirs, texts))
        texts = documents(arguments.bytes, seed=3, has_runs=False)
        (place / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        for name, model in sentencepieces(sample).items():
            (place / f"{name}.model").write_bytes(model)
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            ours = ids_of_ours(train, place / f"{name}.model", place / "in.jsonl", place / "out")
            results.append((compare if "bpe" in name else compare_unigram)(name, ours, processor.encode(texts), texts))
        print(f"{time.monotonic() - begin:.1f} s")
    return 0 if all(results) and len(results) == 10 else 1


if __name__ == "__main__":
    sys.exit(main())
