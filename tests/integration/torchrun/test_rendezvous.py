"""PyTorch's elastic/rendezvous tests: what a user of the command line sees of them.

DynamicRendezvousTest: dynamic_rendezvous_test.py. C10dRendezvousBackendTest: c10d_rendezvous_backend_test.py.
StaticRendezvousTest: static_rendezvous_test.py. UtilsTest: utils_test.py. ApiTest: api_test.py.
"""

import os
import signal
import socket
import time

from compat_case import CompatCase, free_port, fsdprun_only, is_connected, main, soak, wait_until, wait_until_listening

RUN = """
echo $$ > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$WORLD_SIZE.$RANK"
wait_for finish
"""
LEASE = "keep_alive_interval=1,keep_alive_max_attempt=2"


class RendezvousCase(CompatCase):
    def c10d(self, conf="", endpoint=None, nnodes="1", run_id="test"):
        endpoint = endpoint if endpoint is not None else f"localhost:{free_port()}"
        return [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run_id}", f"--rdzv-conf={conf}",
                "--no-python"]

    def forget(self, pattern):
        for path in self.dir.glob(pattern):
            path.unlink()


class DynamicRendezvousTest(RendezvousCase):
    def test_all_nodes_join_rendezvous(self):
        """row_51: with the greatest number of nodes nobody waits for the last call."""
        words = [*self.c10d("last_call_timeout=600,join_timeout=60", nnodes="1:3"), self.bash_probe(), str(self.files)]
        for result in self.run_jobs(words, words, words, env={"OMP_NUM_THREADS": "1"}):
            self.assert_success(result)
        self.assert_world(3)

    def test_min_nodes_start_after_the_last_call(self):
        begin = time.monotonic()
        self.assert_success(self.run_job(*self.c10d("last_call_timeout=2,join_timeout=60", nnodes="1:2"), self.bash_probe(), str(self.files),
                                         env={"OMP_NUM_THREADS": "1"}))
        self.assertGreaterEqual(time.monotonic() - begin, 2)
        self.assert_world(1)

    def test_join_timeout(self):
        """row_52. The message says how many are missing."""
        begin = time.monotonic()
        result = self.run_job(*self.c10d("join_timeout=1", nnodes="2"), "true")
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.assertEqual(result[0], 1, result[2])

    def test_late_node_waits(self):
        """A node that comes while a full job runs is a spare: its workers do not run."""
        command = [*self.c10d("join_timeout=60", nnodes="1"), self.program(RUN)]
        first = self.start(*command)
        self.wait_for("runs.1.0")
        if self.launcher == "fsdprun":
            return self.one_node_jobs_have_no_endpoint(first, command)
        self.start(*command)
        (self.dir / "finish").touch()
        self.assert_success(self.finish(first))

    def one_node_jobs_have_no_endpoint(self, first, command):
        """A job of one node meets nobody: a second one is a job of its own."""
        self.forget("runs.*")
        second = self.start(*command)
        self.wait_for("runs.1.0")
        (self.dir / "finish").touch()
        for process in (first, second):
            self.assert_success(self.finish(process))

    def spare(self):
        port = free_port()
        command = [*self.c10d(f"join_timeout=60,{LEASE}", f"localhost:{port}", nnodes="2"), "--max-restarts=2", self.program(RUN)]
        nodes = [self.start(*command)]
        self.wait_for_entries(self.dir / "tmp", 1)
        nodes.append(self.start(*command))
        self.wait_for("runs.2.0", "runs.2.1")
        spare = self.start(*command)
        wait_until(lambda: is_connected(spare.pid, port), "the spare to connect")
        return nodes, spare

    def test_redundancy_list(self):
        """A spare that was not needed ends with 0."""
        nodes, spare = self.spare()
        # Nothing tells that it was let in, after which it cannot miss the end: the job makes another round first.
        worker = int(self.lines("runs.2.0")[0])
        self.forget("runs.2.*")
        os.kill(worker, signal.SIGKILL)
        self.wait_for("runs.2.0", "runs.2.1")
        (self.dir / "finish").touch()
        for process in (*nodes, spare):
            self.assert_success(self.finish(process))

    def test_redundancy_transition_to_wait_list_then_join_rendezvous(self):
        """row_58: the spare takes the place of a node that is killed."""
        nodes, spare = self.spare()
        self.forget("runs.*")
        nodes[1].kill()
        nodes[1].wait()
        self.wait_for("runs.2.0", "runs.2.1")
        (self.dir / "finish").touch()
        for process in (nodes[0], spare):
            self.assert_success(self.finish(process))

    def use_agent_store(self, env=None):
        self.assert_success(self.run_job(*self.c10d(), self.dump(), env=env))
        return self.environments()[0]

    def test_use_agent_store_is_true_by_default(self):
        self.assertEqual(self.use_agent_store()["TORCHELASTIC_USE_AGENT_STORE"], "True")

    def test_use_agent_store_is_disabled(self):
        self.assertEqual(self.use_agent_store({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})["TORCHELASTIC_USE_AGENT_STORE"], "False")

    def test_share_tcp_store_from_backend(self):
        """Who connects to MASTER_ADDR:MASTER_PORT reaches a store that is there before the worker."""
        script = self.program('exec 5<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT" && echo > "$D/connected"')
        self.assert_success(self.run_job(*self.c10d(), script))
        self.assertTrue((self.dir / "connected").exists())

    def test_share_tcp_store_is_disabled(self):
        """Rank 0 may listen at MASTER_PORT itself."""
        environment = self.use_agent_store({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        with socket.socket() as listener:
            listener.bind(("", int(environment["MASTER_PORT"])))

    def test_share_store_creates_tcp_store_when_rank_changes_to_zero(self):
        """row_56: the node of rank 0, which is not the host, leaves; another one becomes rank 0."""
        port = free_port()
        words = ["--nnodes=2:3", "--rdzv-backend=c10d", f"--rdzv-conf=join_timeout=60,last_call_timeout=2,{LEASE}", "--max-restarts=3",
                 f"--rdzv-endpoint=localhost:{port}", "--no-python", self.program("""
                     echo "$GROUP_RANK" > "$D/part.$$"; mv "$D/part.$$" "$D/runs.$WORLD_SIZE.$WHO"
                     wait_for finish""")]
        host = self.start("--local-addr=node9", *words, env={"WHO": "host"}) if self.launcher == "torchrun" else self.start(
            *words, env={"WHO": "host"})
        self.wait_for_entries(self.dir / "tmp", 1)
        others = [self.start(*words, env={"WHO": f"other{n}"}) for n in (1, 2)]
        self.wait_for(*(f"runs.3.{who}" for who in ("host", "other1", "other2")))
        ranks = {who: int(self.lines(f"runs.3.{who}")[0]) for who in ("host", "other1", "other2")}
        self.assertEqual(sorted(ranks.values()), [0, 1, 2])
        leaver = 0 if ranks["other1"] < ranks["other2"] else 1
        stays = f"other{2 - leaver}"
        others[leaver].kill()
        others[leaver].wait()
        self.wait_for("runs.2.host", f"runs.2.{stays}")
        (self.dir / "finish").touch()
        for process in (host, others[1 - leaver]):
            self.assert_success(self.finish(process))

    def test_two_run_ids_on_one_endpoint_are_isolated(self):
        """row_62"""
        endpoint = f"localhost:{free_port()}"
        jobs = []
        for run_id in ("first", "second"):
            script = self.program(f'echo $TORCHELASTIC_RUN_ID > "$D/{run_id}.$RANK"; wait_for second.0; wait_for second.1', f"{run_id}.sh")
            jobs += [[*self.c10d("join_timeout=60", endpoint, "2", run_id), script]] * 2
        for result in self.run_jobs(*jobs):
            self.assert_success(result)
        self.assertEqual([self.lines(f"{run_id}.{rank}") for run_id in ("first", "second") for rank in (0, 1)],
                         [["first"], ["first"], ["second"], ["second"]])

    def test_scale_up_contract(self):
        """elastic_agent_rendezvous_contract_test.py; row_53: a job of one node grows to two."""
        command = [*self.c10d(f"join_timeout=60,last_call_timeout=1,{LEASE}", nnodes="1:2"), self.program(RUN)]
        first = self.start(*command)
        self.wait_for("runs.1.0")
        second = self.start(*command)
        self.wait_for("runs.2.0", "runs.2.1")
        (self.dir / "finish").touch()
        for process in (first, second):
            self.assert_success(self.finish(process))


class C10dRendezvousBackendTest(RendezvousCase):
    """Each case is a value of --rdzv-conf or of the endpoint. Two nodes, so that there is somebody to meet."""

    def two(self, *confs, endpoint=None):
        """The second one starts when the first one listens, where it listens at all."""
        port, started = free_port(), []
        for conf in confs:
            started.append(self.start(*self.c10d(f"join_timeout=30{conf}", endpoint or f"localhost:{port}", "2"), self.bash_probe(),
                                      str(self.files), env={"OMP_NUM_THREADS": "1"}))
            if endpoint is None:
                wait_until_listening(port)
        for process in started:
            self.assert_success(self.finish(process))
        self.assert_world(2)

    def refused(self, conf, *words, endpoint=None):
        self.assert_refused(self.run_job(*self.c10d(conf, endpoint), "true"), 1, *words)

    def test_create_backend_returns_backend_if_is_host_is_false(self):
        self.two(",is_host=true", ",is_host=false")

    def test_create_backend_returns_backend_if_is_host_is_not_specified(self):
        self.two("", "")

    def test_create_backend_returns_backend_if_is_host_is_not_specified_and_store_already_exists(self):
        self.two(",is_host=1", "")

    def test_create_backend_returns_backend_if_store_type_is_not_specified(self):
        self.two(",store_type=tcp", "")

    def test_create_backend_returns_backend_with_file_store(self):
        self.two(",store_type=file", ",store_type=file", endpoint=str(self.dir / "store"))

    def test_create_backend_raises_error_if_store_is_unreachable(self):
        rc, _, err = self.run_job(*self.c10d("is_host=false,read_timeout=1,join_timeout=2", nnodes="2"), "true")
        self.assertEqual(rc, 1, err)

    def test_create_backend_raises_error_if_endpoint_is_invalid(self):
        for endpoint in ("localhost:70000", "localhost:x", "localhost:-1"):
            with self.subTest(endpoint):
                self.refused("", endpoint, endpoint=endpoint)

    def test_create_backend_raises_error_if_store_type_is_invalid(self):
        self.refused("store_type=bad_type", "store_type", "bad_type")

    def test_create_backend_raises_error_if_read_timeout_is_invalid(self):
        for value in ("0", "-10"):
            self.refused(f"read_timeout={value}", "read_timeout", value)

    def test_create_backend_returns_backend_if_is_host_is_invalid(self):
        self.refused("is_host=maybe", "is_host", "maybe")

    def test_create_backend_raises_error_if_tempfile_creation_fails(self):
        """A file store whose file cannot be made."""
        endpoint = str(self.dir / "missing" / "store")
        rc, _, err = self.run_job(*self.c10d("store_type=file,join_timeout=2", endpoint, "2"), "true")
        self.assertEqual(rc, 1, err)

    @fsdprun_only
    def test_default_port(self):
        """An endpoint without a port has 29400."""
        self.assertIn("coordinator: localhost:29400\n",
                      self.run_job("--dry-run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost", "script.py")[1])


class StaticRendezvousTest(RendezvousCase):
    def test_static_rdzv_backend(self):
        port = free_port()
        jobs = [["--nnodes=2", f"--node-rank={node}", f"--master-port={port}", "--no-python", self.bash_probe(), str(self.files)]
                for node in (1, 0)]
        for result in self.run_jobs(*jobs, env={"OMP_NUM_THREADS": "1"}):
            self.assert_success(result)
        self.assert_world(2)

    def test_ipv6_addr(self):
        """row_65"""
        port = free_port()
        self.assert_success(self.run_job("--master-addr=[::1]", f"--master-port={port}", "--no-python", self.dump()))
        environment = self.environments()[0]
        self.assertEqual((environment["MASTER_ADDR"].strip("[]"), environment["MASTER_PORT"]), ("::1", str(port)))

    def test_missing_port(self):
        """Of an endpoint without a port it is that of --master-port; torchrun says that it is missing."""
        rc, _, err = self.run_job("--rdzv-endpoint=localhost", f"--master-port={free_port()}", "--nnodes=1", "--no-python", "true")
        self.assertEqual(rc, 1 if self.launcher == "torchrun" else 0, err)

    def test_get_backend(self):
        self.assert_success(self.run_job("--rdzv-backend=static", f"--master-port={free_port()}", "--no-python", "true"))

    def test_static_rdzv_multiple_calls(self):
        """Each start has a store without the keys of the one before: MASTER_PORT answers after a restart, too."""
        script = self.program("""
            exec 5<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT" || exit 3
            [[ $TORCHELASTIC_RESTART_COUNT == 2 ]]""")
        self.assert_success(self.run_job(f"--master-port={free_port()}", "--max-restarts=2", "--no-python", script))

    @soak
    def test_join_timeout_of_the_static_backend(self):
        rc, _, err = self.run_job("--nnodes=2", f"--master-port={free_port()}", "--rdzv-conf=timeout=2", "--no-python", "true")
        self.assertEqual(rc, 1, err)


class UtilsTest(RendezvousCase):
    def conf(self, text):
        return self.run_job("--standalone", f"--rdzv-conf={text}", "--no-python", "true")

    def test_parse_rendezvous_config_returns_dict(self):
        for text in ("", "  ", "a=1", "a=1,b=2", " a = 1 , b = 2 ", "a=1,a=2", "a=b=c", "key with blank=1"):
            with self.subTest(text):
                self.assert_success(self.conf(text))

    def test_parse_rendezvous_config_raises_error_if_str_is_invalid(self):
        for text in ("a", "a=1,", "a=1,b", ",a=1", "=1", "a=", "a=1, ,b=2"):
            with self.subTest(text):
                self.assert_refused(self.conf(text), 1, "rdzv-conf")

    def endpoint(self, text):
        return self.run_job("--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={text}", "--no-python", "true")

    def test_parse_rendezvous_endpoint_returns_tuple(self):
        for text in ("localhost:0", "127.0.0.1:0", "[::1]:0", "  localhost:0  "):
            with self.subTest(text):
                self.assert_success(self.endpoint(text))

    def test_parse_rendezvous_endpoint_raises_error(self):
        for text in ("localhost:", "localhost:x", "localhost:1:2x", "[::1", "localhost:65536", "localhost:0x1", "localhost:-5"):
            with self.subTest(text):
                self.assert_refused(self.endpoint(text), 1, "rdzv-endpoint")


    def test_try_parse_port(self):
        """Digits, and a number that a port can have."""
        for port in ("0", "00000"):
            self.assert_success(self.endpoint(f"localhost:{port}"))
        for port in ("99999", "1x", "x1", "1.0", "000000", "+1", " 1", "-1"):
            with self.subTest(port):
                self.assert_refused(self.endpoint(f"localhost:{port}"), 1, "rdzv-endpoint")

    def test_matches_machine_hostname(self):
        """Whose endpoint is a name or an address of this machine hosts there, without being told to."""
        for host in ("localhost", "127.0.0.1", "[::1]"):
            with self.subTest(host):
                words = self.c10d("join_timeout=60", f"{host}:{free_port()}", "2")
                for result in self.run_jobs(*[[*words, "true"]] * 2):
                    self.assert_success(result)
        rc, _, err = self.run_job(*self.c10d("join_timeout=2,read_timeout=1", "192.0.2.1:29400", "2"), "true")  # Nobody's (RFC 5737).
        self.assertEqual(rc, 1, err)


class ApiTest(RendezvousCase):
    def host(self, word):
        return self.run_job(*self.c10d(f"is_host={word}"), "true")

    def test_get_as_bool_returns_true(self):
        for word in ("1", "true", "True", "TRUE", "t", "T", "yes", "Yes", "y", "Y"):
            with self.subTest(word):
                self.assert_success(self.host(word))

    def test_get_as_bool_raises_error_if_value_is_invalid(self):
        for word in ("01", "Flse", "Ture", "g", "4", "_", "maybe"):
            with self.subTest(word):
                self.assert_refused(self.host(word), 1, "is_host", word)

    def test_get_as_int_raises_error_if_value_is_invalid(self):
        for key in ("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt",
                    "read_timeout"):
            with self.subTest(key):
                self.assert_refused(self.run_job(*self.c10d(f"{key}=many"), "true"), 1, key, "many")

    def test_init_raises_error_if_timeout_is_not_positive(self):
        for key in ("join_timeout", "close_timeout", "heartbeat_timeout"):
            with self.subTest(key):
                self.assert_refused(self.run_job(*self.c10d(f"{key}=0"), "true"), 1, key)

    def test_create_handler_raises_error_if_backend_is_unknown(self):
        self.assert_refused(self.run_job("--rdzv-backend=dummy_backend", "--no-python", "true"), 1, "rdzv-backend", "dummy_backend")


if __name__ == "__main__":
    main()
