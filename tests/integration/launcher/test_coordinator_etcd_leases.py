"""What takes its time: leases that are waited for, an etcd that is tried again, and many moments at which a coordinator with
its journal in etcd is killed."""

import shutil
import signal

from coordinator_case import RandomCases
from etcd_case import ETCD, EtcdCase, OtherMachineCase
from job_case import BIN, is_alive, wait_until
from unittest_main import main


class EtcdRandomTest(RandomCases, EtcdCase):
    """Each coordinator has another port than the one before."""


class WaitTest(EtcdCase):
    def test_lease_of_a_process_of_which_nothing_is_known_is_waited_for(self):
        """It ran in a process namespace of its own, as in a container."""
        unshare = self.start("--pid", "--fork", "--kill-child", BIN / "fsdprun", *self.coordinator_words(),
                             binary=shutil.which("unshare"))
        self.wait_for_line(unshare, "coordinator of run id 'kept' at ")
        nodes = self.start_nodes()
        pids = self.pids(1)
        self.end_abruptly(unshare)
        second = self.start(*self.coordinator_words())
        self.wait_for_line(second, "waiting for the end of its lease")
        self.wait_for_line(second, "takes the job over: generation 1, running")
        self.order("end")
        self.assert_all_end_well(second, nodes)
        self.assertEqual(self.notes("pid"), {(1, rank): str(pid) for rank, pid in enumerate(pids)})

    def test_launcher_hosts_nothing_beside_it(self):
        """Nor while it is away."""
        coordinator = self.start_coordinator()
        self.end_abruptly(coordinator)
        usurper = self.start(*self.meeting(), "--nnodes=2", self.script("pass"))
        self.wait_for_line(usurper, "waiting for the coordinator at")
        coordinator = self.start_coordinator()
        self.wait_for_line(coordinator, "1 of 2 joined")
        for process in (usurper, coordinator):
            process.send_signal(signal.SIGTERM)
            self.assertEqual(self.finish(process)[0], 1)

    def test_etcd_that_cannot_be_reached_is_refused_at_the_start(self):
        self.etcd.stop()
        rc, _, err = self.run_job(*self.coordinator_words())
        self.assertEqual(rc, 1)
        self.assertIn("check --journal, and protocol and certificates", err)

    def test_etcd_that_wants_a_certificate_refuses_who_has_none(self):
        self.start_with_tls()
        rc, _, err = self.run_job(*self.coordinator_words(f"--rdzv-conf=protocol=https,cacert={self.ca.crt}"))
        self.assertEqual(rc, 1)
        self.assertIn("etcd at https://", err)


class OnlyEtcdIsCutOffTest(OtherMachineCase):
    def test_coordinator_that_hears_its_nodes_keeps_them_and_orders_nothing(self):
        """They come to its successor when it ends."""
        first = self.start_on(1, *self.coordinator_words())
        nodes = self.start_nodes()
        first_pids = self.pids(1)
        self.network.block(1, ETCD)
        second = self.start_on(2, "--abort-timeout=0", *self.coordinator_words())
        self.wait_for_line(second, "takes the job over: generation 1, running")
        self.order("fail.1.0")
        self.wait_for_line(first, "nothing is ordered before it does")
        self.assertEqual([pid for pid in first_pids[1:] if not is_alive(pid)], [])
        self.assertEqual({generation for generation, _ in self.notes("pid")}, {1})
        self.network.unblock(1, ETCD)
        rc, _, err = self.finish(first)
        self.assertEqual(rc, 1)
        self.assertIn("has taken run id 'kept' over", err)
        wait_until(lambda: any(generation > 1 for generation, _ in self.notes("pid")), "another world")
        self.order("end")
        self.assert_all_end_well(second, nodes)


if __name__ == "__main__":
    main()
