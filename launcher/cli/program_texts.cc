#include "launcher/cli/program_texts.h"

#include "launcher/cli/ckpt_texts.h"

namespace fsdprun {
namespace {

bool IsCommand(CliProgram program) { return IsSlurmCommand(program) || TakesOptionsOnly(program); }

const ProgramTexts& LauncherTexts() {
  static const ProgramTexts texts = {
      .summary = "run a distributed job, restart it after failures, leave no process behind",
      .synopsis = "[options] PROGRAM [arguments of PROGRAM]",
      .description =
          "Starts PROGRAM as the workers of one distributed job, monitors them, restarts them "
          "after a failure and leaves no process behind. Command line and environment are "
          "torchrun's. `fsdprun chaos` injects faults into a job, see fsdprun chaos --help.",
      .examples = {"fsdprun --standalone --nproc-per-node 4 train.py",
                   "fsdprun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 "
                   "train.py",
                   "fsdprun --standalone --nproc-per-node 2 --no-python fsdp-train --config "
                   "run.json",
                   "fsdprun --agents node0,node1 --nproc-per-node 8 train.py"}};
  return texts;
}

const ProgramTexts& AgentTexts() {
  static const ProgramTexts texts = {
      .summary = "run the workers of one node of an fsdprun job",
      .synopsis =
          "--rdzv-endpoint HOST:PORT --rdzv-id ID [options] PROGRAM [arguments of PROGRAM] | "
          "--daemon [options]",
      .description =
          "The agent of one node as a separate program, for service managers: it runs PROGRAM as "
          "this node's workers whenever the coordinator at the endpoint (an fsdprun) forms a "
          "world. It never hosts the coordinator, never runs a command from the network, and joins "
          "again with a new incarnation when the connection breaks. It exits with the job, on a "
          "signal, or when it cannot join within join_timeout. With --daemon it is something else: "
          "it listens for launchers (fsdprun --agents) that prove the token, and runs what they "
          "say, as its own user, several jobs at a time.",
      .examples = {
          "FSDPRUN_TOKEN=... fsdp-agent --rdzv-endpoint 10.0.0.1:29400 --rdzv-id run7 train.py",
          "fsdp-agent --daemon --slots 8"}};
  return texts;
}

const ProgramTexts& SubmitTexts() {
  static const ProgramTexts texts = {
      .summary = "submit a distributed job to Slurm",
      .synopsis = "[options] PROGRAM [arguments of PROGRAM]",
      .description =
          "Writes a batch file that runs PROGRAM under fsdprun on all nodes of a Slurm job, and "
          "gives it to sbatch. The options are sbatch's, for the job, and fsdprun's, which the "
          "batch file passes on. --requeue auto or always also brings what a requeue needs of "
          "sbatch (--requeue, --open-mode=append, --signal=B:USR1@120), never its --no-requeue. "
          "--dry-run prints the batch file, which may be kept and submitted "
          "with sbatch.",
      .examples = {
          "fsdpctl slurm submit --nnodes 4 --gpus-per-node 8 --time 8:00:00 train.py",
          "fsdpctl slurm submit --nnodes 2:8 --gpus-per-node 8 --requeue auto --max-restarts 3 "
          "train.py",
          "fsdpctl slurm submit --dry-run --nnodes 2 --nproc-per-node 4 train.py "
          ">job.sbatch"}};
  return texts;
}

const ProgramTexts& GrowTexts() {
  static const ProgramTexts texts = {
      .summary = "add nodes to a running elastic job of Slurm",
      .synopsis = "JOBID [options]",
      .description =
          "Submits another job, whose nodes join the fsdprun that runs in job JOBID: with its "
          "command, in its folder, with its environment. Unless told otherwise it asks for what "
          "JOBID asked for (partition, account, GPUs, features, exclusive nodes), until the end of "
          "JOBID's time limit, on other nodes. JOBID was started with --nnodes MIN:MAX, and its "
          "batch file runs fsdprun itself, not srun fsdprun. The other job ends with JOBID; "
          "scancel takes its nodes away again.",
      .examples = {"fsdpctl slurm grow 4711 --nodes 2"}};
  return texts;
}

const ProgramTexts& ChaosTexts() {
  static const ProgramTexts texts = {
      .summary = "inject faults into a job, and show that it comes through them",
      .synopsis = "[options] [-- COMMAND [arguments of COMMAND]]",
      .description =
          "Kills and stops processes of a job, cuts its agents off, delays what they say, fills a "
          "disk, damages a checkpoint: at random, or by a schedule. Each fault is followed until "
          "all workers run again; at the end stands a verdict. COMMAND is started as the job: an "
          "fsdprun for several nodes once for each node, all on this machine, with a coordinator "
          "of its own, and again whenever it was killed. Without COMMAND it is a job that already "
          "has its coordinator on this machine, and only its processes on this machine, of this "
          "user, are touched. Ctrl-C lifts all faults first.",
      .examples = {
          "fsdprun chaos --faults 200 --every 2s -- fsdprun --nnodes 2 --max-restarts 200 "
          "train.py",
          "fsdprun chaos --job run7 --kinds kill,stop --duration 10min",
          "fsdprun chaos --corrupt checkpoints --verify 'python compare.py' -- fsdprun --nnodes 2 "
          "--max-restarts 50 train.py",
          "fsdprun chaos --schedule faults.txt --dry-run"}};
  return texts;
}

const ProgramTexts& JobTexts(CliProgram program) {
  static const ProgramTexts list = {
      .summary = "list the jobs of this user whose coordinators run on this machine",
      .synopsis = "[options]",
      .description =
          "One line for each job: its id, the pid of the process that hosts its "
          "coordinator, since when, and where its nodes meet.",
      .examples = {"fsdpctl ps", "fsdpctl ps --json"}};
  static const ProgramTexts status = {
      .summary = "show the state of a running job",
      .synopsis = "[options]",
      .description =
          "Asks the coordinator of a job for its state: what it is doing and why, its nodes and "
          "ranks, the progress of its workers, the restarts that are used up, and the latest "
          "failure. Nothing is asked of the workers.",
      .examples = {"fsdpctl status", "fsdpctl status --job run7 --follow",
                   "FSDPRUN_TOKEN=... fsdpctl status --rdzv-endpoint 10.0.0.1:29400 --job run7 "
                   "--json"}};
  static const ProgramTexts top = {
      .summary = "watch a running job and its workers on the whole screen",
      .synopsis = "[options]",
      .description =
          "The state of a job and a row for each worker, once a second: its process, what it does, "
          "its step and how long that took, what it waited for, and its memory. What the watch has "
          "found comes first, and such workers are marked. Arrows, j, k, PgUp, PgDn, g and G "
          "scroll, / finds a rank or a node; s and r sort; p shows only workers with problems, "
          "n nodes, e the latest events, ? all keys; q quits. It needs a terminal; --once and "
          "--json do not. If the coordinator "
          "goes away, it asks again until somebody quits.",
      .examples = {"fsdpctl top", "fsdpctl top --job run7 --once",
                   "FSDPRUN_TOKEN=... fsdpctl top --rdzv-endpoint 10.0.0.1:29400 --job run7"}};
  static const ProgramTexts events = {
      .summary = "show what has happened to a running job",
      .synopsis = "[options]",
      .description =
          "The latest events of a job's coordinator, the oldest first: nodes that came "
          "and went, worlds, failures, and why each of them ended.",
      .examples = {"fsdpctl events", "fsdpctl events -f --json"}};
  static const ProgramTexts logs = {
      .summary = "show what workers of a job write",
      .synopsis = "[options]",
      .description =
          "The latest lines of the logs of all workers, or of some, each with its rank. With "
          "--follow it goes on with what they write from then on, and with the workers of the "
          "worlds that come after this one. Only what is kept in log files can be shown.",
      .examples = {"fsdpctl logs --rank 0 -f", "fsdpctl logs --node node3 --tail 20",
                   "fsdpctl logs --json"}};
  static const ProgramTexts stacks = {
      .summary = "show what the workers of a job are doing now",
      .synopsis = "[options]",
      .description =
          "The stacks of all threads of the workers, read from outside: a thread stands still "
          "while its own is read. Stacks of Python need py-spy on the PATH of the node's agent.",
      .examples = {"fsdpctl stacks --rank 5", "fsdpctl stacks --node node3 --json"}};
  static const ProgramTexts save = {
      .summary = "have the workers of a job save a checkpoint",
      .synopsis = "[options]",
      .description =
          "The workers are told to save a checkpoint after their present step and to go on, and "
          "the command waits until one has told where it is. A program does that if it reads the "
          "records of its control socket, see docs/CONTROL.md; fsdp-train does, if it has a "
          "checkpoint.dir.",
      .examples = {"fsdpctl checkpoint now", "fsdpctl checkpoint now --timeout 60"}};
  static const ProgramTexts restart = {
      .summary = "stop all workers of a job, and start them again",
      .synopsis = "[options]",
      .description =
          "All workers get the stop signal and their grace, so that they may save, and "
          "are started again as the next world. No restart is used up.",
      .examples = {"fsdpctl restart --job run7"}};
  static const ProgramTexts drain = {
      .summary = "take a node out of a running job",
      .synopsis = "NODE [options]",
      .description =
          "NODE is the name or the address of a node as fsdpctl status shows them, or @N: the one "
          "with group rank N. The workers of all nodes get the stop signal and their grace, so "
          "that they may save, and go on in a world without the node; its launcher ends with 0. "
          "A node that waits just leaves. No restart is used up. Refused where too few others "
          "are there, see --below-min. Where the coordinator is hosted, the launcher stays for "
          "it. A launcher that is started again on the node joins like any other.",
      .examples = {"fsdpctl drain node3", "fsdpctl drain @2 --job run7 --below-min"}};
  static const ProgramTexts scale = {
      .summary = "change how many nodes a running job needs and takes",
      .synopsis = "MIN:MAX [options]",
      .description =
          "As --nnodes of its launchers, which it replaces until the job ends. With a larger MAX, "
          "nodes that wait, or come, join the world. With a smaller one than there are nodes, the "
          "workers get the stop signal and their grace, and go on in a world of MAX nodes; the "
          "others wait. A world that runs with fewer than MIN nodes goes on; the next one needs "
          "them. No restart is used up.",
      .examples = {"fsdpctl scale 2:8", "fsdpctl scale 4 --job run7"}};
  static const ProgramTexts stop = {
      .summary = "end a job",
      .synopsis = "[options]",
      .description =
          "The job ends as on SIGTERM to the launcher that hosts its coordinator: the "
          "workers of all nodes get the signal and their grace, and every launcher ends "
          "with 1.",
      .examples = {"fsdpctl stop", "fsdpctl stop --job run7 --now"}};
  switch (program) {
    case CliProgram::kJobStatus:
      return status;
    case CliProgram::kJobTop:
      return top;
    case CliProgram::kJobEvents:
      return events;
    case CliProgram::kJobLogs:
      return logs;
    case CliProgram::kJobStacks:
      return stacks;
    case CliProgram::kJobSave:
      return save;
    case CliProgram::kJobRestart:
      return restart;
    case CliProgram::kJobDrain:
      return drain;
    case CliProgram::kJobScale:
      return scale;
    case CliProgram::kJobStop:
      return stop;
    default:
      return list;
  }
}

const ProgramTexts& DoctorTexts() {
  static const ProgramTexts texts = {
      .summary = "say what on this machine, or between nodes, will hinder distributed training",
      .synopsis = "[options]",
      .description =
          "Looks at limits, memory, folders, the network, the clock, GPUs and the programs of this "
          "machine before a job is started, and says what will not work or will be slow, why, and "
          "what to do. Nothing is changed. With several nodes the way between each of them and the "
          "first is tested, too: both directions, round trips, large messages, bandwidth, clocks, "
          "the token and the release. All nodes must prove the same token; nothing is told to who "
          "does not.",
      .examples = {"fsdpctl doctor", "fsdpctl doctor --all --log-dir /scratch/logs",
                   "fsdpctl doctor --rdzv-endpoint node0:29400 --nnodes 4",
                   "srun --ntasks-per-node=1 fsdpctl doctor"}};
  return texts;
}

}  // namespace

const ProgramTexts& TextsOf(CliProgram program) {
  if (IsJobCommand(program)) {
    return JobTexts(program);
  }
  if (IsCkptCommand(program)) {
    return CkptTexts(program);
  }
  switch (program) {
    case CliProgram::kFsdpAgent:
      return AgentTexts();
    case CliProgram::kSlurmSubmit:
      return SubmitTexts();
    case CliProgram::kSlurmGrow:
      return GrowTexts();
    case CliProgram::kChaos:
      return ChaosTexts();
    case CliProgram::kDoctor:
      return DoctorTexts();
    default:
      return LauncherTexts();
  }
}

const char* SpellingRules(CliProgram program) {
  if (IsCkptCommand(program)) {
    return "Options may be written with dashes or underscores, as --option value or "
           "--option=value, and shortened while unambiguous; before the paths, between them or "
           "after them.";
  }
  if (TakesOptionsOnly(program)) {
    return "Options may be written with dashes or underscores, as --option value or "
           "--option=value, and shortened while unambiguous.";
  }
  if (program == CliProgram::kSlurmGrow) {
    return "Options may be written with dashes or underscores, as --option value or "
           "--option=value, and shortened while unambiguous; before JOBID or after it.";
  }
  if (program == CliProgram::kChaos) {
    return "Options may be written with dashes or underscores, as --option value or "
           "--option=value, and shortened while unambiguous. They end at COMMAND. Times are "
           "seconds, or 200ms, 1.5s, 10min, 1h.";
  }
  return "Options may be written with dashes or underscores, as --option value or --option=value, "
         "and shortened while unambiguous. They end at PROGRAM: what follows is passed to it "
         "unchanged, except for ${local_rank} and $local_rank, which become the worker's local "
         "rank ($$ is a plain $). The command line wins over the PET_* environment.";
}

const std::vector<TextEntry>& ConfTexts(CliProgram program) {
  static const std::vector<TextEntry> none;
  static const std::vector<TextEntry> texts = {
      {"join_timeout=SECONDS",
       "How long a node waits for the others. Default: 600 with c10d, else 900."},
      {"timeout=SECONDS", "The same with static and etcd; no effect with c10d, as in torchrun."},
      {"last_call_timeout=SECONDS",
       "How long the nodes wait for more of them once there are MIN. Default: 30."},
      {"keep_alive_interval=SECONDS, keep_alive_max_attempt=N",
       "Their product is how long a node may be silent until it is lost, 1 s at least; one of them "
       "alone goes with torchrun's 5 and 3. Default: 3 seconds in all."},
      {"is_host=BOOL",
       "c10d: true: this node hosts the coordinator, or ends with an error if it cannot listen on "
       "the endpoint's port; false: it never hosts. Default: the first on the endpoint's machine. "
       "etcd: false: it never hosts, and waits for who does; true has no effect, as in torchrun."},
      {"read_timeout=SECONDS",
       "How long one attempt to reach the coordinator, or etcd, may take. Default: 5; etcd: 60."},
      {"store_type=tcp|file",
       "c10d: file: the nodes find each other through --rdzv-endpoint as a file that all of them "
       "see. Default: tcp."},
      {"protocol=http|https, cacert=FILE, cert=FILE, key=FILE, etcd_prefix=PATH",
       "etcd, and a --journal there: how it is reached, also under etcd-v2's names ca_cert, "
       "ssl_cert and ssl_cert_key; and what the keys of the rendezvous begin with."},
      {"close_timeout=SECONDS, heartbeat_timeout=SECONDS",
       "Checked and without effect: nothing here waits for a store that way."},
  };
  return IsCommand(program) || program == CliProgram::kChaos ? none : texts;
}

const std::vector<TextEntry>& SignalTexts(CliProgram program) {
  static const std::vector<TextEntry> launcher = {
      {"SIGINT, SIGTERM, SIGHUP, SIGQUIT",
       "Or those of --signals-to-handle. Where the coordinator runs (one node, or node 0), first: "
       "the same signal goes to every "
       "worker, the job ends within the shutdown timeout and exits 1. On another node, first: only "
       "its own workers are stopped and it leaves the job, which continues if --nnodes allows. "
       "Second: this node's workers are killed at once; at the coordinator, those of all nodes. "
       "Slurm sends SIGTERM several times: in its jobs no second one kills, but another signal."},
      {"SIGUSR1, SIGUSR2, in a job of Slurm",
       "As SIGTERM, and then the job is requeued, see --requeue. A repeated one changes nothing."},
      {"Those of --forward-signals",
       "Passed to the workers of this node, and nothing else: a worker that saves and exits 0 ends "
       "well."},
      {"SIGKILL", "The keeper kills the workers of this node and all their descendants."},
  };
  static const std::vector<TextEntry> agent = {
      {"SIGINT, SIGTERM, SIGHUP, SIGQUIT",
       "Or those of --signals-to-handle. First: the same signal goes to this node's workers, and "
       "the agent leaves the job, which continues if the launcher's --nnodes allows. Second: they "
       "are killed at once."},
      {"SIGINT, SIGTERM, SIGQUIT, with --daemon",
       "First: each job's part on this node is ended as above, and then the daemon. Second: at "
       "once."},
      {"SIGHUP, with --daemon",
       "Changes nothing: jobs do not end with the terminal in which their daemon was started, and "
       "certificates are read again as soon as they change."},
      {"SIGKILL",
       "The keeper kills the workers of this node and all their descendants. Of a daemon: its jobs "
       "run on, and one that is started with the same --runtime-dir takes them over."},
  };
  static const std::vector<TextEntry> chaos = {
      {"SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGALRM, SIGXCPU",
       "First: all faults are lifted, a job that was started here is ended as by the same signal "
       "(the last two: by SIGTERM), and the report is printed. One of the first three, a second "
       "later or more: what was started here is killed. Slurm sends SIGTERM several times: in its "
       "jobs no second one kills."},
      {"SIGUSR1, SIGUSR2",
       "Passed to the launchers of a job that was started here. In a job of Slurm: as SIGTERM, but "
       "that job is ended by the same signal."},
      {"SIGTSTP",
       "Changes nothing: suspended, it could lift no fault, and nodes that were started here would "
       "lose their coordinator."},
      {"SIGSTOP",
       "Faults stay in place. The time counts for nothing: neither for their lengths nor for "
       "--patience."},
      {"SIGKILL",
       "What was filled is free again. What is stopped stays stopped until somebody sends SIGCONT. "
       "A job with one launcher runs on. Of one of several nodes, which reach their coordinator "
       "through this program, the launchers end within a minute, and the coordinator waits for "
       "them "
       "until `fsdpctl stop`."}};
  static const std::vector<TextEntry> none;
  if (IsCommand(program)) {
    return none;
  }
  return program == CliProgram::kChaos ? chaos : program == CliProgram::kFsdprun ? launcher : agent;
}

const std::vector<TextEntry>& ExitCodeTexts(CliProgram program) {
  static const std::vector<TextEntry> launcher = {
      {"0", "All workers ended with 0."},
      {"1",
       "A worker failed and no restart was left, the rendezvous failed, a signal ended the job, or "
       "an option has a value that means nothing. --exit-code=worker: a failed job ends with the "
       "code of its root cause instead, or with 128 + n for signal n."},
      {"2", "The command line cannot be read: an unknown option, a missing value, no program."},
  };
  static const std::vector<TextEntry> agent = {
      {"0",
       "The job ended with 0, or ended well without this node. Of a daemon: it was told to end."},
      {"1", "The job failed, the agent could not join it, or a signal ended the agent."},
      {"2",
       "The command line cannot be read or means nothing; systemd's RestartPreventExitStatus=2 "
       "keeps such an agent from being started again."},
  };
  static const std::vector<TextEntry> command = {
      {"0", "Slurm has the job."},
      {"1",
       "An option has a value that means nothing, the job cannot be joined, or Slurm refused it; "
       "its message is shown."},
      {"2", "The command line cannot be read: an unknown option, a missing value, no program."},
  };
  static const std::vector<TextEntry> job_command = {
      {"0", "Done; of what is followed: the job is over."},
      {"1",
       "There is no such job, or several; its coordinator cannot be asked, or has refused; or an "
       "option has a value that means nothing."},
      {"2", "The command line cannot be read."},
  };
  static const std::vector<TextEntry> chaos = {
      {"0",
       "At least one fault was injected and the job has come through all of them; it has ended "
       "with 0, or runs on where its end was not waited for; --verify has ended with 0."},
      {"1",
       "A fault was not survived; faults of a schedule, or all of a kind to a target, could not be "
       "done, or the job has ended before they came; the job or --verify has failed, or nobody "
       "knows how the job has ended; a signal came; there is no such job; the report of --json "
       "could not be written; or an option has a value that means nothing. The report says "
       "which."},
      {"2", "The command line cannot be read."},
  };
  if (program == CliProgram::kChaos) {
    return chaos;
  }
  static const std::vector<TextEntry> doctor = {
      {"0", "Nothing was found that keeps a job from running; warnings and notes are allowed."},
      {"1", "There are problems, or the nodes did not meet; or an option's value means nothing."},
      {"2", "The command line cannot be read."},
  };
  if (program == CliProgram::kDoctor) {
    return doctor;
  }
  if (IsJobCommand(program)) {
    return job_command;
  }
  if (IsCkptCommand(program)) {
    return CkptExitCodes(program);
  }
  if (IsCommand(program)) {
    return command;
  }
  return program == CliProgram::kFsdprun ? launcher : agent;
}

const std::vector<TextEntry>& VariableTexts(CliProgram program) {
  static const std::vector<TextEntry> none;
  static const std::vector<TextEntry> texts = {
      {"FSDPRUN_TOKEN", "Job token, the same on all nodes (a random string). See --token-file."},
      {"PYTHON_EXEC", "Python interpreter for scripts and modules (default: python3 on PATH)."},
      {"LOGLEVEL", "DEBUG, INFO, WARNING (default) or ERROR."},
      {"TMPDIR", "Where temporary log directories go (default: /tmp)."},
      {"TORCHELASTIC_ERROR_FILE",
       "Where a failed job's root cause is written for an outer launcher."},
      {"TORCHELASTIC_ENABLE_FILE_TIMER",
       "1: the watchdog signals workers that do not leave a section of "
       "torch.distributed.elastic.timer in time."},
      {"TORCHELASTIC_TIMER_FILE", "The watchdog's FIFO (default: a private one in TMPDIR)."},
      {"TORCHELASTIC_HEALTH_CHECK_PORT",
       "Port for HTTP probes, on all interfaces: GET /healthz (with ?max_progress_age=SECONDS also "
       "about the workers' progress), GET /status, and GET /metrics for Prometheus."},
      {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
       "1: rank 0 serves the workers' store, not its agent (not with static rendezvous)."},
  };
  return IsCommand(program) || program == CliProgram::kChaos ? none : texts;
}

}  // namespace fsdprun
