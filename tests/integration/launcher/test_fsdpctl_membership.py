"""Operators drain nodes of running jobs and scale them, free of charge."""

import json
import os

from fsdpctl_case import FsdpctlCase
from coordinator_case import WORKER
from daemon_case import DaemonCase
from job_case import is_alive, wait_until
from unittest_main import main


class NodesCase(FsdpctlCase):
    per_node = 1
    restarts = 0  # What is charged ends the job.

    def start_elastic(self, nodes, count, *more, worker=WORKER):
        """So many launchers, which meet in generation 1: the job may be smaller only after that. The first hosts."""
        self.words = [*self.meeting(), *more, f"--nnodes={count}:{nodes.rpartition(':')[2]}", f"--nproc-per-node={self.per_node}",
                      f"--max-restarts={self.restarts}", "--rdzv-conf=last_call_timeout=0", self.script(worker)]
        launchers = [self.start(*self.words)]
        wait_until(self.job_files, "the job's file")
        launchers += [self.start(*self.words) for _ in range(count - 1)]
        self.allow_fewer(nodes, count)
        return launchers

    def allow_fewer(self, nodes, count):
        """Workers of a smaller world that came before would be stopped for the larger one, and these stop when a test says so."""
        self.wait_for_generation(1, count)
        if int(nodes.partition(":")[0]) < count:
            self.answer("scale", nodes)

    def wait_for_generation(self, generation, count):
        """All its workers run."""
        self.wait_for_notes("pid", generation, range(count))
        wait_until(lambda: self.status()["phase"] == "running", f"generation {generation}")

    def wait_for_gone(self, count):
        wait_until(lambda: len(self.status()["nodes"]) == count, f"{count} nodes")

    def assert_free_of_charge(self):
        self.assertEqual(self.status()["restarts_used"], 0)

    def assert_drained(self, launcher):
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 0, err)
        self.assertIn("drained by an operator", err)

    def launcher_of(self, generation, rank, launchers):
        """Whose worker this is: worker, keeper, launcher."""
        pid = int(self.notes("pid")[generation, rank])
        for _ in range(2):
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rsplit(")", 1)[1].split()[1])
        return next(launcher for launcher in launchers if launcher.pid == pid)

    def other_than_host(self, generation, launchers):
        """The rank of a node that does not host, and its launcher."""
        owners = {rank: self.launcher_of(generation, rank, launchers) for rank in range(len(launchers))}
        return next((rank, owner) for rank, owner in owners.items() if owner is not launchers[0])

    def kinds(self):
        return [json.loads(line)["event"] for line in self.answer("events", "--json").splitlines()]


class DrainTest(NodesCase):
    def test_a_member_leaves_and_the_others_go_on(self):
        launchers = self.start_elastic("3:3", 3)
        self.wait_for_generation(1, 3)
        rank, leaver = self.other_than_host(1, launchers)
        self.assert_refused(self.fsdpctl("drain", f"@{rank}"), 1, "the job would have 2 nodes, and it needs 3", "fsdpctl scale 2:3")
        self.answer("scale", "2:3")
        self.assertIn("generation 1 ends, and the job goes on with 2 nodes", self.answer("drain", f"@{rank}"))
        self.wait_for_notes("stopped", 1, range(3))
        self.assertEqual(self.status()["phase"], "stopping")
        self.assertEqual([node["group_rank"] for node in self.status()["nodes"] if node["draining"]], [rank])
        self.order("let_go")
        self.assert_drained(leaver)
        self.wait_for_generation(2, 2)
        self.assert_free_of_charge()
        self.wait_for_gone(2)
        self.assertEqual([kind for kind in self.kinds() if "drain" in kind], ["node_draining", "node_drained"])
        again = self.start(*self.words)  # It joins as anybody.
        self.wait_for_generation(3, 3)
        self.assert_free_of_charge()
        self.order("end")
        self.assert_all_end_well(launchers[0], [launcher for launcher in [*launchers[1:], again] if launcher is not leaver])

    def test_while_the_world_is_being_stopped(self):
        launchers = self.start_elastic("1:3", 3)
        self.answer("restart")
        self.wait_for_notes("stopped", 1, range(3))
        rank, leaver = self.other_than_host(1, launchers)
        self.assertIn("is being drained", self.answer("drain", f"@{rank}"))
        self.assertIn("is being drained already", self.answer("drain", f"@{rank}"))
        self.order("let_go")
        self.assert_drained(leaver)
        self.wait_for_generation(2, 2)
        self.assert_free_of_charge()
        self.order("end")
        self.assert_all_end_well(launchers[0], [launcher for launcher in launchers[1:] if launcher is not leaver])

    def test_the_launcher_that_hosts_stays_without_workers(self):
        host, other = self.start_elastic("1:2", 2)
        rank = next(rank for rank in range(2) if self.launcher_of(1, rank, [host, other]) is host)
        self.order("let_go")
        self.answer("drain", f"@{rank}")
        self.wait_for_generation(2, 1)
        self.wait_for_gone(1)
        self.assertEqual(host.poll(), None)
        self.assertIs(self.launcher_of(2, 0, [host, other]), other)
        self.assertEqual(self.status()["coordinator"]["pid"], host.pid)
        again = self.start(*self.words)  # At the same endpoint.
        self.wait_for_generation(3, 2)
        self.assert_free_of_charge()
        self.order("end")
        self.assert_all_end_well(other, [again])
        rc, _, err = self.finish(host)
        self.assertEqual(rc, 0, err)
        self.assertIn("drained by an operator; the coordinator keeps running here", err)

    def test_below_min_the_job_waits_for_another_node(self):
        host, other = self.start_elastic("2", 2)
        self.wait_for_generation(1, 2)
        self.order("let_go")
        rank, _ = self.other_than_host(1, [host, other])
        self.assert_refused(self.fsdpctl("drain", f"@{rank}"), 1, "it needs 2", "--below-min")
        self.assertEqual(self.status()["phase"], "running")
        self.assertIn("it has 1 of 2", self.answer("drain", f"@{rank}", "--below-min"))
        self.assert_drained(other)
        wait_until(lambda: self.status()["phase"] == "rendezvous", "the wait for a node")
        wait_until(lambda: "drained by an operator" in self.status()["reason"], "the reason")
        again = self.start(*self.words)
        self.wait_for_generation(2, 2)
        self.assert_free_of_charge()
        self.order("end")
        self.assert_all_end_well(host, [again])

    def test_host_is_killed_right_after_the_order(self):
        """That is the loss of a node; its standby goes on with the drain, too."""
        self.restarts = 1
        launchers = self.start_elastic("1:3", 3)
        wait_until(self.standbys, "the standby")
        rank, leaver = self.other_than_host(1, launchers)
        self.answer("drain", f"@{rank}")
        self.end_abruptly(launchers[0])
        self.order("let_go")
        self.assert_drained(leaver)
        (left,) = [launcher for launcher in launchers[1:] if launcher is not leaver]
        self.wait_for_generation(2, 1)
        self.assertIs(self.launcher_of(2, 0, launchers), left)
        self.order("end")
        self.assert_all_end_well(left, [])

    def test_order_survives_a_coordinator_that_is_started_again(self):
        self.nodes = 2
        coordinator = self.start(*self.coordinator_words("--shutdown-timeout=30", nodes="2"))
        self.wait_for_line(coordinator, "coordinator of run id 'kept' at ")
        script = self.script(WORKER)
        nodes = [self.start_node(script) for _ in range(2)]
        self.allow_fewer("1:2", 2)
        owners = [self.launcher_of(1, rank, nodes) for rank in range(2)]
        self.answer("drain", "@1")
        self.answer("scale", "1:1")
        self.end_abruptly(coordinator)
        self.order("let_go")
        coordinator = self.start(*self.coordinator_words("--shutdown-timeout=30", nodes="2"))
        self.assert_drained(owners[1])
        self.wait_for_generation(2, 1)
        status = self.status()
        self.assertEqual((status["min_nodes"], status["max_nodes"], status["restarts_used"]), (1, 1, 0))
        self.order("end")
        self.assert_all_end_well(coordinator, [owners[0]])

    def test_what_is_no_node(self):
        launchers = self.start_elastic("2", 2)
        self.wait_for_generation(1, 2)
        self.assert_refused(self.fsdpctl("drain", "nowhere"), 1, "no node of the job is called 'nowhere'", "@0", "@1")
        self.assert_refused(self.fsdpctl("drain", os.uname().nodename), 1, "several nodes", "@0", "@1")
        self.assert_refused(self.fsdpctl("drain"), 2, "no NODE was given")
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_the_only_node_of_a_job_stays(self):
        alone = self.start("--standalone", "--nproc-per-node=1", self.script("wait_for('end')"))
        wait_until(self.job_files, "the job's file")
        wait_until(lambda: self.status()["phase"] == "running", "running workers")
        self.assert_refused(self.fsdpctl("drain", "@0", "--below-min"), 1, "no other can join it", "fsdpctl stop")
        self.assert_refused(self.fsdpctl("scale", "2"), 1, "--standalone")
        self.order("end")
        self.assert_all_end_well(alone, [])


class AgentsTest(NodesCase, DaemonCase):
    def test_a_part_that_is_drained_is_not_started_again(self):
        ports = [self.start_daemon(), self.start_daemon()]
        launcher = DaemonCase.start_job(self, ports, "--nnodes=2", "--rdzv-conf=last_call_timeout=0", "--max-restarts=3",
                                        "--nproc-per-node=1", self.script(WORKER))
        wait_until(self.job_files, "the job's file")
        self.allow_fewer("1:2", 2)
        self.order("let_go")
        self.answer("drain", "@1")
        self.wait_for_generation(2, 1)
        self.wait_for_gone(1)
        wait_until(lambda: sorted(len(self.sessions_of(port)) for port in ports) == [0, 1], "the end of the part")
        self.order("end")
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 0, err)
        self.assertNotIn("starting it again", err)
        self.assertEqual(max(number for number, _ in self.notes("pid")), 2)


class ScaleTest(NodesCase):
    def test_down_and_up_again(self):
        launchers = self.start_elastic("1:3", 3)
        self.order("let_go")
        self.assertIn("the next has 2 of its 3 nodes", self.answer("scale", "1:2"))
        self.wait_for_generation(2, 2)
        status = self.status()
        self.assertEqual((status["min_nodes"], status["max_nodes"], status["restarts_used"]), (1, 2, 0))
        self.assertEqual(sorted(node["state"] for node in status["nodes"]), ["member", "member", "spare"])
        self.assertEqual([launcher.poll() for launcher in launchers], [None] * 3)
        self.assertIn("already", self.answer("scale", "1:2"))
        self.assertIn("of 1 node that waits", self.answer("scale", "1:3"))
        self.wait_for_generation(3, 3)
        self.assert_free_of_charge()
        self.assertEqual(self.kinds().count("job_scaled"), 3)
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_more_than_there_are_count_from_the_next_world_on(self):
        launchers = self.start_elastic("2", 2)
        self.wait_for_generation(1, 2)
        self.order("let_go")
        pids = {rank: self.notes("pid")[1, rank] for rank in range(2)}
        self.assertIn("goes on with 2 nodes; the next needs 3", self.answer("scale", "3"))
        self.assertEqual(self.status()["phase"], "running")
        self.assertEqual([is_alive(int(pid)) for pid in pids.values()], [True, True])
        self.answer("restart")
        wait_until(lambda: "2 of 3 joined" in self.status()["reason"], "the wait for a third node")
        launchers.append(self.start(*self.words))
        self.wait_for_generation(2, 3)
        self.assert_free_of_charge()
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])

    def test_ranks_that_were_given_are_as_many(self):
        script = self.script(WORKER)
        words = ["--nnodes=2", f"--master-port={self.port}", "--nproc-per-node=1", "--max-restarts=0"]
        launchers = [self.start(*words, f"--node-rank={rank}", script) for rank in range(2)]
        wait_until(self.job_files, "the job's file")
        self.wait_for_generation(1, 2)
        self.assert_refused(self.fsdpctl("scale", "1:2"), 1, "--rdzv-backend static")
        self.assert_refused(self.fsdpctl("scale", "2:1"), 1, "MIN:MAX: '2:1' is not")
        self.order("end")
        self.assert_all_end_well(launchers[0], launchers[1:])


if __name__ == "__main__":
    main()
