#!/usr/bin/env python3
"""Each process of a job gets each deadly signal, while workers have children of several kinds: nothing is left behind.

With --rounds N: N jobs are disturbed at random moments instead, which are printed as a seed.
"""

import argparse
import concurrent.futures
import os
import random
import resource
import signal
import sys
import time
import traceback
import unittest

from events import wait_for_ends
from job_case import BIN, is_alive
from leftovers import KINDS, ObservedJob, fields_of
from unittest_main import main

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV]
# Signals that a keeper and its log writer have blocked: a Ctrl-C or a careless pkill must not take a job with it.
KEPT_OUT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# Who is the second node, where there is one.
PEERS = {"fsdp-agent": "fsdp-agent", "second launcher": "fsdprun", "host": "fsdprun"}
# Most of a case is waiting.
AT_ONCE = 4


class Case(ObservedJob):
    """One job and one signal."""

    def victim(self, target):
        """The process that gets the signal."""
        first, last = self.launchers[0].pid, self.launchers[-1].pid
        if target == "fsdprun" or target in PEERS:
            return first if target in ("fsdprun", "host") else last
        keeper = self.named("fsdp-keeper", parent=first)
        if target == "worker":
            return self.workers[0]
        return keeper if target == "keeper" else self.named("fsdp-log-writer", parent=keeper)

    def goes_on(self, target, number, kind):
        """Whether the job does not mind."""
        if target == "log writer" or (target == "keeper" and number in KEPT_OUT):
            return True
        return target == "worker" and kind == "stubborn" and number in KEPT_OUT

    def run_case(self, target, number, kind):
        self.begin(kind, PEERS.get(target))
        self.wait_until_it_runs()
        victim = self.victim(target)
        os.kill(victim, number)
        if self.goes_on(target, number, kind):
            if number not in KEPT_OUT:
                wait_for_ends([victim])
                self.wait_until_reaped([victim])
            self.assertEqual([p for p in self.workers if not is_alive(p)], [], "the workers should have gone on")
            self.launchers[0].terminate()
        elif target in PEERS and target != "host" and number in KEPT_OUT:
            # A node may leave: the job waits for another one.
            wait_for_ends([victim])
            self.launchers[0].terminate()
        said = []
        for launcher in self.launchers:
            rc, _, err = self.finish(launcher)
            self.assertNotEqual(rc, 0, err)
            said.append(err)
        if self.goes_on(target, number, kind):
            self.assertIn("ended by SIGTERM", said[0])
        self.assert_clean(may_leave_files=target in ("host", "fsdprun") and number not in KEPT_OUT)

    def run_random(self, rng):
        """A signal at any moment of the start: who gets it may not be there yet, then another launcher does."""
        self.begin(rng.choice(KINDS), rng.choice([None, "fsdp-agent", "fsdprun"]))
        time.sleep(rng.uniform(0, 0.15))  # the random moment
        self.observe()
        os.kill(rng.choice(sorted(pid for pid in self.seen if fields_of(pid))), rng.choice(SIGNALS))
        self.observe()
        time.sleep(rng.uniform(0, 0.15))  # and how long what is left goes on
        self.observe()
        for launcher in self.launchers:
            launcher.terminate()
        for launcher in self.launchers:
            self.finish(launcher)
        self.assert_clean(may_leave_files=True)

    def run_again_after_a_kill(self):
        """The token file that a killed launcher has left is replaced by the next one and goes with it."""
        self.begin("fork", "fsdprun")
        self.wait_until_it_runs()
        for launcher in self.launchers:
            launcher.kill()
        (left,) = self.runtime.glob("*/*.token")
        old = left.read_text()
        self.wait_until_nothing_runs()
        self.forget()
        self.begin("fork", "fsdprun")
        self.wait_until_it_runs()
        self.assertNotEqual(left.read_text(), old)
        self.launchers[-2].terminate()
        for launcher in self.launchers:
            self.finish(launcher)
        self.assert_clean(may_leave_files=False)


def outcome(what, run):
    """None, or what went wrong with a case that prepares and cleans up by itself."""
    case = Case()
    try:
        case.setUp()
        try:
            run(case)
        except BaseException:
            case.kill_everything()
            raise
        finally:
            case.tearDown()
    except Exception:  # noqa: BLE001  A thread must tell what happened.
        return f"{what}: {traceback.format_exc()}"
    return None


class LeftoversTest(unittest.TestCase):
    def matrix(self, target):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [
                pool.submit(outcome, f"{number.name} to {target}, workers that {kind}",
                            lambda case, number=number, kind=kind: case.run_case(target, number, kind))
                for number in SIGNALS for kind in KINDS]
        failures = [failure for future in futures if (failure := future.result())]
        if failures:
            self.fail("\n".join(failures))

    def test_row_45_launcher(self):
        self.matrix("fsdprun")

    def test_row_45_keeper(self):
        self.matrix("keeper")

    def test_row_45_log_writer(self):
        self.matrix("log writer")

    def test_row_46_worker(self):
        self.matrix("worker")

    def test_row_45_agent_of_another_node(self):
        self.matrix("fsdp-agent")

    def test_row_45_launcher_of_another_node(self):
        self.matrix("second launcher")

    def test_row_45_launcher_that_hosts_two_nodes(self):
        self.matrix("host")

    def test_the_next_start_replaces_a_token_that_was_left(self):
        if failure := outcome("the next start", Case.run_again_after_a_kill):
            self.fail(failure)


def disturb_at_random(rounds, seed):
    for number in range(rounds):
        name = f"{seed}.{number}"
        failure = outcome(f"seed {name}", lambda case, name=name: case.run_random(random.Random(name)))
        if failure:
            sys.exit(failure)
    print(f"{rounds} jobs were disturbed at random moments (seed {seed}), nothing was left behind")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options, rest = parser.parse_known_args()
    if options.rounds:
        disturb_at_random(options.rounds, options.seed)
    else:
        sys.argv[1:] = rest
        main()
