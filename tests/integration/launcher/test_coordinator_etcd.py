"""A coordinator whose journal is in etcd, and that its nodes find there: whoever takes the job over may be anywhere."""

import signal

from coordinator_case import CoordinatorCase, RestartCases
from etcd_case import WARNING, EtcdCase, OtherMachineCase
from unittest_main import main


class EtcdRestartTest(RestartCases, EtcdCase):
    """Each coordinator has another port than the one before."""


class TakeOverTest(EtcdCase):
    def test_second_coordinator_is_refused(self):
        first = self.start_coordinator()
        rc, _, err = self.run_job(*self.coordinator_words())
        self.assertEqual(rc, 1)
        self.assertIn(f"another coordinator uses /journals/kept of etcd at 127.0.0.1:1,127.0.0.1:{self.etcd.port} (process "
                      f"{first.pid} on ", err)
        first.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(first)[0], 1)

    def test_end_of_the_job_is_told_again(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)
        rc, _, err = self.run_job(*self.coordinator_words())
        self.assertEqual(rc, 0, err)
        self.assertIn("is over: all 4 workers exited with 0", err)

    def test_journal_of_another_job_is_refused(self):
        self.end_abruptly(self.start_coordinator())
        self.assert_one_line_error(self.run_job(*self.coordinator_words(nodes=3)), 1, "--nnodes 2", "--nnodes 3")

    def test_coordinator_that_was_stopped_for_too_long_is_replaced_and_ends(self):
        first, nodes = self.start_coordinator(), self.start_nodes()
        pids = self.pids(1)
        first.send_signal(signal.SIGSTOP)
        second = self.start(*self.coordinator_words())
        self.wait_for_line(second, "takes the job over: generation 1, running")
        record = self.etcd.entry("/journals/kept/record")
        first.send_signal(signal.SIGCONT)
        rc, _, err = self.finish(first)
        self.assertEqual(rc, 1)
        self.assertIn(f"another coordinator (process {second.pid} on ", err)
        self.assertIn("has taken run id 'kept' over", err)
        self.assertEqual(self.etcd.entry("/journals/kept/record"), record)
        self.order("end")
        self.assert_all_end_well(second, nodes)
        self.assertEqual(self.notes("pid"), {(1, rank): str(pid) for rank, pid in enumerate(pids)})

    def test_nodes_that_are_there_first_wait_for_the_coordinator(self):
        nodes = self.start_nodes()
        self.wait_for_line(nodes[0], "waiting for a host of run id 'kept'")
        coordinator = self.start_coordinator()
        self.pids(1)
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)


class EtcdIsAwayTest(EtcdCase):
    def test_workers_run_on_and_are_started_again_once_it_is_back(self):
        coordinator, nodes = self.start("--abort-timeout=0", *self.coordinator_words(), env=WARNING), self.start_nodes()
        self.pids(1)
        self.etcd.stop()
        self.order("fail.1.0")
        self.wait_for_line(coordinator, "cannot make sure that no other coordinator has taken run id 'kept' over")
        self.etcd.start()
        self.pids(2)
        self.order("end")
        self.assert_all_end_well(coordinator, nodes)

    def test_a_job_ends_without_it(self):
        coordinator, nodes = self.start_coordinator(), self.start_nodes()
        self.pids(1)
        self.etcd.stop()
        self.order("end")
        rc, _, err = self.finish(coordinator)
        self.assertEqual(rc, 0, err)
        self.assertIn("the end of the job is not in its journal", err)
        for node in nodes:
            self.assertEqual(self.finish(node)[0], 0)


class FixedEndpointTest(EtcdCase):
    """Only the journal is in etcd."""

    def meeting(self):
        return CoordinatorCase.meeting(self)

    def test_workers_that_run_go_on(self):
        RestartCases.test_workers_that_run_go_on(self)

    def test_with_tls(self):
        conf = self.start_with_tls()
        coordinator = self.start_coordinator(f"--rdzv-conf={conf}")
        self.end_abruptly(coordinator)
        coordinator = self.start(*self.coordinator_words(f"--rdzv-conf={conf}"))
        self.wait_for_line(coordinator, "takes the job over")
        coordinator.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(coordinator)[0], 1)


class OtherMachineTest(OtherMachineCase):
    def test_machine_that_is_cut_off_is_replaced_and_what_is_left_there_ends(self):
        first = self.start_on(1, *self.coordinator_words())
        nodes = self.start_nodes()
        pids = self.pids(1)
        self.network.cut(1, "from", "to")
        second = self.start_on(2, *self.coordinator_words())
        self.wait_for_line(second, f"at {self.network.address(2)}:", "takes the job over: generation 1, running")
        self.network.heal(1, "from", "to")
        rc, _, err = self.finish(first)
        self.assertEqual(rc, 1)
        self.assertIn("has taken run id 'kept' over", err)
        self.order("end")
        self.assert_all_end_well(second, nodes)
        self.assertEqual(self.notes("pid"), {(1, rank): str(pid) for rank, pid in enumerate(pids)})


if __name__ == "__main__":
    main()
