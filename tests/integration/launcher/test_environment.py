"""What a worker finds in its environment, arguments and log directory."""

import json
import os
import re
import resource
import shutil

from job_case import JobCase, free_port
from unittest_main import main

DUMP = """
    note("env", json.dumps({"env": dict(os.environ), "argv": sys.argv[1:]}))
    print(f"out{RANK}"); print(f"err{RANK}", file=sys.stderr)
"""


class EnvironmentTest(JobCase):
    def dumps(self):
        return {rank: json.loads(text) for (_, rank), text in self.notes("env").items()}

    def test_row_11_static_single_worker_has_torchruns_table(self):
        port = free_port()
        rc, _, err = self.run_job("--master-port", port, self.script(DUMP), env={"SENTINEL": "kept"})
        self.assertEqual(rc, 0, err)
        env = self.dumps()[0]["env"]
        expected = {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "FSDPRUN_GENERATION": "1", "FSDPRUN_PROGRESS_VIEW": "plain",
            "SENTINEL": "kept",
        }
        self.assertEqual({k: env.get(k) for k in expected}, expected)
        self.assertNotIn("OMP_NUM_THREADS", env)
        self.assertTrue(env["FSDPRUN_CONTROL_FD"].isdigit())
        self.assertRegex(env["TORCHELASTIC_ERROR_FILE"], r"/fsdprun_none_[0-9a-f]{8}/attempt_0/error_0\.json$")

    def test_row_13_standalone_ranks_ports_and_threads(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=3", "--role", "trainer", self.script(DUMP),
                                  env={"LOGLEVEL": "WARNING", "FSDPRUN_TOKEN": "secret"})
        self.assertEqual(rc, 0, err)
        self.assertIn("OMP_NUM_THREADS", err)
        dumps = self.dumps()
        self.assertEqual(sorted(dumps), [0, 1, 2])
        for rank, dump in dumps.items():
            env = dump["env"]
            self.assertEqual((env["RANK"], env["LOCAL_RANK"], env["ROLE_RANK"]), (str(rank),) * 3)
            self.assertEqual((env["WORLD_SIZE"], env["ROLE_WORLD_SIZE"], env["ROLE_NAME"]), ("3", "3", "trainer"))
            self.assertEqual(env["OMP_NUM_THREADS"], "1")
            self.assertNotIn("FSDPRUN_TOKEN", env)
            self.assertNotEqual(env["MASTER_PORT"], "29500")
            self.assertRegex(env["TORCHELASTIC_RUN_ID"], r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab]")

    def test_row_16_virtual_local_rank_shows_each_worker_one_device(self):
        script = self.script("note('place', os.environ['LOCAL_RANK'] + ' ' + os.environ['CUDA_VISIBLE_DEVICES'])")
        for devices, seen in (({"CUDA_VISIBLE_DEVICES": "4, 6"}, ("4", "6")), ({}, ("0", "1"))):
            with self.subTest(devices):
                rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", "--virtual-local-rank", script, env=devices)
                self.assertEqual(rc, 0, err)
                self.assertEqual(self.notes("place"), {(1, rank): f"0 {seen[rank]}" for rank in (0, 1)})
        for extra in ([], ["--dry-run"]):
            self.assert_one_line_error(self.run_job("--standalone", "--nproc-per-node=2", "--virtual-local-rank", *extra, script,
                                                    env={"CUDA_VISIBLE_DEVICES": "4"}), 1, "CUDA_VISIBLE_DEVICES='4'", "2 workers")

    def test_row_17_what_is_inherited_and_what_is_set(self):
        rc, _, err = self.run_job("--standalone", "--signals-to-handle=SIGUSR1,SIGTERM", self.script(DUMP),
                                  env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "SENTINEL": "kept"})
        self.assertEqual(rc, 0, err)
        env = self.dumps()[0]["env"]
        self.assertEqual([env[k] for k in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE", "SENTINEL")],
                         ["0", "SIGUSR1,SIGTERM", "kept"])

    def test_threads_that_were_asked_for(self):
        for options, env, threads in ((["--omp-threads=3"], {}, "3"), (["--omp-threads=3"], {"OMP_NUM_THREADS": "7"}, "7"),
                                      (["--omp-threads=auto"], {}, str(max(1, len(os.sched_getaffinity(0)) // 2)))):
            rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", *options, self.script(DUMP),
                                      env={"LOGLEVEL": "WARNING", **env})
            self.assertEqual((rc, err.count("OMP_NUM_THREADS")), (0, 0), err)
            self.assertEqual({d["env"]["OMP_NUM_THREADS"] for d in self.dumps().values()}, {threads})

    def test_row_08_run_path_runs_a_script(self):
        rc, _, err = self.run_job("--standalone", "--run-path", "--no-python", self.script("note('ran')"))
        self.assertEqual((rc, list(self.notes("ran"))), (0, [(1, 0)]), err)

    def test_row_08_a_program_that_is_no_script_runs_itself(self):
        """An ELF file without --no-python, by its path and by its name alone, where there is no Python."""
        program = self.dir / "worker"
        shutil.copy("/bin/sh", program)
        for given in (program, "worker"):
            rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", given, "-c", 'echo "$1" >"$D/ran.1.$RANK"', "sh",
                                      "${local_rank}", cwd=self.dir, env={"PYTHON_EXEC": "/no/python"})
            self.assertEqual((rc, self.notes("ran")), (0, {(1, 0): "0\n", (1, 1): "1\n"}), err)
            for note in self.dir.glob("ran.*"):
                note.unlink()
            rc, out, err = self.run_job("--dry-run", "--standalone", given, cwd=self.dir)
            self.assertEqual((rc, err), (0, ""))
            self.assertIn("\nprogram_kind: executable\n", out)
        program.chmod(0o600)
        self.assert_one_line_error(self.run_job("--standalone", program), 1, program, "chmod +x")

    def test_row_08_a_shell_script_is_pythons_and_that_is_said(self):
        script = self.dir / "train.sh"
        script.write_text("#!/bin/sh\nprint('read by Python')\n")
        rc, out, err = self.run_job("--standalone", script, env={"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"})
        self.assertEqual((rc, out), (0, "read by Python\n"), err)
        for word in ("WARNING", str(script), "#!/bin/sh", "--no-python"):
            self.assertIn(word, err)

    def test_row_12_exported_threads_are_kept(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", self.script(DUMP),
                                  env={"OMP_NUM_THREADS": "7", "LOGLEVEL": "WARNING"})
        self.assertEqual((rc, err.count("OMP_NUM_THREADS")), (0, 0), err)
        self.assertEqual({d["env"]["OMP_NUM_THREADS"] for d in self.dumps().values()}, {"7"})

    def test_row_05_and_row_07_arguments_are_verbatim_but_for_the_local_rank(self):
        rc, _, err = self.run_job("--standalone", "--nproc-per-node=2", self.script(DUMP), "--nproc-per-node", "3", "--",
                                  "x", "--tee=3", "${local_rank}", "$local_rank", "$$", "$HOME")
        self.assertEqual(rc, 0, err)
        for rank, dump in self.dumps().items():
            self.assertEqual(dump["argv"], ["--nproc-per-node", "3", "--", "x", "--tee=3", str(rank), str(rank), "$", "$HOME"])

    def test_row_14_nodes_of_different_size_and_role(self):
        port, script = free_port(), self.script(DUMP)
        args = ["--nnodes=3", f"--master-port={port}"]
        nodes = [self.start(*args, f"--node-rank={n}", f"--nproc-per-node={n + 1}", f"--role=r{n % 2}", script)
                 for n in range(3)]
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
        env = {rank: dump["env"] for rank, dump in self.dumps().items()}
        self.assertEqual(sorted(env), list(range(6)))
        self.assertEqual([env[r]["GROUP_RANK"] for r in range(6)], list("011222"))
        self.assertEqual([env[r]["LOCAL_RANK"] for r in range(6)], list("001012"))
        self.assertEqual([env[r]["ROLE_RANK"] for r in range(6)], list("001123"))
        self.assertEqual([env[r]["ROLE_WORLD_SIZE"] for r in range(6)], list("422444"))
        self.assertEqual({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in env.values()}, {("127.0.0.1", str(port))})

    def test_nodes_that_start_at_the_same_moment_find_each_other(self):
        """Linux may refuse both of two listen() calls; without another attempt one of fifty such starts waited in vain."""
        for _ in range(40):
            nodes = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                     "--rdzv-conf=join_timeout=20", "--no-python", "true"]
            launchers = [self.start(*nodes) for _ in range(2)]
            for launcher in launchers:
                rc, _, err = self.finish(launcher)
                self.assertEqual(rc, 0, err)

    def test_log_directory_layout(self):
        logs = self.dir / "logs"
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--log-dir", logs, self.script(DUMP))
        self.assertEqual((rc, sorted(out.split()), sorted(err.split())), (0, ["out0", "out1"], ["err0", "err1"]))
        files = {str(p.relative_to(logs)): p.read_text() for p in logs.rglob("*.log")}
        self.assertEqual({re.sub(r"^[0-9a-f-]{36}_[0-9a-f]{8}/", "", k): v for k, v in files.items()}, {
            f"attempt_0/{r}/std{s}.log": f"{s}{r}\n" for r in (0, 1) for s in ("out", "err")})

    def test_temporary_logs_go_after_success_only(self):
        self.assertEqual(self.run_job("--standalone", "--redirects=3", self.script("pass"))[0], 0)
        self.assertEqual(self.temporary_files(), [])
        rc, _, err = self.run_job("--standalone", "--redirects=3", self.script("sys.exit(3)"))
        self.assertEqual(rc, 1)
        (kept,) = (self.dir / "tmp").glob("fsdprun_*")
        self.assertIn(str(kept), err)

    def test_row_08_a_module_is_run_by_python(self):
        (self.dir / "pkg").mkdir()
        (self.dir / "pkg" / "__init__.py").touch()
        self.script(DUMP, "pkg/mod.py")
        rc, _, err = self.run_job("--standalone", "-m", "pkg.mod", "a", cwd=self.dir)
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.dumps()[0]["argv"], ["a"])

    def test_descriptors_that_are_closed_at_the_start_are_connected_to_nothing(self):
        def close_streams():
            for fd in range(3):
                os.close(fd)
        launcher = self.start("--standalone", self.script("""
            keeper = os.getppid()
            launcher = int(pathlib.Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()[1])
            note("links", [os.readlink(f"/proc/{pid}/fd/{fd}") for pid in (launcher, keeper) for fd in range(3)])
            note("input", os.readlink("/proc/self/fd/0"))
        """), preexec_fn=close_streams)
        self.assertEqual(self.finish(launcher)[0], 0)
        self.assertEqual(self.notes("links")[1, 0], str(["/dev/null"] * 6))
        self.assertEqual(self.notes("input")[1, 0], "/dev/null")

    def test_the_launcher_raises_its_descriptor_limit_and_workers_keep_theirs(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        rc, _, err = self.run_job("--standalone", self.script("""
            import resource
            keeper = os.getppid()
            launcher = int(pathlib.Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()[1])
            note("limits", [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in (os.getpid(), launcher)])
        """), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.notes("limits")[1, 0], str([(200, hard), (hard, hard)]))


if __name__ == "__main__":
    main()
