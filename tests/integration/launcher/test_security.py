"""The token, and strangers on the coordinator's port."""

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import stat
import time

from events import patience, wait_for_files
from job_case import JobCase, free_port, wait_until_listening
from unittest_main import main

WAITER = "note('pid')\nwait_for('go')"


def has_headers(sent):
    """Whether a HEADERS frame that ends the headers has come (RFC 9113, 6.2), after the preface."""
    at = 24
    while at + 9 <= len(sent):
        end = at + 9 + int.from_bytes(sent[at:at + 3], "big")
        if sent[at + 3] == 1 and sent[at + 4] & 4:
            return end <= len(sent)
        at = end
    return False


class SecurityTest(JobCase):
    def token_files(self):
        return list((self.dir / "run").rglob("*.token"))

    def setUp(self):
        super().setUp()
        (self.dir / "run").mkdir(mode=0o700)
        self.env["XDG_RUNTIME_DIR"] = str(self.dir / "run")
        # Without a place for a secret of the user, a job of one machine has a token in a file.
        self.env.update(HOME="", XDG_CONFIG_HOME="")

    def test_address_on_the_network_needs_a_token(self):
        result = self.run_job("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=192.0.2.1:29400", self.script("pass"))
        self.assert_one_line_error(result, 1, "192.0.2.1", "HOME is not set", "FSDPRUN_TOKEN")

    def test_token_file_is_private_and_removed(self):
        script, port = self.script(WAITER), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        (path,) = self.token_files()
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(path.parent.stat().st_mode), 0o700)
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])
        self.assertEqual(self.token_files(), [])

    def test_open_token_folder_is_refused(self):
        folder = self.dir / "run" / "fsdprun"
        folder.mkdir()
        folder.chmod(0o777)
        result = self.run_job("--nnodes=2", f"--master-port={free_port()}", self.script("pass"))
        self.assert_one_line_error(result, 1, folder, "not a private directory")

    def test_token_folder_may_be_no_link(self):
        (self.dir / "elsewhere").mkdir(mode=0o700)
        (self.dir / "run" / "fsdprun").symlink_to(self.dir / "elsewhere")
        result = self.run_job("--nnodes=2", f"--master-port={free_port()}", self.script("pass"))
        self.assert_one_line_error(result, 1, "not a private directory")

    def test_token_of_a_dead_launcher_is_replaced(self):
        script, port = self.script(WAITER), free_port()
        (self.dir / "run" / "fsdprun").mkdir(mode=0o700)
        first = self.start("--nnodes=2", f"--master-port={port}", script)
        wait_for_files(self.token_files, self.dir / "run" / "fsdprun", "the token file")
        first.kill()
        first.wait()
        (self.dir / "go").touch()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_wrong_token(self):
        script, port = self.script("pass"), free_port()
        host = self.start("--nnodes=2", f"--master-port={port}", script, env={"FSDPRUN_TOKEN": "right"})
        rc, _, err = self.run_job("--nnodes=2", f"--master-port={port}", "--node-rank=1", script,
                                  env={"FSDPRUN_TOKEN": "wrong"})
        self.assertEqual(rc, 1)
        self.assertIn("token", err)
        self.assertIn("FSDPRUN_TOKEN", err)
        rc, _, err = self.run_job("--nnodes=2", f"--master-port={port}", "--node-rank=1", script,
                                  env={"FSDPRUN_TOKEN": "right"})
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.finish(host)[0], 0)

    def test_token_from_a_file(self):
        script, port = self.script("pass"), free_port()
        (self.dir / "secret").write_text("text of the token\n")
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", "--token-file", self.dir / "secret",
                            script) for n in range(2)]
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_another_run_id_of_a_static_job_is_told_so(self):
        script, port = self.script("pass"), free_port()
        args = ["--nnodes=2", f"--master-port={port}"]
        host = self.start(*args, "--rdzv-id=one", script, env={"FSDPRUN_TOKEN": "t"})
        wait_until_listening(port)
        rc, _, err = self.run_job(*args, "--node-rank=1", "--rdzv-id=two", script, env={"FSDPRUN_TOKEN": "t"})
        self.assertEqual(rc, 1)
        self.assertIn("'one'", err)
        self.assertIn("'two'", err)
        self.assertIsNone(host.poll())

    def test_garbage_on_the_port_does_no_harm(self):
        script, port = self.script(WAITER), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(4096),
                        b"\x16\x03\x01" + os.urandom(100), os.urandom(4096), b"\x00" * 64):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(garbage)
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_silent_strangers_are_hung_up_on(self):
        script, port = self.script(WAITER), free_port()
        nodes = [self.start("--nnodes=2", f"--master-port={port}", f"--node-rank={n}", script) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
        strangers = {hello: socket.create_connection(("127.0.0.1", port)) for hello in (b"P", preface, b"", b"\x16\x03\x01")}
        for hello, stranger in strangers.items():
            stranger.sendall(hello)
        while strangers:
            ready = select.select(list(strangers.values()), [], [], patience())[0]
            self.assertTrue(ready, f"still connected: {list(strangers)}")
            for stranger in ready:
                data = stranger.recv(4096)
                if not data:
                    strangers = {h: s for h, s in strangers.items() if s is not stranger}
                    stranger.close()
                # A stranger that speaks HTTP/2 well enough to keep the connection alive.
                for at in [i for i in range(len(data) - 16) if data[i:i + 5] == b"\0\0\x08\x06\0"]:
                    stranger.sendall(data[at:at + 4] + b"\1" + data[at + 5:at + 17])
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])

    def test_refusals_do_not_fill_the_log(self):
        script, port = self.script("pass"), free_port()
        host = self.start("--nnodes=2", f"--master-port={port}", script, env={"FSDPRUN_TOKEN": "right", "LOGLEVEL": "WARNING"})
        join = ["--nnodes=2", f"--master-port={port}", "--node-rank=1", script]
        started = time.monotonic()
        strangers = [self.start(*join, env={"FSDPRUN_TOKEN": "wrong"}) for _ in range(4)]
        for stranger in strangers:
            rc, _, err = self.finish(stranger)
            self.assertEqual(rc, 1)
            self.assertIn("token", err)
        self.assertEqual(self.run_job(*join, env={"FSDPRUN_TOKEN": "right"})[0], 0)
        rc, _, err = self.finish(host)
        took = time.monotonic() - started
        lines = [line for line in err.splitlines() if "refused" in line]
        self.assertEqual(rc, 0, err)
        self.assertRegex(lines[0], r"refused a call from 127\.0\.0\.1:\d+ without the job's token")
        # At most one line in ten seconds, and none of the four is forgotten: `and N more` or a line of its own.
        counts = [int(n) for line in lines for n in re.findall(r"(\d+) more", line)]
        named = sum("refused a call from" in line for line in lines)
        self.assertEqual(named + sum(counts), 4, err)
        self.assertLessEqual(named, 1 + took / 10, err)

    def test_agent_program_joins_and_leaves_with_the_job(self):
        script, port = self.script("note('rank')"), free_port()
        agent = self.start("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id=day", "--nproc-per-node=2", script,
                           binary="fsdp-agent")
        host = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day", script)
        for launcher in (host, agent):
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, 0, err)
        self.assertEqual(set(self.notes("rank")), {(1, r) for r in range(3)})


class UserSecretTest(JobCase):
    """Nodes that share a home directory need no token."""

    def run_two(self, *homes):
        """The exit codes and errors of two nodes, each with a home of its own if two are given."""
        args, script = ["--nnodes=2", f"--master-port={free_port()}"], self.script("pass")
        nodes = [self.start(*args, f"--node-rank={n}", script, env={"XDG_CONFIG_HOME": str(self.dir / home)})
                 for n, home in enumerate(homes)]
        second = self.finish(nodes[1])
        if second[0] != 0:
            nodes[0].send_signal(signal.SIGTERM)  # It waits for another.
        return [self.finish(nodes[0]), second]

    def test_nodes_with_one_home_need_no_token(self):
        for _ in range(2):  # The second time the secret is there.
            self.assertEqual([rc for rc, _, _ in self.run_two("home", "home")], [0, 0])
        secret = self.dir / "home" / "fsdprun" / "secret"
        self.assertEqual(stat.S_IMODE(secret.stat().st_mode), 0o600)
        self.assertEqual(list(secret.parent.iterdir()), [secret])

    def test_a_node_with_another_home_is_told_what_to_do(self):
        rc, _, err = self.run_two("home", "elsewhere")[1]
        self.assertEqual(rc, 1)
        for word in ("token", str(self.dir / "elsewhere/fsdprun/secret"), "copy that file", "FSDPRUN_TOKEN"):
            self.assertIn(word, err)
        shutil.copy(self.dir / "home/fsdprun/secret", self.dir / "elsewhere/fsdprun/secret")
        self.assertEqual([rc for rc, _, _ in self.run_two("home", "elsewhere")], [0, 0])

    def test_the_secret_is_not_told_to_who_listens_at_the_endpoint(self):
        """A stranger that got there first, and speaks HTTP/2 well enough to be called."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(patience())
            for binary, first in (("fsdp-agent", ["--rdzv-endpoint"]), ("fsdprun", [
                    "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-conf=is_host=0", "--rdzv-endpoint"])):
                with self.subTest(binary=binary):
                    node = self.start(*first, f"127.0.0.1:{listener.getsockname()[1]}", "--rdzv-id=day", self.script("pass"),
                                      binary=binary, env={"XDG_CONFIG_HOME": str(self.dir)})
                    heard = self.hear_call(listener)
                    node.kill()
                    self.assertNotIn((self.dir / "fsdprun" / "secret").read_text().strip().encode(), heard)
                    self.assertIn(b"/fsdprun.v1.Coordinator/Attach", heard)
                    self.assertIn(b"fsdprun-proof", heard)

    def hear_call(self, listener):
        """What the first who makes a call sends, up to the end of the call's headers."""
        while True:  # Others only look who listens.
            caller, _ = listener.accept()
            with caller, contextlib.suppress(ConnectionError):
                caller.settimeout(patience())
                caller.sendall(b"\0\0\0\4\0\0\0\0\0")  # Our settings, which it waits for.
                heard = b""
                while data := caller.recv(4096):
                    heard += data
                    if has_headers(heard):
                        return heard

    def test_a_secret_that_others_can_read_is_refused(self):
        secret = self.dir / "config" / "fsdprun" / "secret"
        secret.parent.mkdir(parents=True)
        secret.write_text("a" * 64)
        secret.chmod(0o644)
        result = self.run_job("--nnodes=2", f"--master-port={free_port()}", self.script("pass"))
        self.assert_one_line_error(result, 1, secret, "by other users", "remove it")


if __name__ == "__main__":
    main()
