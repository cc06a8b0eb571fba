"""TLS between launchers: who gets in, who does not and what each is told. The job that they all meet at goes on."""

import re
import socket
import ssl

import stranger
from certificates import Ca
from job_case import JobCase, free_port, wait_until_listening
from unittest_main import main

WAITER = "note('pid')\nwait_for('go')"
TOKEN = {"FSDPRUN_TOKEN": "right", "LOGLEVEL": "WARNING"}


class TlsCase(JobCase):
    def setUp(self):
        super().setUp()
        self.ca = Ca(self.dir / "pki")
        self.port = free_port()

    def node(self, rank, *options, worker="pass", address="127.0.0.1", nnodes="2", **kwargs):
        kwargs.setdefault("env", TOKEN)
        return self.start(f"--nnodes={nnodes}", f"--master-addr={address}", f"--master-port={self.port}", f"--node-rank={rank}",
                          *options, self.script(worker), **kwargs)

    def assert_all_end_well(self, *nodes):
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)

    def assert_refused(self, node, *words):
        """The launcher ends with 1 and one line that says why."""
        self.assert_one_line_error(self.finish(node), 1, *words)


class TlsTest(TlsCase):
    def test_two_nodes_with_certificates_meet(self):
        self.assert_all_end_well(*[self.node(n, *self.ca.options(f"n{n}")) for n in range(2)])

    def test_a_name_is_verified_as_the_user_gave_it(self):
        self.assert_all_end_well(*[self.node(n, *self.ca.options(f"n{n}", names="DNS:localhost"), address="localhost")
                                   for n in range(2)])

    def test_c10d_and_an_agent_meet(self):
        common = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=day", "--nnodes=3"]
        nodes = [self.start(*common, *self.ca.options(f"n{n}"), self.script("pass"), env=TOKEN) for n in range(2)]
        agent = self.start(*common[1:3], *self.ca.options("agent"), self.script("pass"), binary="fsdp-agent", env=TOKEN)
        self.assert_all_end_well(*nodes, agent)

    def test_two_jobs_at_one_endpoint(self):
        common = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--nnodes=2"]
        worker = self.script("note('id', os.environ['TORCHELASTIC_RUN_ID'])\nwait_for('go')")
        first = [self.start(*common, "--rdzv-id=one", *self.ca.options(f"n{n}"), worker, env=TOKEN) for n in range(2)]
        self.wait_for_notes("id", 1, range(2))
        (self.dir / "go").touch()
        second = [self.start(*common, "--rdzv-id=two", *self.ca.options(f"m{n}"), worker, env=TOKEN) for n in range(2)]
        self.assert_all_end_well(*first, *second)

    def test_a_claim_in_a_file_leads_to_the_address_that_is_verified(self):
        common = ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.dir / 'meet'}", "--rdzv-conf=store_type=file", "--nnodes=2",
                  "--local-addr=127.0.0.1"]
        self.assert_all_end_well(*[self.start(*common, *self.ca.options(f"n{n}"), self.script("pass"), env=TOKEN)
                                   for n in range(2)])

    def test_without_a_ca_the_coordinator_asks_for_no_certificate(self):
        crt, key = self.ca.issue("host")
        host = self.node(0, f"--tls-cert={crt}", f"--tls-key={key}")
        self.assert_all_end_well(self.node(1, f"--tls-ca={self.ca.crt}"), host)

    def test_a_certificate_that_is_replaced_serves_those_who_come_then(self):
        """The CA, too: nothing of the first one is left that would let the second agent in."""
        options = [self.ca.options(f"n{n}") for n in range(2)]
        nodes = [self.node(n, *options[n], "--rdzv-conf=last_call_timeout=1", worker=WAITER, nnodes="2:3",
                           env={**TOKEN, "LOGLEVEL": "INFO"}) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        other = Ca(self.dir / "pki")  # In the place of the first.
        other.issue("n0")
        self.wait_for_line(nodes[0], "new TLS certificates")
        late = self.node(2, *other.options("late"), nnodes="2:3", worker=WAITER)
        self.wait_for_notes("pid", 2, range(3))
        (self.dir / "go").touch()
        self.assert_all_end_well(late, *nodes)


class RefusalTest(TlsCase):
    """A job of two nodes runs and ends well, whatever comes to its port; each is counted."""

    def setUp(self):
        super().setUp()
        self.nodes = []

    def start_job(self, *options_of_all):
        self.nodes = [self.node(n, *(options_of_all or self.ca.options(f"n{n}")), worker=WAITER) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))

    def end_job(self, *refusals):
        """The host counts this many refusals, and names the first, which matches."""
        (self.dir / "go").touch()
        rc, _, err = self.finish(self.nodes[0])
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.finish(self.nodes[1])[0], 0)
        lines = [line for line in err.splitlines() if "refused" in line]
        if refusals:
            self.assertRegex(lines[0], refusals[0])
        counts = [int(n) for line in lines for n in re.findall(r"(\d+) more", line)]
        self.assertEqual(sum("refused a" in line for line in lines) + sum(counts), len(refusals), err)

    def test_a_node_without_tls_is_told_so(self):
        self.start_job()
        self.assert_refused(self.node(1), "speaks TLS", "--tls-ca")
        self.end_job(r"refused a connection from 127\.0\.0\.1:\d+, which speaks no TLS")

    def test_a_node_of_another_machine_without_tls_is_told_so(self):
        """It does not look at the port's holder first."""
        self.start_job()
        agent = self.start("--rdzv-endpoint", f"127.0.0.1:{self.port}", self.script("pass"), binary="fsdp-agent", env=TOKEN)
        self.assert_refused_agent(agent, "speaks TLS", "--tls-ca")
        self.end_job("which speaks no TLS")

    def test_a_node_with_tls_at_a_coordinator_without(self):
        self.start_job("--rdzv-id=none")
        self.assert_refused(self.node(1, *self.ca.options("n2")), "this node speaks TLS", "--tls-cert")
        agent = self.start("--rdzv-endpoint", f"127.0.0.1:{self.port}", *self.ca.options("a"), self.script("pass"),
                           binary="fsdp-agent", env=TOKEN)
        self.assert_refused_agent(agent, "this node speaks TLS", "--tls-cert")
        self.end_job("which speaks TLS", "")

    def assert_refused_agent(self, agent, *words):
        rc, _, err = self.finish(agent)
        self.assertNotEqual(rc, 0)
        for word in words:
            self.assertIn(word, err)

    def test_foreign_certificate_of_a_node(self):
        self.start_job()
        foreign = Ca(self.dir / "foreign")
        crt, key = foreign.issue("n2")
        self.assert_refused(self.node(1, f"--tls-cert={crt}", f"--tls-key={key}", f"--tls-ca={self.ca.crt}"),
                            "certificate of the agent", "no CA that is trusted here has issued it")
        self.end_job(r"refused a call from 127\.0\.0\.1:\d+: the certificate of the agent \(CN = n2\)")

    def test_a_foreign_certificate_is_not_accepted_for_what_is_sent_with_it(self):
        self.start_job()
        crt, key = Ca(self.dir / "foreign").issue("n2")
        own_crt, _ = self.ca.issue("own")
        for others in (self.ca.crt.read_text(), own_crt.read_text() + self.ca.crt.read_text()):
            chain = self.dir / "chain.crt"
            chain.write_text(crt.read_text() + others)
            with stranger.connect(self.port, self.ca.crt, (chain, key)) as client:
                stranger.call(client, stranger.proof("right", "none"))
        self.end_job(r"the certificate of the agent \(CN = n2\)", "")

    def test_a_node_without_a_certificate(self):
        self.start_job()
        self.assert_refused(self.node(1, f"--tls-ca={self.ca.crt}"), "give it --tls-cert and --tls-key")
        self.end_job("has shown none")

    def test_coordinator_of_a_foreign_ca(self):
        """The node itself refuses: its call is never made."""
        self.start_job()
        foreign = Ca(self.dir / "foreign")
        self.assert_refused(self.node(1, *foreign.options("n2")), "certificate of the coordinator", "no CA that is trusted here")
        self.end_job()

    def test_coordinator_with_the_certificate_of_another_host(self):
        host = self.node(0, *self.ca.options("n0", names="DNS:elsewhere,IP:10.0.0.9"))
        wait_until_listening(self.port)
        self.assert_refused(self.node(1, *self.ca.options("n1")), "it is for elsewhere, 10.0.0.9, not for 127.0.0.1")
        host.terminate()
        self.finish(host)

    def test_expired_certificate_of_a_client(self):
        self.start_job()
        pair = self.ca.issue("old", days=-1)
        with stranger.connect(self.port, self.ca.crt, pair) as client:
            stranger.call(client, stranger.proof("right", "none"))
        self.end_job("expired")

    def test_wrong_token_and_none(self):
        self.start_job()
        pair = self.ca.issue("stranger")
        with stranger.connect(self.port, self.ca.crt, pair) as client:
            stranger.call(client, stranger.proof("wrong", "none"))
        with stranger.connect(self.port, self.ca.crt, pair) as client:
            stranger.call(client)
        self.end_job("without the job's token", "")

    def test_half_open_clients(self):
        """One stops in the middle of the handshake, one after it."""
        self.start_job()
        pair = self.ca.issue("stranger")
        with socket.create_connection(("127.0.0.1", self.port)) as half, stranger.connect(self.port, self.ca.crt, pair) as silent:
            half.sendall(b"\x16\x03\x01\x02\x00")
            for connection in (half, silent):
                connection.settimeout(None)
                try:
                    while connection.recv(4096):
                        pass
                except (ConnectionError, ssl.SSLError):
                    pass
        self.end_job("that made no call within 5 s", "")

    def test_oversized_message(self):
        self.start_job()
        pair = self.ca.issue("stranger")
        with stranger.connect(self.port, self.ca.crt, pair) as client:
            heard = stranger.call(client, stranger.proof("right", "none"), stranger.too_long("none", 3 << 19))
        self.assertTrue(stranger.ends(heard))
        self.end_job(r"refused a message of \d+ bytes")

    def test_an_incarnation_that_nobody_knows(self):
        """As of an agent that was replaced meanwhile: its message counts for nothing."""
        self.env["LOGLEVEL"] = "INFO"
        self.nodes = [self.node(n, *self.ca.options(f"n{n}"), worker=WAITER, env={"FSDPRUN_TOKEN": "right"}) for n in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        with stranger.connect(self.port, self.ca.crt, self.ca.issue("stranger")) as client:
            heard = stranger.call(client, stranger.proof("right", "none"), stranger.heartbeat("none", 7, 1), until=b"declared lost")
        self.assertIn(b"declared lost", heard)
        (self.dir / "go").touch()
        rc, _, err = self.finish(self.nodes[0])
        self.assertEqual(rc, 0, err)
        self.assertRegex(err, r"refused [1-9]\d* messages of agents or worlds that were replaced")
        self.assertEqual(self.finish(self.nodes[1])[0], 0)


class BadFilesTest(TlsCase):
    def refused(self, *options):
        return self.run_job("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={self.port}", *options,
                            self.script("note('started')"), env=TOKEN)

    def tearDown(self):
        self.assertEqual(self.notes("started"), {})
        super().tearDown()

    def test_files_that_cannot_be_used(self):
        crt, key = self.ca.issue("n0")
        other_crt, other_key = self.ca.issue("other")
        old_crt, old_key = self.ca.issue("old", days=-1)
        text, locked = self.dir / "text", self.dir / "locked.key"
        text.write_text("no PEM\n")
        locked.write_text(key.read_text())
        locked.chmod(0o644)
        none = self.dir / "none"
        for cert_file, key_file, ca_file, *words in (
                (none, key, self.ca.crt, "--tls-cert", none, "No such file"),
                (crt, none, self.ca.crt, "--tls-key", none, "No such file"),
                (crt, key, none, "--tls-ca", none, "No such file"),
                (text, key, self.ca.crt, "--tls-cert", text, "no certificate in PEM"),
                (crt, text, self.ca.crt, "--tls-key", "every user", "chmod 600"),
                (crt, crt, self.ca.crt, "--tls-key", crt),
                (crt, key, text, "--tls-ca", text, "no certificate in PEM"),
                (self.dir, key, self.ca.crt, "--tls-cert", "is no file"),
                (crt, other_key, self.ca.crt, "--tls-key", "is not the key of the certificate", crt),
                (crt, locked, self.ca.crt, "--tls-key", locked, "every user", "chmod 600"),
                (old_crt, old_key, self.ca.crt, "--tls-cert", old_crt, "expired on")):
            with self.subTest(words=words):
                result = self.refused(f"--tls-cert={cert_file}", f"--tls-key={key_file}", f"--tls-ca={ca_file}")
                self.assert_one_line_error(result, 1, *words)

    def test_a_certificate_without_its_key(self):
        crt, key = self.ca.issue("n0")
        for option in (f"--tls-cert={crt}", f"--tls-key={key}"):
            self.assert_one_line_error(self.refused(option), 1, "--tls-cert and --tls-key", "together")

    def test_a_host_without_a_certificate(self):
        self.assert_one_line_error(self.refused(f"--tls-ca={self.ca.crt}"), 1, "hosts the coordinator", "--tls-cert")

    def test_variables_and_dry_run(self):
        crt, key = self.ca.issue("n0")
        env = {"PET_TLS_CERT": str(crt), "PET_TLS_KEY": str(key), "PET_TLS_CA": str(self.ca.crt)}
        rc, out, _ = self.run_job("--nnodes=2", "--dry-run", self.script("pass"), env=env)
        self.assertEqual(rc, 0)
        self.assertIn(f"tls_cert: {crt}\ntls_key: {key}\ntls_ca: {self.ca.crt}\n", out)


class NoTokenTest(TlsCase):
    def test_anybody_may_join_and_it_is_said(self):
        nodes = [self.node(0, "--no-token"), self.node(1, "--no-token", env={"FSDPRUN_TOKEN": "another", "LOGLEVEL": "WARNING"})]
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
            self.assertIn("--no-token: whoever can connect", err)

    def test_a_node_with_a_token_may_join_who_takes_anybody(self):
        self.assert_all_end_well(self.node(0, "--no-token"), self.node(1))

    def test_a_node_without_a_token_is_refused_where_one_is_asked_for(self):
        host = self.node(0)
        wait_until_listening(self.port)
        rc, _, err = self.finish(self.node(1, "--no-token"))
        self.assertEqual(rc, 1)
        self.assertIn("token is missing or wrong", err)
        self.assert_all_end_well(self.node(1), host)

    def test_what_stands_for_no_token_is_none(self):
        result = self.run_job("--nnodes=2", f"--master-port={self.port}", self.script("pass"), env={"FSDPRUN_TOKEN": "(no token)"})
        self.assert_one_line_error(result, 1, "FSDPRUN_TOKEN", "--no-token")

    def test_no_token_and_a_file_of_it(self):
        result = self.run_job("--no-token", "--token-file=/x", self.script("pass"))
        self.assert_one_line_error(result, 1, "--no-token", "--token-file")


if __name__ == "__main__":
    main()
