"""PyTorch's launcher/launch_test.py: the command line of python -m torch.distributed.launch."""

from compat_case import CompatCase, c10d, free_port, fsdprun_only, main

PRINT_ARGUMENTS = """#!/bin/bash
echo "$@" > "$D/arguments.$RANK"
"""


class LaunchTest(CompatCase):
    def launch(self, *words):
        """fsdprun --compat=launch is what takes the place of the module's name."""
        return self.run_job("--compat=launch", "--nnodes=1", "--nproc-per-node=4", *c10d(free_port()), "--monitor-interval=1",
                            "--start-method=spawn", *words, f"--touch-file-dir={self.files}")

    def arguments(self):
        return [self.lines(f"arguments.{rank}") for rank in range(4)]

    @fsdprun_only
    def test_launch_without_env(self):
        self.assert_success(self.launch(self.python("import os, sys\nopen(f\"{os.environ['D']}/arguments.{os.environ['RANK']}\", 'w')"
                                                    ".write(' '.join(sys.argv[1:]))\n")))
        self.assertEqual(self.arguments(), [[f"--local-rank={rank} --touch-file-dir={self.files}"] for rank in range(4)])

    @fsdprun_only
    def test_launch_with_env(self):
        self.assert_success(self.launch("--use-env", self.python_probe()))
        self.assert_world(4)
        self.assert_success(self.launch("--use-env", "--no-python", self.program(PRINT_ARGUMENTS)))
        self.assertEqual(self.arguments(), [[f"--touch-file-dir={self.files}"]] * 4)

    @fsdprun_only
    def test_no_python_needs_use_env(self):
        self.assert_refused(self.launch("--no-python", self.bash_probe()), 1, "--use-env")
        self.assert_world(0)


if __name__ == "__main__":
    main()
