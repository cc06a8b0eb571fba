#!/usr/bin/env python3
"""docs/TORCHRUN.md agrees with the tests and the program that it speaks of.

Every row of the contract is in its table once; each test that it names exists; its options are those of fsdprun --help; its
keys of --rdzv-conf are those that the program reads, and --help names them, too; its allowed differences are the rules of the
differential test; the variables of ours that it names are those that workers get, and all that the differential test allows.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/TORCHRUN.md"
CONF_READER = ROOT / "launcher/cli/rendezvous_conf.cc"
CONTRACT = ROOT / "proto/worker_contract.h"
ROWS = 75
sys.path.insert(0, str(ROOT / "tests/integration/torchrun"))
from differential import OWN_VARIABLES, RULES  # noqa: E402


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1] if found else ""


def first_cells(part: str) -> list[str]:
    return [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("| ") and not line.startswith("| row |")]


def numbers(cell: str) -> list[int]:
    """Of "23-25", "39, 41" or "7"."""
    found = []
    for piece in cell.split(","):
        low, _, high = piece.strip().partition("-")
        if low.isdigit():
            found += range(int(low), int(high or low) + 1)
    return found


def check_rows(text: str) -> list[str]:
    rows = [row for cell in first_cells(section(text, "Point by point")) for row in numbers(cell)]
    return [] if sorted(rows) == list(range(1, ROWS + 1)) else [
        f"rows that are missing or named twice: {sorted(set(range(1, ROWS + 1)).symmetric_difference(rows) | {r for r in rows if rows.count(r) > 1})}"]


def check_tests(text: str) -> list[str]:
    defined = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    return [f"there is no test {name}" for name in sorted(set(re.findall(r"`(test_\w+)`", text)) - defined)]


def check_options(text: str, shown: str) -> list[str]:
    offered = set(re.findall(r"^  (?:-\w, )?--([a-z][a-z-]+)", shown, re.M)) - {"help"}
    named = set(re.findall(r"`--([a-z][a-z-]+)", section(text, "Options"))) - {"help"}
    return [f"--{name} is {where}" for name in sorted(offered ^ named)
            for where in ["not in the page" if name in offered else "in the page, and not in --help"]]


def keys_read(source: str) -> set[str]:
    return set(re.findall(r'(?:\bFind|\bRead\w+|std::pair)\("(\w+)"', source))


def check_keys(text: str, shown: str, source: str) -> list[str]:
    """A key that the page calls ignored is one that the program must not read."""
    taken = keys_read(source)
    table = [line for line in section(text, "Keys of --rdzv-conf").splitlines() if line.startswith("| `")]
    named = {key for line in table if not line.endswith("ignored |") for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    ignored = {key for line in table if line.endswith("ignored |") for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    found = re.search(r"^Keys of --rdzv-conf:\n(.*?)^\S", shown, re.M | re.S)
    part = found[1] if found else ""
    offered = set(re.findall(r"(\w+)=", "".join(re.findall(r"^  \S.*\n", part, re.M))))
    told = set(re.findall(r"\w+", part))
    return [f"--rdzv-conf {key} is {how}" for keys, how in (
        (taken - named, "read, and not in the page"), (named - taken, "in the page, and not read"),
        (ignored & taken, "read, and the page says ignored"), (offered - taken, "in --help, and not read"),
        (taken - told, "read, and not in --help")) for key in sorted(keys)]


def check_rules(text: str) -> list[str]:
    named = [cell.strip("`") for cell in first_cells(section(text, "Allowed differences")) if cell.startswith("`")]
    rules = [rule.name for rule in RULES]
    return [] if named == rules else [f"allowed differences are {rules}, the page has {named}"]


def check_variables(text: str, contract: str, allowed: tuple[str, ...] = OWN_VARIABLES) -> list[str]:
    given = set(re.findall(r'"(FSDPRUN_\w+)"', contract))
    places = {"the page": set(re.findall(r"`(FSDPRUN_\w+)`", section(text, "Environment"))), "the differential test": set(allowed)}
    return [f"{name} of proto/worker_contract.h and {where} differ" for where, names in places.items() for name in sorted(given ^ names)]


def self_test(text: str, shown: str) -> None:
    """Each check can fail."""
    assert check_rows(text.replace("| 24 |", "|  |").replace("23-25", "23, 25")), "a missing row is not seen"
    assert check_tests(text + "`test_that_nobody_wrote`"), "a test that does not exist is not seen"
    assert check_options(text.replace("`--tee`", "`--tea`"), shown), "an unknown option is not seen"
    source = CONF_READER.read_text()
    assert check_keys(text.replace("`is_host`", "`is_hosts`"), shown, source), "a key that is not read is not seen"
    assert check_keys(text.replace("`cacert`, ", ""), shown, source), "a key that the page lacks is not seen"
    assert check_keys(text, shown.replace("ssl_cert_key", "it"), source), "a key that --help lacks is not seen"
    assert check_keys(text, shown.replace("is_host=", "is_hosts="), source), "a key of --help that is not read is not seen"
    assert check_keys(text, shown, source + 'conf.Find("rank")'), "a key that the page calls ignored is not seen to be read"
    assert check_variables(text.replace("`FSDPRUN_JOB_ID`", ""), CONTRACT.read_text()), "a variable that the page lacks is not seen"
    assert check_variables(text, CONTRACT.read_text(), OWN_VARIABLES[:-1]), "a variable that no rule allows is not seen"
    assert check_rules(text.replace("`whole-lines`", "`half-lines`")), "an unknown rule is not seen"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdprun", type=Path, required=True)
    options = parser.parse_args()
    text = PAGE.read_text()
    shown = subprocess.run([options.fsdprun, "--help"], capture_output=True, text=True, check=True).stdout
    complaints = check_rows(text) + check_tests(text) + check_options(text, shown) + check_rules(text) + check_keys(
        text, shown, CONF_READER.read_text()) + check_variables(text, CONTRACT.read_text())
    if not complaints:
        self_test(text, shown)
    print("\n".join(complaints) or "page, tests and program agree")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
