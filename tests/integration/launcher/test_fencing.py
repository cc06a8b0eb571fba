"""A world that was replaced and still runs: what it can reach of the world that has replaced it.

The launcher of the second node is stopped. The coordinator replaces the node after its lease; the worker of the old world
runs on, because only its agent is silent."""

import os
import signal

from events import wait_for_ends
from job_case import JobCase, free_port, is_alive
from unittest_main import main

WORKER = """
    import socket, struct
    class Store:  # of the protocol of torch.distributed.TCPStore, what is needed here
        def __init__(self):
            self.socket = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
            self.socket.sendall(struct.pack("<BI", 0, 0x3C85F7CE))
        def text(self, text):
            return struct.pack("<Q", len(text)) + text.encode()
        def set(self, key):
            self.socket.sendall(b"\\x01" + self.text(key) + self.text("value"))
        def has(self, key):
            self.socket.sendall(b"\\x05" + struct.pack("<Q", 1) + self.text(key))
            answer = self.socket.recv(1)
            return None if answer == b"" else answer == b"\\0"
    store = Store()
    store.set(f"of the start/{RANK}")
    assert store.has(f"of the start/{RANK}")
    note("pid")
    if GENERATION == 1 and RANK == 0:
        live_on()
    if GENERATION == 1:
        wait_for("pid.2.0")
        try:
            store.set("from the old world")
            note("old_store", str(store.has("from the old world")))
        except OSError:
            note("old_store", "None")
        print("from the old world", flush=True)
        note("tried")
        live_on()
    if GENERATION == 2:
        wait_for("tried.1.1")
        note("sees", [store.has(key) for key in ("from the old world", "of the start/0", "of the start/1")])
        live_on()
"""


class FencingTest(JobCase):
    def test_old_world_reaches_nothing_of_the_new_one(self):
        script, port, logs = self.script(WORKER), free_port(), self.dir / "logs"
        nodes = [self.start("--nnodes=1:2", f"--master-port={port}", f"--node-rank={n}", "--max-restarts=1",
                            f"--log-dir={logs / str(n)}", "--rdzv-conf=last_call_timeout=60", script) for n in range(2)]
        old = int(self.wait_for_notes("pid", 1, range(2))[1, 1])
        nodes[1].send_signal(signal.SIGSTOP)
        self.wait_for_notes("pid", 2, [0])
        self.assertTrue(is_alive(old))
        self.wait_for_notes("sees", 2, [0])
        self.assertEqual(self.notes("old_store"), {(1, 1): "None"})  # It was disconnected.
        self.assertEqual(self.notes("sees"), {(2, 0): "[False, True, False]"})
        # The node that comes back is told to end what it still runs, and only then gets a place in a world of two.
        nodes[1].send_signal(signal.SIGCONT)
        wait_for_ends([old], "the worker of the old world to end")
        self.wait_for_notes("pid", 3, range(2))
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
        said = {str(path.relative_to(logs)).split(os.sep, 2)[2]: path.read_text() for path in logs.rglob("stdout.log")}
        self.assertEqual({name for name, text in said.items() if "old world" in text}, {"attempt_0/0/stdout.log"})


if __name__ == "__main__":
    main()
