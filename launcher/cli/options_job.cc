#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

}  // namespace

std::vector<OptionSpec> NodeOptions() {
  return {
      {.name = "standalone",
       .group = G::kNodes,
       .launcher_only = true,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "One node, a random run id, free ports. Overrides the rendezvous options."},
      {.name = "nnodes",
       .group = G::kNodes,
       .launcher_only = true,
       .metavar = "N|MIN:MAX",
       .default_text = "1",
       .help = "Nodes of the job. With MIN:MAX the job starts with MIN nodes once --rdzv-conf's "
               "last_call_timeout has passed, at once with MAX."},
      {.name = "nproc-per-node",
       .group = G::kNodes,
       .metavar = "N|cpu|gpu|xpu|auto",
       .default_text = "1",
       .completion = C::kWords,
       .words = "auto cpu gpu xpu",
       .help = "Workers on this node. gpu: one per visible NVIDIA or AMD GPU; xpu: per Intel GPU; "
               "cpu: per CPU that this process may use; auto: gpu, else xpu (without those in "
               "processors), else cpu."},
      {.name = "node-rank",
       .group = G::kNodes,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "0 (static)",
       .help = "This node's rank. Static rendezvous needs it; node 0 hosts the coordinator. With "
               "others it is a preference: taken if no other node has it."},
      {.name = "role",
       .group = G::kNodes,
       .metavar = "NAME",
       .default_text = "default",
       .help = "ROLE_NAME of this node's workers."},
      {.name = "srun-args",
       .family = F::kOwn,
       .group = G::kNodes,
       .launcher_only = true,
       .metavar = "WORDS",
       .default_text = "none",
       .help = "In the shell of a Slurm job, further words for the srun that starts the nodes' "
               "agents, separated by blanks (--container-image=...)."},
  };
}

std::vector<OptionSpec> RendezvousOptions() {
  return {
      {.name = "rdzv-backend",
       .group = G::kRendezvous,
       .launcher_only = true,
       .metavar = "c10d|static|etcd|etcd-v2",
       .default_text = "static",
       .completion = C::kWords,
       .words = "c10d static etcd etcd-v2",
       .help = "Who hosts the coordinator. c10d: the launcher that binds the endpoint first; "
               "surviving nodes keep their order, new ones are ordered by name. static: node rank "
               "0. etcd, etcd-v2: the first to write itself down in the etcd at "
               "the endpoint (v3 API, both)."},
      {.name = "rdzv-endpoint",
       .group = G::kRendezvous,
       .metavar = "HOST[:PORT]",
       .default_text =
           "c10d: localhost:29400; etcd: localhost:2379; static: master-addr:master-port",
       .completion = C::kHost,
       .help = "Where the coordinator listens; with etcd where that does, with store_type=file in "
               "--rdzv-conf a file."},
      {.name = "rdzv-id",
       .group = G::kRendezvous,
       .metavar = "ID",
       .default_text = "none",
       .help = "Run id; must be the same on all nodes of a job."},
      {.name = "rdzv-conf",
       .group = G::kRendezvous,
       .metavar = "K=V,...",
       .default_text = "join_timeout=600,last_call_timeout=30",
       .help = "Settings of the rendezvous, see below. Unknown keys are ignored, as by torchrun."},
      {.name = "master-addr",
       .group = G::kRendezvous,
       .launcher_only = true,
       .metavar = "ADDR",
       .default_text = "127.0.0.1",
       .completion = C::kHost,
       .help = "Address of node rank 0, with static rendezvous."},
      {.name = "master-port",
       .group = G::kRendezvous,
       .launcher_only = true,
       .value = V::kInteger,
       .metavar = "PORT",
       .default_text = "29500",
       .help = "Port of node rank 0, with static rendezvous. If the default port of a one-node job "
               "is in use, a "
               "free one is taken."},
      {.name = "local-addr",
       .group = G::kRendezvous,
       .metavar = "ADDR",
       .default_text = "from the route to the coordinator",
       .completion = C::kHost,
       .help = "Name or address of this node that the others can reach; MASTER_ADDR, where this "
               "node serves the workers' store."},
  };
}

std::vector<OptionSpec> SecurityOptions() {
  return {
      {.name = "token-file",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .metavar = "FILE",
       .default_text = "FSDPRUN_TOKEN, else a secret of this user",
       .completion = C::kFile,
       .help = "File with the job token; overrides the variable FSDPRUN_TOKEN. Without both, the "
               "token is ~/.config/fsdprun/secret, which is made at first use: nodes that share a "
               "home directory need no other. Keep it private (mode 600)."},
      {.name = "no-token",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "Do without a job token, as torchrun does: whoever can connect to the coordinator can "
           "join. To be given on all nodes."},
      {.name = "tls-cert",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .metavar = "FILE",
       .default_text = "none: no TLS",
       .completion = C::kFile,
       .help =
           "This node's certificate in PEM, with those of intermediate CAs after it. With it, and "
           "its key, the launcher that hosts the coordinator speaks TLS. Read again when it "
           "changes, as the next two."},
      {.name = "tls-key",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .metavar = "FILE",
       .default_text = "none",
       .completion = C::kFile,
       .help = "The certificate's private key in PEM, without a passphrase (mode 600 or 640)."},
      {.name = "tls-ca",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .metavar = "FILE",
       .default_text = "the system's CAs",
       .completion = C::kFile,
       .help =
           "Certificates of the CAs that issue those of the job, in PEM. An agent takes no other "
           "coordinator, which must have the name or address of --rdzv-endpoint or "
           "--master-addr; a coordinator takes no other agents."},
  };
}

std::vector<OptionSpec> CoordinatorOptions() {
  return {
      {.name = "coordinator",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .launcher_only = true,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Run only the job's coordinator, at --rdzv-endpoint, which must be of this machine: "
               "no program, no workers. The nodes are started as ever, with --rdzv-backend c10d "
               "and the same endpoint and id; those on this machine with is_host=0 in --rdzv-conf. "
               "With --rdzv-backend etcd it listens on a free port, which the nodes find in etcd; "
               "all of them have is_host=0."},
      {.name = "journal",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .launcher_only = true,
       .reads_variable = false,
       .metavar = "DIR|URL",
       .default_text = "none",
       .completion = C::kDirectory,
       .help = "With --coordinator: where to keep what a coordinator must know that takes the job "
               "over. If this one is killed, the same command again goes on with the workers that "
               "run. A folder, made if need be, one for each job; or keys in etcd, for a "
               "coordinator on another machine: etcd://HOST:PORT[,HOST:PORT]/PREFIX, with protocol "
               "and certificates as --rdzv-conf has them."},
  };
}

std::vector<OptionSpec> FailureOptions() {
  return {
      {.name = "max-restarts",
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "0",
       .help = "How many times all workers of the job are restarted after a failure."},
      {.name = "restart-backoff",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .metavar = "SECONDS[:MAX]",
       .default_text = "0",
       .help =
           "Pause before the first restart after a failure, doubled before each further one, up "
           "to MAX (default: 60, or SECONDS if that is more). Begins anew once the workers have "
           "run for longer than MAX."},
      {.name = "requeue",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .metavar = "auto|always|never",
       .default_text = "auto",
       .completion = C::kWords,
       .words = "auto always never",
       .is_choice = true,
       .help =
           "In a job of Slurm that may be requeued: SIGUSR1, SIGUSR2, preemption and the end of "
           "the time limit stop the workers, as SIGTERM does, and then the job is requeued. auto: "
           "at the end of the time limit only if workers have reported steps, or all end with 0 "
           "when they are stopped, and not after three runs in a row without a sign of progress, "
           "but for a preemption; always: also if not, without end, and at SIGTERM without "
           "scancel."},
      {.name = "requeue-margin",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "--shutdown-timeout + 30, at most half of the limit",
       .help = "How long before the end of Slurm's time limit the workers are stopped for that."},
      {.name = "monitor-interval",
       .group = G::kFailures,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "0.1",
       .help = "Accepted for compatibility; has no effect, because workers are not polled."},
      {.name = "exit-code",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .metavar = "torchrun|worker",
       .default_text = "torchrun",
       .completion = C::kWords,
       .words = "torchrun worker",
       .is_choice = true,
       .help = "What this program exits with when a worker has failed: 1, as torchrun, or the exit "
               "code of the worker that is the root cause, 128 + n if signal n killed it."},
  };
}

std::vector<OptionSpec> QuarantineOptions() {
  return {
      {.name = "quarantine-after",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "3",
       .help = "A node that was the first to fail N times in a row, within --quarantine-window, is "
               "left "
               "out as long as there are MIN others; it waits as a spare. It is taken again if the "
               "same "
               "happens without it, or into the first world that is formed after 6 windows, then "
               "12, 24, 48 if it is left out again. 0: never."},
      {.name = "quarantine-window",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "600",
       .help = "Within which those failures count, and whether the same happens without the node."},
  };
}

std::vector<OptionSpec> StopOptions() {
  return {
      {.name = "shutdown-timeout",
       .family = F::kOwn,
       .group = G::kStopping,
       .other_variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "30",
       .help = "Time between the signal and SIGKILL when workers are stopped by an operator or "
               "because nodes join or leave."},
      {.name = "abort-timeout",
       .family = F::kOwn,
       .group = G::kStopping,
       .launcher_only = true,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "2",
       .help = "Time between the signal and SIGKILL after a failure; the workers that survived it "
               "cannot go on without the "
               "one that failed. At most the shutdown timeout."},
      {.name = "signals-to-handle",
       .group = G::kStopping,
       .metavar = "NAME,...",
       .default_text = kDefaultSignals,
       .help =
           "Signals that end the job in an orderly way. An unknown name is only warned "
           "about. Any other signal that ends this process kills the workers, as SIGKILL does."},
      {.name = "forward-signals",
       .family = F::kOwn,
       .group = G::kStopping,
       .metavar = "NAME,...",
       .default_text = "none",
       .help =
           "Signals that go to the workers' own processes, not to what they have started, while "
           "the job goes on: SIGUSR1 of Slurm's --signal, for example. A worker with a control "
           "socket is sent a notice first."},
      {.name = "stop-signal-to",
       .family = F::kOwn,
       .group = G::kStopping,
       .metavar = "group|leader",
       .default_text = "group",
       .completion = C::kWords,
       .words = "group leader",
       .is_choice = true,
       .help =
           "Who gets the signal that stops a worker: all its processes, as with torchrun, or the "
           "worker alone, whose data loaders then live until it has ended. What is left after "
           "the grace period is killed."},
      {.name = "exit-barrier-timeout",
       .family = F::kOwn,
       .group = G::kStopping,
       .other_variable = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT",
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "300",
       .help = "Accepted for compatibility; has no effect, because the coordinator knows when the "
               "workers of all nodes have ended."},
  };
}

}  // namespace fsdprun
