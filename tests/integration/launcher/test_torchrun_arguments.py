"""What the installed torchrun's parser takes, fsdprun takes for the same: every prefix of every option, and ways to give values."""

import contextlib
import io
import itertools
import os
import subprocess
import unittest

from torch.distributed.run import get_args_parser

from job_case import BIN
from unittest_main import main

# A value that its option takes and that is not its default, and what shows in fsdprun's plan when it is given.
VALUES = {
    "nnodes": ("2", {"nodes": "2"}), "nproc_per_node": ("3", {"workers_per_node": "3"}),
    "rdzv_backend": ("c10d", {"rendezvous": "c10d"}), "rdzv_endpoint": ("localhost:4321", {}), "rdzv_id": ("some_id", {"run_id": "some_id"}),
    "rdzv_conf": ("join_timeout=77", {"join_timeout_s": "77"}), "max_restarts": ("5", {"max_restarts": "5"}),
    "monitor_interval": ("0.5", {}), "start_method": ("fork", {}), "event_log_handler": ("console", {"events": "console"}),
    "role": ("trainer", {"role": "trainer"}), "log_dir": ("/tmp/some_logs", {"log_dir": "/tmp/some_logs"}),
    "redirects": ("1", {"redirects": "1"}), "tee": ("2", {"tee": "2"}), "local_ranks_filter": ("0,1", {"local_ranks_filter": "0,1"}),
    "duplicate_stdout_filters": ("a", {"duplicate_stdout_filters": "a"}), "duplicate_stderr_filters": ("b", {"duplicate_stderr_filters": "b"}),
    "node_rank": ("0", {"node_rank": "0"}), "master_addr": ("localhost", {"master_addr": "localhost"}), "master_port": ("4321", {}),
    "local_addr": ("127.0.0.1", {}), "logs_specs": ("default", {}), "numa_binding": ("node", {"numa_binding": "node"}),
    "signals_to_handle": ("SIGTERM", {"signals": "SIGTERM"}), "standalone": (None, {"run_id": "random"}),
    "module": (None, {"program_kind": "python module"}), "no_python": (None, {"program_kind": "executable"}), "run_path": (None, {}),
    "virtual_local_rank": (None, {"virtual_local_rank": "on"}),
}
# fsdprun takes a prefix of which torchrun knows two spellings of the same option only.
TWINS = "could match "


class TorchrunArgumentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parser = get_args_parser()
        cls.actions = [a for a in cls.parser._actions if a.option_strings and a.dest != "help"]
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_", "FSDPRUN_"))}

    def assert_none(self, complaints):
        found = [complaint for complaint in complaints if complaint]
        if found:
            self.fail("\n".join(found))

    def torchrun(self, words):
        """(option strings that were given a value, what argparse complains of)."""
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                parsed = self.parser.parse_args([*words, "script.py"])
        except SystemExit as end:
            return None if end.code else {}, said.getvalue()
        return {a.dest: getattr(parsed, a.dest) for a in self.actions if getattr(parsed, a.dest) != a.default}, ""

    def fsdprun(self, words):
        """(plan or None, exit code, complaint)."""
        done = subprocess.run([BIN / "fsdprun", "--dry-run", *words, "script.py"], capture_output=True, text=True, env=self.environment)
        plan = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line) if done.returncode == 0 else None
        return plan, done.returncode, done.stderr

    def check(self, words, dest):
        """torchrun takes the words for this option: so does fsdprun. torchrun refuses them: so does fsdprun, by exit code 2."""
        taken, complaint = self.torchrun(words)
        plan, code, said = self.fsdprun(words)
        if taken is None:
            could_be = complaint.partition(TWINS)[2].replace(",", " ").split()
            is_twin = len({option.replace("_", "-") for option in could_be}) == 1
            return None if code == 2 or is_twin and code == 0 else f"{words}: torchrun: {complaint[-150:]}; fsdprun: {code} {said}"
        expected = VALUES[dest][1] if dest in taken or dest == "node_rank" else {}
        if code != 0:
            return f"{words}: torchrun takes it; fsdprun: {code} {said}"
        wrong = {name: plan.get(name) for name, value in expected.items() if plan.get(name) != value}
        return f"{words}: not so in the plan: {wrong}" if wrong else None

    def words(self, action, spelling):
        value = VALUES[action.dest][0]
        # Where the rendezvous can be seen.
        before = ["--nnodes=2"] if action.dest in ("rdzv_conf", "node_rank") else []
        return [*before, spelling] if value is None else [*before, spelling, value]

    def test_row_04_every_prefix_of_every_option(self):
        """A prefix that torchrun finds ambiguous is refused, unless it is so because of - and _ alone."""
        complaints, seen = [], set()
        for action in self.actions:
            for spelling in action.option_strings:
                for length in range(3 if spelling.startswith("--") else 2, len(spelling) + 1):
                    if (spelling[:length], action.nargs == 0) not in seen:
                        seen.add((spelling[:length], action.nargs == 0))
                        complaints.append(self.check(self.words(action, spelling[:length]), action.dest))
        self.assertGreater(len(seen), 300)
        self.assert_none(complaints)

    def test_every_option_has_a_value_to_try(self):
        self.assertEqual(sorted(VALUES), sorted(action.dest for action in self.actions))

    def test_ways_to_give_a_value(self):
        complaints = []
        for action in self.actions:
            name, value = max(action.option_strings, key=len), VALUES[action.dest][0]
            ways = [[f"{name}=1"]] if value is None else [[f"{name}={value}"], [name, value], [name], [name, "--"], [name, "-x"], [f"{name}="],
                                                          [name, value, name, value]]
            for letter in (s for s in action.option_strings if not s.startswith("--")):
                ways += [[f"{letter}{value}"], [f"{letter}={value}"], [letter, value]] if value else [[letter], [f"{letter}x"]]
            before = ["--nnodes=2"] if action.dest in ("rdzv_conf", "node_rank") else []
            for way in ways:
                if way[0] != f"{name}=" or action.type is None:  # Empty text is looked at after parsing.
                    complaints.append(self.parse_only([*before, *way], action))
        self.assert_none(complaints)

    def parse_only(self, words, action):
        """Whether the parser takes the words; their value may still be refused, by exit code 1."""
        taken, complaint = self.torchrun(words)
        _, code, said = self.fsdprun(words)
        return None if (taken is None) == (code == 2) else f"{words}: torchrun: {complaint[-150:] or 'takes it'}; fsdprun: {code} {said}"

    def test_clusters_of_letters(self):
        letters = ["m", "t3", "r3", "t=3", "mt3", "mr3", "mt=3", "mm", "mx", "t", "tm", "m3"]
        complaints = [self.parse_only([f"-{word}"], None) for word in letters]
        complaints += [self.parse_only([f"-{a}", f"-{b}"], None) for a, b in itertools.product(("m", "t3", "r1"), repeat=2)]
        self.assert_none(complaints)

    def test_values_that_look_like_options(self):
        ways = (["--max-restarts", "-1"], ["--role", "-1"], ["--role", "-1.5"], ["--role", "-x"], ["--role", "-x y"], ["--role", "--x y"], ["--role", "-"],
                ["--role", ""], ["--role", "--"], ["--role", "-m"], ["--role", "--tee"], ["--role", "--te"], ["--role", "--zz"], ["--role=-x"],
                ["--role=--tee"], ["--=3"], ["--"], ["-"], ["-1"], ["--rdzv-conf", "-a=1"], ["--rdzv-conf", "-a b=1"])
        complaints = [self.parse_only(way, None) for way in ways]
        self.assert_none(complaints)


if __name__ == "__main__":
    main()
