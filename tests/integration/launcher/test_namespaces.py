"""What breaks between machines, in cases of every change: cables, one direction of a link, an agent that is started twice."""

import os
import threading

from events import wait_for_ends
from job_case import is_alive
from namespace_case import NamespaceCase
from unittest_main import main


class NamespacesTest(NamespaceCase):
    def test_row_55_unplugged_machine_is_lost_and_the_others_go_on(self):
        first = self.start_all()
        self.network.unplug(2)
        self.pids(2, range(2))
        self.assertEqual([is_alive(p) for p in first], [False, False, True])  # The third cannot know.
        self.finish_job(*self.nodes[:2])
        self.nodes[2].kill()
        wait_for_ends(first, "the workers of the lost machine to end with their launcher")

    def test_row_67_machine_that_is_not_heard(self):
        self.cut_for_long("from")

    def test_row_67_machine_that_does_not_hear(self):
        self.cut_for_long("to")

    def test_a_refusal_from_another_network_is_believed_once_the_claim_is_not_renewed(self):
        claim = self.dir / "rendezvous.job"
        claim.write_text(f"fsdprun rendezvous, version 1\nlaunch other\naddress {self.network.address(1)}:1\ntoken secret\n"
                         "lease-seconds 100000\nnetwork elsewhere\n")
        written = claim.read_text()
        is_over = threading.Event()

        def renew():
            while not is_over.wait(1):
                os.utime(claim)
        holder = threading.Thread(target=renew)
        holder.start()
        try:
            node = self.node(0, "1:2", "store_type=file,last_call_timeout=0", f"--rdzv-endpoint={self.dir}/rendezvous")
            for _ in range(3):  # For longer than a claim may go without renewal.
                self.wait_for_line(node, "waiting for the coordinator at", str(claim))
            self.assertEqual(claim.read_text(), written)
        finally:
            is_over.set()
            holder.join()
        self.finish_job(node)

    def test_duplicate_agent_is_a_spare(self):
        self.start_all("3")
        duplicate = self.node(1, "3", "", "--max-restarts=2")
        self.wait_for_line(duplicate, "was given other options")  # Who is told so has been admitted.
        self.finish_job(*self.nodes[:3], duplicate)
        self.assertEqual({g for g, _ in self.notes("pid")}, {1})


if __name__ == "__main__":
    main()
