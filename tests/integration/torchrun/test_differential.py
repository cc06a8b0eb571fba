"""Row 75: the same command lines under the installed torchrun and under fsdprun.

    test_differential.py                     the fixed list: every rule of differential.py has to fire
    test_differential.py --random 30         that many random command lines; --seed S: from this seed on
"""

import pathlib
import random
import socket
import sys
import unittest

import differential
import differential_cases
from compat_case import HERE, CompatCase, free_port
from waits_for import WAITS_FOR

MOST_SHOWN = 20


class DifferentialTest(CompatCase):
    cases = list(differential_cases.fixed())
    must_fire = True

    def assert_nothing_left(self):
        pass  # Each job is looked at by itself; torchrun's may leave something.

    def compare(self, case):
        port = free_port()
        self.env.pop("SENTINEL", None)
        theirs = differential.run(self, "torchrun", case, port)
        ours = differential.run(self, "fsdprun", case, port)
        said = f"torchrun said: {theirs.message[-600:]}\nfsdprun said: {ours.message[-600:]}"
        differences, fired = differential.compare(case, theirs, ours)
        return [f"{case}", *(f"* {text}" for text in differences), said] if differences else [], fired

    def test_row_75_the_same_can_be_seen_of_both(self):
        fired, shown = set(), 0
        for case in self.cases:
            with self.subTest(case.name):
                differences, names = self.compare(case)
                fired |= names
                waits = f"differential: {case.name}" in WAITS_FOR
                self.assertFalse(waits and not differences, "passes: remove it from waits_for.py")
                if differences and not waits:
                    shown += 1
                    self.fail("\n".join(differences) if shown < MOST_SHOWN else "and more")
        if self.must_fire:
            self.assertEqual(sorted(rule.name for rule in differential.RULES if rule.name not in fired), [], "rules that allow nothing")

    def test_the_comparison_can_fail(self):
        """What must not be equal is not made equal: each kind of difference is seen."""
        case = differential_cases.Case("check", [])
        for change in (lambda o: o.codes.append(3), lambda o: o.environments[0, 0].update(RANK="9"), lambda o: o.arguments[0, 0].append("x"),
                       lambda o: o.files.update({"attempt_0/0/stdout.log": "other"}), lambda o: o.out.update(["line"]),
                       lambda o: o.err.update(["line"]), lambda o: o.summary.update(rank="9"), lambda o: o.error_file.update(x=1)):
            theirs, ours = ([differential.Outcome([0], {(0, 0): {"RANK": "0"}}, {(0, 0): []}, {"attempt_0/0/stdout.log": "out"},
                                                  differential.collections.Counter(), differential.collections.Counter(),
                                                  {"rank": "0 (local_rank: 0)"}, {}, [], "")][0] for _ in range(2))
            self.assertEqual(differential.compare(case, theirs, ours), ([], set()))
            change(ours)
            self.assertNotEqual(differential.compare(case, theirs, ours)[0], [])

    def compared(self, words, theirs, ours):
        """What is seen, and which rules fire, if two ranks have these values: of a variable, or of the report's host."""
        def outcome(values):
            environments = {(0, rank): {name: value for name, value in values.items() if name != "host"} for rank in range(2)}
            return differential.Outcome([1], environments, {}, {}, differential.collections.Counter(), differential.collections.Counter(),
                                        {name: value for name, value in values.items() if name == "host"}, {}, [], "")
        return differential.compare(differential_cases.Case("check", words), outcome(theirs), outcome(ours))

    def test_what_differs_on_purpose_may_not_be_just_anything(self):
        """Rules about the master's address and port and the host allow what is documented, and nothing beside it."""
        c10d, static, here = ["--rdzv-backend=c10d"], ["--master-port={port}"], socket.gethostname()
        for words, name, a, b, rule in ((c10d, "MASTER_ADDR", "localhost", "127.0.0.1", "numeric-master-address"),
                                        (["--standalone"], "MASTER_ADDR", here, "127.0.0.1", "numeric-master-address"),
                                        (c10d, "MASTER_PORT", "4001", "4002", "chosen-port"),
                                        (static, "host", "localhost", f"{here} (127.0.0.1)", "name-of-the-host")):
            self.assertEqual(self.compared(words, {name: a}, {name: b}), ([], {rule}))
        for words, name, a, b in ((c10d, "MASTER_ADDR", "localhost", "192.0.2.1"), (c10d, "MASTER_ADDR", "localhost", "a-name"),
                                  *((c10d, "MASTER_ADDR", "localhost", group) for group in ("0.0.0.0", "::", "224.0.0.1", "255.255.255.255",
                                                                                            "127.255.255.255")),
                                  (c10d, "MASTER_ADDR", "localhost", ""), (c10d, "MASTER_ADDR", "elsewhere", "127.0.0.1"),
                                  (static, "MASTER_ADDR", "localhost", "127.0.0.1"), (static, "MASTER_PORT", "4001", "4002"),
                                  (c10d, "MASTER_PORT", "4001", "0"), (c10d, "MASTER_PORT", "4001", "-1"),
                                  (static, "host", "localhost", "elsewhere (127.0.0.1)"), (static, "host", "localhost", here + "x"),
                                  (static, "host", "localhost", f"{here} (192.0.2.1)"), (static, "host", "localhost", f"{here} ()"),
                                  (static, "host", "elsewhere", f"{here} (127.0.0.1)")):
            with self.subTest(words=words, name=name, theirs=a, ours=b):
                self.assertNotEqual(self.compared(words, {name: a}, {name: b})[0], [])

    def test_only_documented_variables_and_labels_are_allowed(self):
        for values, rules in (({"FSDPRUN_JOB_ID": "j", "FSDPRUN_GENERATION": "1"}, {"own-variables"}), ({"FSDPRUN_TOKEN": "secret"}, set())):
            self.assertEqual(self.compared([], {"host": "here"}, {"host": "here", **values})[1], rules)
            self.assertEqual(self.compared([], {"host": "here"}, {"host": "here", **values})[0] == [], bool(rules))
        for label, is_allowed in (("log", True), ("surprise", False)):
            theirs, ours = (differential.Outcome([1], {}, {}, {}, differential.collections.Counter(), differential.collections.Counter(),
                                                 {"rank": "0", **more}, {}, [], "") for more in ({}, {label: "x"}))
            self.assertEqual(differential.compare(differential_cases.Case("check", []), theirs, ours)[0] == [], is_allowed)

    def test_ranks_that_disagree_about_the_master_are_seen(self):
        theirs, ours = (differential.Outcome([0], {(0, rank): {"MASTER_ADDR": host, "MASTER_PORT": "4001"} for rank in range(2)}, {}, {},
                                             differential.collections.Counter(), differential.collections.Counter(), {}, {}, [], "")
                        for host in ("localhost", "127.0.0.1"))
        ours.environments[0, 1].update(MASTER_ADDR="127.0.0.2", MASTER_PORT="4002")
        differences, fired = differential.compare(differential_cases.Case("check", ["--standalone"]), theirs, ours)
        self.assertEqual((len(differences), fired), (1, set()))


def main():
    words = sys.argv[1:]
    names = [word for word in words if word.startswith("DifferentialTest")]
    if "--random" in words:
        seed = int(words[words.index("--seed") + 1]) if "--seed" in words else random.randrange(1 << 30)
        count = int(words[words.index("--random") + 1])
        print(f"seeds {seed} to {seed + count - 1}", file=sys.stderr)
        DifferentialTest.cases = [differential_cases.random_case(seed + number) for number in range(count)]
        DifferentialTest.must_fire = False
        names = ["DifferentialTest.test_row_75_the_same_can_be_seen_of_both"]
    elif "--only" in words:
        wanted = words[words.index("--only") + 1]
        DifferentialTest.cases = [case for case in differential_cases.fixed() if wanted in case.name]
        DifferentialTest.must_fire = False
        names = ["DifferentialTest.test_row_75_the_same_can_be_seen_of_both"]
    unittest.main(argv=[sys.argv[0], *names], verbosity=2)


if __name__ == "__main__":
    assert pathlib.Path(differential.__file__).parent == HERE
    main()
