"""Jobs that are stopped before their end and requeued: workers that train in steps, save when they are stopped, and go on
from there; and what such a job has done in all its runs."""

import slurm_case
from slurm_case import SlurmCase

STEPS = 10
# Where a first run waits for what stops it.
HOLD_AT = 4

TRAINER = f"""
    import socket
    STEPS, HOLD_AT = {STEPS}, {HOLD_AT}
    stops = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda which, _: stops.append(which))
    agent = socket.socket(fileno=int(os.environ["FSDPRUN_CONTROL_FD"]))
    saved = D / f"saved.{{RANK}}"
    step = int(saved.read_text()) if saved.exists() else 0
    hold = step + HOLD_AT if os.environ.get("HOLDS") == "always" or RESTART == 0 else None
    note(f"run-{{RESTART}}", os.environ["TORCHELASTIC_RUN_ID"])
    # Steps begin when all can be stopped: only rank 0's are reported, and the launcher stops whoever has reported one.
    meet(f"ready-{{RESTART}}")
    while step < STEPS and not stops:
        step += 1
        with open(D / f"steps.{{RANK}}", "a") as log:
            log.write(f"{{RESTART}}:{{step}} ")
        if os.environ.get("REPORTS") != "no":
            agent.sendall(json.dumps({{"v": 1, "type": "progress", "step": step, "total": STEPS}}).encode() + b"\\n")
        if step == hold:
            note(f"holds-{{RESTART}}")
            while not stops:
                time.sleep(0.01)
    # Slurm and the agent both send it, and Python gives up its handlers before its process has ended.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    saved.write_text(str(step))
    note(f"stops-{{RESTART}}", stops)
    """


class QueueCase(SlurmCase):
    def submit(self, script, *options):
        """The next run adds to the output of the one before."""
        return super().submit(script, "--open-mode=append", *options)

    def restarts(self, job):
        return int(slurm_case.slurm.job(job)["Restarts"])

    def hold(self, job, ranks, run=0):
        """Until all the workers of this run wait to be stopped."""
        self.wait_for_notes(f"holds-{run}", range(ranks), job)

    def next_run(self, job, run=1, time_limit=None):
        """Lets the requeued job begin as soon as its nodes are free. `time_limit`: its new one, in minutes."""
        slurm = slurm_case.slurm
        slurm.wait_until(lambda: self.restarts(job) >= run, f"job {job} to be requeued", job)
        slurm.wait_until(lambda: slurm.job(job)["JobState"] != "COMPLETING", f"the nodes of job {job} to be free", job)
        if slurm.job(job)["JobState"] == "PENDING":
            if time_limit is not None:
                slurm.scontrol("update", f"jobid={job}", f"timelimit={time_limit}")
            slurm.start_now(job)

    def assert_each_step_once(self, ranks, steps_of_runs):
        """`steps_of_runs`: how many steps each run has done."""
        step, expected = 0, []
        for run, count in enumerate(steps_of_runs):
            expected += [f"{run}:{step + n + 1}" for n in range(count)]
            step += count
        for rank in range(ranks):
            self.assertEqual((self.dir / f"steps.{rank}").read_text().split(), expected)
