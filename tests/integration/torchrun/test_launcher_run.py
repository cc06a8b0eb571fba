"""PyTorch's launcher/test_run.py (and its twin launcher/run_test.py): scripts that are started by the command line alone."""

import os
import re

from compat_case import VARIABLES, CompatCase, c10d, free_port, fsdprun_only, main


class RunTest(CompatCase):
    def rendezvous(self, *words, run_id="run"):
        return c10d(free_port(), *words, run_id=run_id)

    def test_launch_user_script_python(self):
        result = self.run_job("--nnodes=1", "--nproc-per-node=4", *self.rendezvous("--monitor-interval=1", "--start-method=spawn"),
                              self.python_probe(), f"--touch-file-dir={self.files}")
        self.assert_success(result)
        self.assert_world(4)

    def test_launch_user_script_python_caffe2_bc(self):
        result = self.run_job("--nproc-per-node=4", "--master-addr=localhost", f"--master-port={free_port()}", "--node-rank=0",
                              self.python_probe(), f"--touch-file-dir={self.files}")
        self.assert_success(result)
        self.assert_world(4)

    def test_launch_user_script_bash(self):
        words = ["--nnodes=1", "--nproc-per-node=4", *self.rendezvous("--monitor-interval=1", "--start-method=spawn"), "--no-python"]
        script = [self.bash_probe(), f"--touch-file-dir={self.files}"]
        self.assert_refused(self.run_job(*words, "--module", *script), 1, "--module", "--no-python")
        self.assert_world(0)
        self.assert_success(self.run_job(*words, *script))
        self.assert_world(4)

    def test_launch_user_script_default_nproc(self):
        words = ["--nnodes=1", *self.rendezvous("--monitor-interval=1", "--start-method=spawn"), "--no-python"]
        script = [self.bash_probe(), f"--touch-file-dir={self.files}"]
        threads = {"OMP_NUM_THREADS": "1"}
        self.assert_refused(self.run_job(*words, "--module", *script, env=threads))
        self.assert_success(self.run_job(*words, *script, env=threads))
        self.assert_world(1)

    def test_launch_with_env_vars(self):
        words = self.rendezvous()
        twins = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": words[1].split("=")[1],
                 "PET_RDZV_ID": "by_variable", "PET_MONITOR_INTERVAL": "1", "PET_START_METHOD": "spawn", "PET_NO_PYTHON": "1"}
        script = [self.bash_probe(), f"--touch-file-dir={self.files}"]
        self.assert_refused(self.run_job(*script, env={**twins, "PET_MODULE": "1"}))
        self.assert_success(self.run_job(*script, env=twins))
        self.assert_world(4)

    def configured(self, nproc, size, env=None):
        result = self.run_job("--nnodes=1", f"--nproc-per-node={nproc}", *self.rendezvous("--monitor-interval=1"), "--no-python",
                              self.bash_probe(), f"--touch-file-dir={self.files}", env={"OMP_NUM_THREADS": "1", **(env or {})})
        self.assert_success(result)
        self.assert_world(size)

    def test_nproc_launch_auto_configurations(self):
        self.configured("auto", len(os.sched_getaffinity(0)))

    def test_nproc_launch_number_configurations(self):
        self.configured("4", 4)

    def test_nproc_launch_unknown_configurations(self):
        result = self.run_job("--nnodes=1", "--nproc-per-node=unknown", *self.rendezvous(), "--no-python", self.bash_probe())
        self.assert_refused(result, 1, "unknown", "nproc-per-node")

    def test_launch_elastic(self):
        """The quotes are part of the string, as in the original: they make keys that nobody knows."""
        result = self.run_job("--nnodes=1:2", "--nproc-per-node=4",
                              *self.rendezvous("--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'"),
                              "--monitor-interval=1", "--start-method=spawn", self.python_probe(), f"--touch-file-dir={self.files}")
        self.assert_success(result)
        self.assert_world(4)

    def test_launch_elastic_worker_raise_exception(self):
        rc, _, err = self.run_job("--nnodes=1:2", "--nproc-per-node=4",
                                  *self.rendezvous("--rdzv-conf=join_timeout=5,last_call_timeout=1,timeout=5"),
                                  "--monitor-interval=1", "--max-restarts=0", "--start-method=spawn", self.python_probe(), "--fail",
                                  f"--touch-file-dir={self.files}")
        self.assertEqual(rc, 1, err)
        self.assert_summary(err, "exitcode  : 1 (pid:")

    def test_launch_elastic_agent_raise_exception(self):
        """The original makes the agent's run() raise; here its rendezvous cannot be reached."""
        rc, _, err = self.run_job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=run",
                                  "--rdzv-conf=is_host=0,join_timeout=1,read_timeout=1", "--no-python", self.bash_probe(),
                                  f"--touch-file-dir={self.files}")
        self.assertEqual(rc, 1, err)
        self.assert_world(0)

    def test_launch_standalone(self):
        result = self.run_job("--standalone", "--nproc-per-node=4", "--monitor-interval=1", "--start-method=spawn", self.python_probe(),
                              f"--touch-file-dir={self.files}")
        self.assert_success(result)
        self.assert_world(4)

    def test_launch_run_path(self):
        result = self.run_job("--run-path", "--nnodes=1", "--nproc-per-node=4", "--monitor-interval=1", "--start-method=fork",
                              f"--master-port={free_port()}", self.python_probe(), f"--touch-file-dir={self.files}")
        self.assert_success(result)
        self.assert_world(4)

    def test_launch_elastic_multiple_agents(self):
        words = ["--nnodes=1:2", "--nproc-per-node=4", *self.rendezvous("--rdzv-conf=timeout=5,last_call_timeout=20"),
                 "--monitor-interval=1", "--start-method=spawn", "--no-python", self.bash_probe(), f"--touch-file-dir={self.files}"]
        for result in self.run_jobs(words, words):
            self.assert_success(result)
        self.assert_world(8)

    def test_min_max_nodes_parse(self):
        """The original calls the parser; the plan of a dry run shows the same."""
        self.assert_refused(self.run_job("--nnodes=2:20:30", "script.py"), 1, "nnodes", "2:20:30")
        if self.launcher == "fsdprun":
            for written, shown in (("1", "nodes: 1\n"), ("2:20", "nodes: 2:20\n")):
                self.assertIn(shown, self.run_job("--dry-run", f"--nnodes={written}", "script.py")[1])

    def test_is_torchelastic_launched(self):
        """What torch.distributed.is_torchelastic_launched() asks for; test_with_pytorch.py asks PyTorch itself."""
        self.assert_success(self.run_job("--nnodes=1", "--nproc-per-node=1", *self.rendezvous(), "--no-python", self.dump()))
        self.assertIn("TORCHELASTIC_RUN_ID", self.environments()[0])

    def test_is_torchelastic_launched_with_logs_spec_defined(self):
        self.assert_success(self.run_job("--nnodes=1", "--nproc-per-node=1", *self.rendezvous("--logs-specs=default"), "--no-python",
                                         self.dump()))
        self.assertIn("TORCHELASTIC_RUN_ID", self.environments()[0])

    def test_logs_logs_spec_entrypoint_must_be_defined(self):
        self.assert_refused(self.run_job("--nnodes=1", "--nproc-per-node=1", *self.rendezvous("--logs-specs=DOESNOT_EXIST"), "--no-python",
                                         self.dump()), 1, "logs-specs", "DOESNOT_EXIST")

    def test_capture_logs_using_default_logs_specs(self):
        """--redirect is a prefix of an option; the template has all the names that there are."""
        log_dir = self.dir / "logs"
        rc, out, err = self.run_job("--nnodes=1", "--nproc-per-node=4", *self.rendezvous("--redirect=3", "--tee=3"),
                                    f"--log-dir={log_dir}", "--no-python", self.bash_probe(), f"--touch-file-dir={self.files}",
                                    env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: "})
        self.assertEqual(rc, 0, err)
        self.assert_world(4)
        for rank in range(4):
            self.assertIn(f"[rank{rank}]: creating {self.files}/{rank}\n", out)
            self.assertEqual(self.log_tree(log_dir)[f"attempt_0/{rank}/stdout.log"], f"creating {self.files}/{rank}\n".encode())

    def test_virtual_local_rank(self):
        """Without a GPU the environment is what can be seen; with tee the prefix has the real local rank."""
        script = self.program('echo "$LOCAL_RANK $RANK $CUDA_VISIBLE_DEVICES"')
        for words, seen in (([], {"0": "0 0 4,6", "1": "1 1 4,6"}), (["--virtual-local-rank"], {"0": "0 0 4", "1": "0 1 6"})):
            rc, out, err = self.run_job("--nnodes=1", "--nproc-per-node=2", *self.rendezvous("--tee=3"), *words, "--no-python", script,
                                        env={"CUDA_VISIBLE_DEVICES": "4,6"})
            self.assertEqual(rc, 0, err)
            self.assertEqual(dict(re.findall(r"^\[default(\d)\]:(.*)$", out, re.M)), seen)

    def test_probes_need_all_variables(self):
        """The probes can fail: without OMP_NUM_THREADS, which one worker alone does not get."""
        self.assertEqual(len(VARIABLES), 16)
        for script in ([self.python_probe()], ["--no-python", self.bash_probe()]):
            rc, _, err = self.run_job("--standalone", *script, f"--touch-file-dir={self.files}")
            self.assertEqual(rc, 1, err)
            self.assertIn("OMP_NUM_THREADS", err)


class DeviceCountTest(CompatCase):
    """The originals replace PyTorch's device counts; here the machine looks as if it had three devices."""

    def setUp(self):
        super().setUp()
        self.root = self.dir / "machine"

    def count(self, nproc):
        rc, out, err = self.run_job("--dry-run", f"--nproc-per-node={nproc}", "script.py", env={"FSDPRUN_TEST_ROOT": str(self.root)})
        self.assertEqual(rc, 0, err)
        return int(re.search(r"^workers_per_node: (\d+)$", out, re.M)[1])

    @fsdprun_only
    def test_nproc_gpu_launch_configurations(self):
        for number in range(3):
            (self.root / "dev").mkdir(parents=True, exist_ok=True)
            (self.root / f"dev/nvidia{number}").touch()
        self.assertEqual((self.count("auto"), self.count("gpu")), (3, 3))

    @fsdprun_only
    def test_nproc_xpu_launch_configurations(self):
        for number in range(3):
            device = self.root / f"sys/class/drm/renderD{128 + number}/device"
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x8086\n")
        self.assertEqual((self.count("auto"), self.count("xpu")), (3, 3))


if __name__ == "__main__":
    main()
