"""What breaks between machines, in cases that take longer: agents that hang or are started again, long partitions, slow links."""

import os
import signal
import time

from events import wait_for_ends
from job_case import JobCase, free_port, is_alive, wait_until
from namespace_case import NamespaceCase
from unittest_main import main


class PartitionsTest(NamespaceCase):
    def test_row_67_unplugged_machine_ends_its_workers(self):
        first = self.start_all()
        self.network.unplug(2)
        self.pids(2, range(2))
        wait_for_ends([first[2]], "the worker of the lost machine to end")  # after 30 s
        rc, _, err = self.finish(self.nodes[2])
        self.assertEqual(rc, 1, err)
        self.assertIn("could not reach it again within 30 s", err)
        self.finish_job(*self.nodes[:2])

    def test_row_67_machine_that_neither_hears_nor_is_heard(self):
        self.cut_for_long("from", "to")

    def test_row_67_three_seconds_without_network_cost_nothing_with_torchruns_lease(self):
        self.start_all(conf="keep_alive_interval=5")
        self.network.cut(2, "from", "to")
        time.sleep(3)  # the fault itself
        self.network.heal(2, "from", "to")
        time.sleep(8)  # The old connection takes its time to send again.
        self.assertEqual({g for g, _ in self.notes("pid")}, {1})
        self.finish_job(*self.nodes)

    def test_the_coordinators_lease_counts_on_nodes_that_were_told_of_none(self):
        for n, conf in enumerate(("keep_alive_interval=20", "", "")):
            self.node(n, conf=conf)
        self.pids(1, range(3))
        for node in self.nodes[:2]:
            node.send_signal(signal.SIGSTOP)
        # The fault: by default an agent (2) waits for 30 s for its coordinator, and a keeper (1) for 35 s for its agent.
        time.sleep(38)
        for node in self.nodes[:2]:
            node.send_signal(signal.SIGCONT)
        self.finish_job(*self.nodes)
        self.assertEqual({g for g, _ in self.notes("pid")}, {1})

    def test_hung_agent_is_replaced_and_comes_back_clean(self):
        first = self.start_all()
        self.nodes[1].send_signal(signal.SIGSTOP)
        self.pids(2, range(2))
        self.assertEqual(self.machines(2), {0: "0", 1: "2"})
        self.assertTrue(is_alive(first[1]))
        self.nodes[1].send_signal(signal.SIGCONT)
        self.pids(3, range(3))
        self.assertFalse(is_alive(first[1]))
        self.finish_job(*self.nodes)

    def test_restarted_agent_takes_the_place_of_the_old_one(self):
        first = self.start_all("3")
        self.nodes[1].kill()
        replacement = self.node(1, "3")
        self.pids(2, range(3))
        self.assertEqual([p for p in first if is_alive(p)], [])
        self.finish_job(self.nodes[0], self.nodes[2], replacement)

    def test_slow_machine_takes_part_in_everything(self):
        first = self.start_all()
        self.network.slow_down(2)
        os.kill(first[2], signal.SIGKILL)
        self.pids(2, range(3))
        self.finish_job(*self.nodes)
        self.assertEqual({g for g, _ in self.notes("pid")}, {1, 2})


class StoppedHostTest(JobCase):
    def node(self, conf, endpoint, run_id="job", kind="pid"):
        return self.start("--nnodes=1:2", "--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-conf={conf}",
                          f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run_id}", self.script(f"note({kind!r})\nwait_for('go')"))

    def assert_gives_way(self, *place, comes_after_s):
        stopped = self.node(*place)
        pid = self.wait_for_notes("pid", 1, range(1))[1, 0]
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(comes_after_s)  # the fault itself
        second = self.node(*place)
        wait_for_ends([int(pid)], "the worker of the host that does not run to end")  # after 35 s
        wait_until(lambda: self.notes("pid")[1, 0] != pid, "the second launcher to host the job")  # after 40 s
        stopped.send_signal(signal.SIGCONT)
        rc, _, err = self.finish(stopped)
        self.assertEqual(rc, 1, err)
        self.assertIn("another launcher has taken the run id meanwhile", err)
        (self.dir / "go").touch()
        rc, _, err = self.finish(second)
        self.assertEqual(rc, 0, err)
        self.assertEqual({generation for generation, _ in self.notes("pid")}, {1})

    def test_a_host_that_was_given_up_gives_way_to_who_has_taken_its_place(self):
        self.assert_gives_way("store_type=file,last_call_timeout=0", self.dir / "rendezvous", comes_after_s=0)

    def test_a_host_that_was_given_up_at_the_endpoint_of_another_job_gives_way(self):
        place = ("last_call_timeout=0", f"localhost:{free_port()}")
        holder = self.node(*place, run_id="other", kind="other")
        self.wait_for_notes("other", 1, range(1))
        # Who has been told of a host waits for it: 3 s until its silence is noticed, and 40 s for its run id.
        self.assert_gives_way(*place, comes_after_s=45)
        self.assertEqual(self.finish(holder)[0], 0)


if __name__ == "__main__":
    main()
