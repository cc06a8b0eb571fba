#!/usr/bin/env python3
"""Trains every program of examples/libfsdp, and with PyTorch's FSDP2 its counterpart in the folder examples/ beside this
file, and compares the losses of all steps.

--examples is the folder with them in bin/ and the libfsdp that they load in installed/ (build_examples.cmake makes one).

Both sides seed their generators alike, and so have the same weights, data and dropped units: LibTorch draws as Python does.
At two ranks losses are bit-equal: a sum of two has one order. At more the order of a reduction is the backend's choice, and
torch::optim::AdamW rounds in other places than Python's: within 1e-6 relative.
"""

import argparse
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

# Before LibTorch is loaded. A second compute thread would add up in another order.
os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "examples"), str(HERE.parent / "support")]
import parity_test  # noqa: E402
import torch._dynamo  # noqa: E402, F401: which an optimizer's first step loads, once for all ranks, which are forked
import torch.distributed.fsdp  # noqa: E402, F401
from free_port import free_port  # noqa: E402

STEPS, LIMIT_S = 20, 120


@dataclass(frozen=True)
class Case:
    name: str
    ranks: int
    arguments: tuple[str, ...]
    tolerance: float = 0.0
    is_long: bool = False  # left to --long


# {folder} has a data set in the format of MNIST. 20 steps each.
CASES = [
    Case("mnist", 2, ("--data", "{folder}", "--limit", "160", "--batch-size", "8", "--epochs", "2")),
    Case("mnist", 3, ("--limit", "240", "--batch-size", "4"), 1e-6, is_long=True),
    Case("t5", 2, ("--steps", "20"), is_long=True),
    Case("t5", 2, ("--steps", "20", "--bfloat16")),
    Case("t5", 3, ("--steps", "20"), 1e-6, is_long=True),
    Case("transformer", 2, ("--steps", "20")),
    Case("transformer", 2, ("--steps", "20", "--bfloat16", "--recompute", "--prefetch"), is_long=True),
    Case("transformer", 3, ("--steps", "20", "--recompute", "--prefetch"), 1e-6, is_long=True),
    Case("hsdp", 4, ("--steps", "20", "--replicas", "2"), 1e-6),
    Case("hsdp", 6, ("--steps", "20", "--replicas", "2"), 1e-6, is_long=True),
]
# Of an example, to be read in one go.
MOST_LINES = 149


def check_sources() -> None:
    sources = {path.stem: path.read_text().splitlines() for path in HERE.parents[1].glob("examples/libfsdp/*/*.cc")}
    assert set(sources) == {case.name for case in CASES if not case.is_long}, f"not one case or more for each of {sorted(sources)}"
    too_long = {name: len(lines) for name, lines in sources.items() if len(lines) > MOST_LINES}
    assert not too_long, f"more than {MOST_LINES} lines: {too_long}"


def write_digits(folder: Path) -> None:
    """The four files of MNIST in full size, as LibTorch wants them, of which only the first images are not black."""
    for kind, count in (("train", 60000), ("t10k", 10000)):
        drawn = torch.randint(256, (400, 784), generator=torch.Generator().manual_seed(count), dtype=torch.uint8)
        with open(folder / f"{kind}-images-idx3-ubyte", "wb") as images:
            images.write(b"".join(number.to_bytes(4, "big") for number in (2051, count, 28, 28)) + drawn.numpy().tobytes())
            images.truncate(16 + count * 784)
        with open(folder / f"{kind}-labels-idx1-ubyte", "wb") as labels:
            labels.write((2049).to_bytes(4, "big") + count.to_bytes(4, "big") + bytes(i % 10 for i in range(count)))


def run_rank(name: str, arguments: list[str], environment: dict[str, str], output: Path) -> None:
    """One rank of the counterpart, in a process of its own."""
    os.environ.update(environment)
    with open(output, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = 1
    try:
        importlib.import_module(name).main(arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # PyTorch's own teardown of Gloo aborts once in a while


def output_of_fsdp2(name: str, ranks: int, arguments: list[str], scratch: Path) -> str:
    """All ranks are forked from this process, which has loaded PyTorch."""
    output = scratch / "fsdp2.txt"
    output.write_text("")
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=run_rank, args=(name, arguments, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, output))
               for rank in range(ranks)]
    for process in started:
        process.start()
    running = list(started)
    while running:
        ended = wait([process.sentinel for process in running], LIMIT_S)
        running = [process for process in running if process.sentinel not in ended]
        if not ended or any(process.exitcode for process in started if process not in running):
            for process in running:
                process.kill()
            raise SystemExit(f"{name} with FSDP2 at {ranks} ranks fails or does not end:\n{output.read_text()[-4000:]}")
    return output.read_text()


@dataclass(frozen=True)
class Programs:
    launcher: Path
    examples: Path
    libtorch: Path
    lib: str


def output_of_example(name: str, ranks: int, arguments: list[str], programs: Programs) -> str:
    command = [programs.launcher, "--standalone", f"--nproc-per-node={ranks}", "--no-python", programs.examples / "bin" / name, *arguments]
    # What was built in a clean Debian names the folders that it had there.
    libraries = f"{programs.examples}/installed/{programs.lib}:{programs.libtorch}/lib"
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "LD_LIBRARY_PATH": libraries})
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode} of {name} at {ranks} ranks:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def numbers_of(text: str) -> list[dict]:
    """All losses and accuracies that were printed, in order."""
    assert len(re.findall(r"^step \d+: ", text, re.M)) == STEPS, f"not {STEPS} steps:\n{text}"
    return [{"loss": float(number)} for number in re.findall(r"\b(?:loss|accuracy) ([^,\s]+)", text)]


def check_parity(case: Case, programs: Programs, scratch: Path) -> bool:
    arguments = [argument.format(folder=scratch) for argument in case.arguments]
    ours = numbers_of(output_of_example(case.name, case.ranks, arguments, programs))
    theirs = numbers_of(output_of_fsdp2(case.name, case.ranks, arguments, scratch))
    table, wrong = parity_test.compare(ours, theirs, {"loss": case.tolerance})
    pairs = [(a["loss"], b["loss"]) for a, b in zip(ours, theirs, strict=True)]
    largest = max((abs(a - b) / abs(b) for a, b in pairs if a != b and b != 0), default=0.0)
    print(f"{case.name} at {case.ranks} ranks, {' '.join(case.arguments)}: {wrong} of {len(theirs)} numbers differ by more than "
          f"{case.tolerance:g}, by at most {largest:.1e}{chr(10) + table if wrong else ''}", flush=True)
    return wrong == 0


def check_resume(programs: Programs, scratch: Path) -> bool:
    """What goes on from a checkpoint prints the losses of what was never interrupted."""
    checkpoint = ["--checkpoint", str(scratch / "checkpoint")]
    whole = output_of_example("transformer", 2, ["--steps", str(STEPS)], programs)
    parts = [output_of_example("transformer", 2, ["--steps", steps, *checkpoint], programs) for steps in ("8", str(STEPS))]
    is_right = len(parts[0].splitlines()) == 8 and "".join(parts) == whole
    print("transformer goes on from its checkpoint" if is_right else f"transformer:\n{whole}is, with a restart:\n{''.join(parts)}")
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, help="the folder with fsdprun")
    parser.add_argument("--examples", type=Path, help="default: beside that of fsdprun")
    parser.add_argument("--libtorch", type=Path, default=Path(torch.__file__).parent, help="the folder with its lib/")
    parser.add_argument("--libdir", default="lib", help="where libfsdp is in installed/ (CMAKE_INSTALL_LIBDIR)")
    parser.add_argument("--long", action="store_true", help="the cases that are left out without it")
    parser.add_argument("only", nargs="*", choices=[[], *sorted({case.name for case in CASES})], help="all, unless some are named")
    options = parser.parse_args()
    parity_test.self_test()
    check_sources()
    programs = Programs(options.bin.resolve() / "fsdprun", (options.examples or options.bin / "../examples").resolve(), options.libtorch.resolve(),
                        options.libdir)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_digits(scratch)
        chosen = [case for case in CASES if case.is_long == options.long and (not options.only or case.name in options.only)]
        results = [check_parity(case, programs, scratch) for case in chosen]
        if options.long and any(case.name == "transformer" for case in chosen):
            results.append(check_resume(programs, scratch))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
