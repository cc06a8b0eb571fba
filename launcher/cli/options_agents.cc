#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

}  // namespace

std::vector<OptionSpec> AgentsOptions() {
  return {
      {.name = "agents",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .metavar = "HOST[:PORT],...",
       .default_text = "none",
       .completion = C::kHost,
       .help =
           "Run the job on these nodes, in this order, by the daemons (fsdp-agent --daemon) that "
           "run there; no worker runs here unless this machine is one of them. This program "
           "hosts the coordinator. Port: 29410 unless given."},
      {.name = "hostfile",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .metavar = "FILE",
       .default_text = "none",
       .completion = C::kFile,
       .help =
           "The same from a file with one HOST[:PORT] [slots=N] in a line, where N is the number "
           "of workers there, in place of --nproc-per-node; # begins a comment."},
      {.name = "forward-env",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .metavar = "all|none|NAME,...",
       .default_text = "all",
       .help =
           "Which variables the nodes' workers get from here, over those of the daemon: NAME or "
           "PREFIX*. all: but for those about this machine and this login (HOME, TMPDIR, SSH_*, "
           "CUDA_VISIBLE_DEVICES and the like). FSDPRUN_TOKEN is never sent."},
      {.name = "detach",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "With --agents or --hostfile: the job goes on without this program, which prints the "
           "job's id, for --attach, once the workers are started, and ends. The coordinator runs "
           "at the first host's daemon, and what the job prints is kept there."},
      {.name = "attach",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .reads_variable = false,
       .metavar = "JOB",
       .default_text = "none",
       .help =
           "Show what the job prints that --detach has named, from its beginning, and exit with "
           "its code. SIGINT and SIGTERM are the job's, as if it ran here; any other end of this "
           "program leaves it alone."},
  };
}

std::vector<OptionSpec> SshOptionSpecs() {
  return {
      {.name = "ssh",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "With --hostfile or --agents: start the nodes' parts of the job with ssh, where no "
               "daemons run. [USER@]HOST[:PORT] is then where sshd listens; port: as ssh knows it. "
               "Output, signals and exit code are as with daemons."},
      {.name = "ssh-command",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .metavar = "COMMAND",
       .default_text = "ssh",
       .help =
           "With --ssh: what is run in place of ssh, with its first words, between blanks, such as "
           "'ssh -p 2222 -i key'."},
      {.name = "ssh-program",
       .family = F::kOwn,
       .group = G::kAgents,
       .launcher_only = true,
       .metavar = "PATH",
       .default_text = "the path of this program",
       .completion = C::kFile,
       .help = "With --ssh: fsdprun on the nodes, where it is not under the same path as here."},
  };
}

std::vector<OptionSpec> DaemonOptionSpecs() {
  return {
      {.name = "daemon",
       .family = F::kOwn,
       .group = G::kAgents,
       .agent_only = true,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Run parts of jobs for launchers that prove the token (fsdprun --agents), as this "
               "process's user, until a signal ends it. No program is given."},
      {.name = "listen",
       .family = F::kOwn,
       .group = G::kAgents,
       .agent_only = true,
       .metavar = "ADDR[:PORT]",
       .default_text = "[::]:29410",
       .help =
           "With --daemon: where it listens, as a number; [::] and 0.0.0.0 are all addresses of "
           "this machine. With --no-token a loopback address is needed."},
      {.name = "slots",
       .family = F::kOwn,
       .group = G::kAgents,
       .agent_only = true,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "one for each device, else for each CPU",
       .help = "With --daemon: how many workers run here at the same time, of all jobs."},
      {.name = "devices",
       .family = F::kOwn,
       .group = G::kAgents,
       .agent_only = true,
       .metavar = "ID,...|none",
       .default_text = "the visible GPUs",
       .help =
           "With --daemon: what jobs get in CUDA_VISIBLE_DEVICES, one for each worker, and each "
           "for one job at a time."},
      {.name = "launcher-grace",
       .family = F::kOwn,
       .group = G::kAgents,
       .agent_only = true,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "30",
       .help =
           "With --daemon: how long a job whose launcher cannot be heard of runs on, before this "
           "node's part of it is stopped in order."},
      {.name = "runtime-dir",
       .family = F::kOwn,
       .group = G::kAgents,
       .agent_only = true,
       .metavar = "DIR",
       .default_text =
           "fsdprun-daemon-PORT in $XDG_RUNTIME_DIR, else in /tmp with the user's number",
       .completion = C::kDirectory,
       .help =
           "With --daemon: a folder of a local file system, made if need be (mode 700), for what "
           "a daemon needs that is started after this one, and the jobs' output until it is "
           "sent."},
  };
}

}  // namespace fsdprun
