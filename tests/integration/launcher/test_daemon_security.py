"""Who may give orders to a daemon, and what others learn."""

import contextlib
import os
import pathlib
import select
import socket
import stat
import subprocess

from certificates import LOCAL, Ca
from daemon_case import DaemonCase, family
from events import patience
from job_case import free_port
from unittest_main import main


class TokenTest(DaemonCase):
    def test_without_a_token_nobody_else_may_connect(self):
        for address in ("0.0.0.0", "[::]", "192.0.2.1"):
            with self.subTest(address):
                words = self.daemon_words(free_port(), "--no-token", f"--listen={address}:{free_port()}")
                result = self.run_job(*words, binary="fsdp-agent", env={"LOGLEVEL": "ERROR"})
                self.assert_one_line_error(result, 2, "--no-token", "--listen 127.0.0.1", "or a token")
        result = self.run_job(*self.daemon_words(free_port()), binary="fsdp-agent", env={"HOME": "", "XDG_CONFIG_HOME": ""})
        self.assert_one_line_error(result, 2, "a daemon needs a token", "FSDPRUN_TOKEN")

    def test_without_a_token_on_this_machine(self):
        port = self.start_daemon("--no-token")
        code, _, err = self.finish(self.start_job([port], "--no-token", self.script("note('ran')")))
        self.assertEqual((code, set(self.notes("ran"))), (0, {(1, 0)}), err)

    def test_another_token_is_refused_and_counted(self):
        port = self.start_daemon(env={"FSDPRUN_TOKEN": "a", "LOGLEVEL": "WARNING"})
        code, _, err = self.finish(self.start_job([port], self.script("note('ran')"), env={"FSDPRUN_TOKEN": "b"}))
        self.assertEqual((code, self.notes("ran")), (1, {}))
        self.assertIn("the job's token is missing or wrong", err)
        self.wait_for_line(self.daemons[port], "refused", "without the job's token")

    def test_nothing_is_told_to_who_does_not_prove_the_token(self):
        """An impostor that takes every call: a daemon without a token, behind a relay that hears all."""
        code, err, heard = self.order_through_relay(self.start_daemon("--no-token"))
        self.assertEqual((code, self.notes("ran")), (1, {}), err)
        self.assertIn("does not prove that it has this token, and was told nothing", err)
        self.assertIn(b"fsdprun-proof", heard)

    def test_nothing_of_an_order_is_read_by_who_passes_it_on(self):
        """Who has a launcher's port, and the daemon behind it do the proving."""
        code, err, heard = self.order_through_relay(self.start_daemon(env={"FSDPRUN_TOKEN": "of the user"}))
        self.assertEqual((code, list(self.notes("ran").values())), (0, ["a secret of the environment"]), err)
        self.assertIn(b"fsdprun-proof", heard)

    def order_through_relay(self, port):
        """A job of the daemon at this port: its code, what its launcher says, and what that has sent, which is nothing of the order."""
        secret = "a secret of the environment"
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            launcher = self.start_job([listener.getsockname()[1]], self.script("note('ran', os.environ['MY_PASSWORD'])"),
                                      env={"FSDPRUN_TOKEN": "of the user", "MY_PASSWORD": secret})
            heard = self.relay(listener.accept()[0], port)
        code, _, err = self.finish(launcher)
        for word in (b"of the user", secret.encode(), b"worker.py"):
            self.assertNotIn(word, heard)
        return code, err, heard

    def relay(self, caller, port):
        """What the caller says until the end of the connection."""
        heard = b""
        with caller, socket.create_connection(("127.0.0.1", port)) as onward, contextlib.suppress(ConnectionError):
            while True:
                for one, other in ((caller, onward), (onward, caller)):
                    if one in select.select([caller, onward], [], [], patience())[0]:
                        data = one.recv(65536)
                        if not data:
                            return heard
                        heard += data if one is caller else b""
                        other.sendall(data)
        return heard

    def test_secrets_are_in_no_process_list_and_no_open_file(self):
        port = self.start_daemon(env={"FSDPRUN_TOKEN": "the token of all"})
        body = """
            words = b"".join(path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.parent.exists())
            note("seen", b"the token of all" in words)
            note("own", "the token of all" in str(os.environ))
            wait_for("go")
        """
        launcher = self.start_job([port], self.script(body), env={"FSDPRUN_TOKEN": "the token of all"})
        self.wait_for_notes("own", 1, range(1))
        modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in [self.folder_of(port), *self.folder_of(port).rglob("*")]}
        self.assertEqual((modes, self.notes("seen")[1, 0], self.notes("own")[1, 0]), ({0}, "False", "False"))
        (alive,) = self.folder_of(port).glob("*/alive")
        for pid in family([int(alive.read_text().split()[0])]):
            self.assertNotIn(b"the token of all", pathlib.Path(f"/proc/{pid}/environ").read_bytes())
        (specs,) = [path.read_bytes() for path in self.folder_of(port).rglob("spec")]
        self.assertNotIn(b"the token of all", specs)
        (self.dir / "go").touch()
        self.assertEqual(self.finish(launcher)[0], 0)

    def test_a_folder_that_others_can_read_is_refused(self):
        port = free_port()
        self.folder_of(port).mkdir()
        self.folder_of(port).chmod(0o755)
        result = self.run_job(*self.daemon_words(port), binary="fsdp-agent")
        self.assert_one_line_error(result, 2, self.folder_of(port), "mode 700")

    def test_the_largest_environment_that_a_program_may_have_fits_an_order(self):
        port = self.start_daemon()
        big = {f"BIG_{i}": "x" * 120_000 for i in range(14)}
        script = self.script("note('seen', sum(len(value) for name, value in os.environ.items() if name.startswith('BIG_')))")
        code, _, err = self.finish(self.start_job([port], script, env=big))
        self.assertEqual((code, self.notes("seen")), (0, {(1, 0): str(14 * 120_000)}), err)

    def test_strangers_are_hung_up_on(self):
        port = self.start_daemon()
        with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as garbage:
            garbage.sendall(os.urandom(4096))
            for stranger in (silent, garbage):
                stranger.settimeout(patience())
                with contextlib.suppress(ConnectionError):
                    while stranger.recv(4096):
                        pass
        code, _, err = self.finish(self.start_job([port], self.script("pass")))
        self.assertEqual(code, 0, err)


def own_names():
    """For the certificate of a launcher, whose coordinator is reached at any address of this machine."""
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return ",".join([LOCAL, *(f"IP:{address}" for address in own)])


class TlsTest(DaemonCase):
    def setUp(self):
        super().setUp()
        self.ca = Ca(self.dir / "ca")

    def test_mutual_tls(self):
        port = self.start_daemon(*self.ca.options("daemon"))
        code, _, err = self.finish(self.start_job([port], *self.ca.options("launcher", names=own_names()), self.script("note('ran')")))
        self.assertEqual((code, set(self.notes("ran"))), (0, {(1, 0)}), err)

    def test_without_tls_or_with_a_foreign_certificate(self):
        port = self.start_daemon(*self.ca.options("daemon"))
        foreign = Ca(self.dir / "foreign")
        crt, key = foreign.issue("launcher")
        for options, words in (([], "speaks TLS"),
                               (foreign.options("other"), "certificate"),
                               ([f"--tls-cert={crt}", f"--tls-key={key}", f"--tls-ca={self.ca.crt}"], "certificate")):
            with self.subTest(words):
                code, _, err = self.finish(self.start_job([port], *options, self.script("note('ran')")))
                self.assertEqual((code, self.notes("ran")), (1, {}), err)
                self.assertIn(words, err)

    def test_a_daemon_with_the_certificate_of_another_host(self):
        port = self.start_daemon(*self.ca.options("daemon", names="DNS:elsewhere"))
        code, _, err = self.finish(self.start_job([port], *self.ca.options("launcher", names=own_names()), self.script("note('ran')")))
        self.assertEqual((code, self.notes("ran")), (1, {}), err)
        self.assertIn("127.0.0.1", err)


if __name__ == "__main__":
    main()
