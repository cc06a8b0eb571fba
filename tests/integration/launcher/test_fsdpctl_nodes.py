"""What fsdpctl hears from the nodes of a job: what workers write, what they are doing, and that they have saved."""

import json
import os
import pathlib
import signal
import sys

from control_case import ControlCase
from job_case import is_alive, keeper_of, wait_until
from unittest_main import main

WORKER = """
for number in range(3):
    print(f"line {number} of {RANK} in {GENERATION}", flush=True)
print(f"complaint of {RANK}", file=sys.stderr, flush=True)
note("pid")

def where_it_waits():
    wait_for("end")

where_it_waits()
"""

SAVER = """
import json, socket
control = socket.socket(fileno=int(os.environ["FSDPRUN_CONTROL_FD"]))
note("pid")
for line in control.makefile("r"):
    record = json.loads(line)
    if record["type"] == "save":
        note("save")
        if RANK == 0:
            control.sendall(b'{"v":1,"type":"checkpoint","step":7,"path":"/saved/step-7"}\\n')
    if record["type"] == "stop":
        break
"""


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class NodesCase(ControlCase):
    def setUp(self):
        super().setUp()
        self.env["PATH"] = f"{pathlib.Path(sys.executable).parent}:{self.env['PATH']}"  # Of py-spy.

    def lines(self, *words):
        text = self.answer("logs", "--json", *words)
        return [json.loads(line) for line in text.splitlines()]


class LogsTest(NodesCase):
    def test_latest_lines_of_all_workers(self):
        launchers = self.start_job(worker=WORKER)
        wait_until(lambda: len(self.lines()) == 16, "all lines")
        lines = self.lines("--tail", 1)
        self.assertEqual({(line["rank"], line["stream"], line["line"]) for line in lines},
                         {(rank, "stdout", f"line 2 of {rank} in 1") for rank in range(4)} |
                         {(rank, "stderr", f"complaint of {rank}") for rank in range(4)})
        self.assertEqual({(line["v"], line["generation"], line["kept"], line["gap"]) for line in lines}, {(1, 1, True, False)})
        self.assertEqual({line["rank"] for line in self.lines("--rank", "1,3")}, {1, 3})
        self.assertEqual({line["rank"] for line in self.lines("--node", "@1")}, {2, 3})
        self.assertIn("[3!]: complaint of 3\n", self.answer("logs", "--rank", 3))
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_follows_through_worlds_to_the_end(self):
        launchers = self.start_job(worker=WORKER)
        following = self.follow("logs", "-f", "--rank", "0,3", "--tail", "1")
        self.assertIn(" in 1", following.stdout.readline())
        self.answer("restart")
        self.pids(2)
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])
        out = following.stdout.read()
        self.assertEqual((following.wait(timeout=60), following.stderr.read()), (0, ""))
        for rank in (0, 3):
            self.assertIn(f"[{rank}]: line 2 of {rank} in 2\n", out)
        self.assertNotIn("of 2 in", out)

    def test_what_is_not_kept_is_said(self):
        launchers = self.start_job("--log-dir=/dev/null", worker=WORKER)
        text = self.answer("logs", "--rank", 0)
        self.assertIn("[0]: (the standard output of rank 0 is kept in no file", text)
        self.assertEqual({line["kept"] for line in self.lines()}, {False})
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_unknown_nodes_and_ranks(self):
        launchers = self.start_job(worker=WORKER)
        self.assert_refused(self.fsdpctl("logs", "--rank", "4"), 1, "no worker has rank 4: the world has 4")
        self.assert_refused(self.fsdpctl("stacks", "--node", "nowhere"), 1, "no node of the job is called 'nowhere'", "it has ")
        self.assert_refused(self.fsdpctl("logs", "--rank", "2-1"), 1, "--rank: '2-1' is not ranks, such as 0 or 0,4-7")
        self.assert_refused(self.fsdpctl("logs", "--tail", "-1"), 1, "--tail: '-1' is not ")
        self.assert_refused(self.fsdpctl("checkpoint"), 2, "unknown command 'checkpoint'")
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])


class StacksTest(NodesCase):
    def stacks(self, *words):
        return [json.loads(line) for line in self.answer("stacks", "--json", *words).splitlines()]

    def test_python_and_native(self):
        launchers = self.start_job(worker=WORKER)
        pids = self.pids(1)
        stacks = {stack["rank"]: stack for stack in self.stacks()}
        self.assertEqual({rank: stack["pid"] for rank, stack in stacks.items()}, dict(enumerate(pids)))
        for stack in stacks.values():
            self.assertEqual((stack["v"], stack["reader"], stack["problem"]), (1, "py-spy, fsdp-stacks", None))
            self.assertIn("where_it_waits", stack["text"])  # By py-spy.
            self.assertIn("#0", stack["text"])
            self.assertLess(stack["stopped_s"], 5)
        self.assertIn(f"rank 2, pid {pids[2]} on ", self.answer("stacks", "--rank", 2))
        self.assertEqual({is_alive(pid) for pid in pids}, {True})
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_a_stopped_worker_is_read_and_stays_stopped(self):
        launchers = self.start_job(worker=WORKER)
        pid = self.pids(1)[3]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: self.state_of(pid) == "T", "the worker to be stopped")
        self.assertIn("#0", self.stacks("--rank", 3)[0]["text"])
        self.assertEqual(self.state_of(pid), "T")
        os.kill(pid, signal.SIGCONT)
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    @staticmethod
    def state_of(pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def test_a_node_that_dies_meanwhile_is_named(self):
        launchers = self.start_job(worker=WORKER)
        keeper = keeper_of(launchers[1])
        rank = next(rank for rank, pid in enumerate(self.pids(1)) if parent_of(pid) == keeper)
        launchers[1].send_signal(signal.SIGSTOP)
        asking = self.follow("stacks", "--rank", str(rank))
        wait_until(lambda: asking.poll() is None and self.has_asked(launchers[0]), "the question")
        launchers[1].kill()
        _, err = asking.communicate(timeout=60)
        self.assertRegex(err, "the connection with the node broke|it is not connected now|no worker runs")
        self.answer("stop")
        self.assertEqual(self.finish(launchers[0])[0], 1)

    def has_asked(self, host):
        """A connection to the host's socket stands."""
        sockets = pathlib.Path("/proc/net/unix").read_text().splitlines()
        return sum(str(self.runtime) in line and line.split()[5] == "03" for line in sockets) > 0


class SaveTest(NodesCase):
    def test_waits_for_the_checkpoint(self):
        launchers = self.start_job(worker=SAVER)
        saved = json.loads(self.answer("checkpoint", "now", "--json"))
        self.assertEqual(saved, {"v": 1, "step": 7, "path": "/saved/step-7"})
        self.wait_for_notes("save", 1, self.ranks)
        self.assertEqual(self.answer("checkpoint", "now"), "step 7 is saved in /saved/step-7\n")
        self.answer("stop")
        for launcher in launchers:
            self.assertEqual(self.finish(launcher)[0], 1)

    def test_programs_that_do_not_listen(self):
        launchers = self.start_job(worker=WORKER)
        self.assert_refused(self.fsdpctl("checkpoint", "now", "--timeout", "0.5"), 1, "4 workers were told to save",
                            "within 0.5 s", "proto/worker_contract.h")
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])


if __name__ == "__main__":
    main()
