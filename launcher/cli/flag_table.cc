#include "launcher/cli/flag_table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace fsdprun {
namespace {

struct UnsupportedName {
  const char* name;
  char letter;
};
// Flags of torchrun that change behaviour: refusing them is safer than ignoring them.
constexpr UnsupportedName kUnsupported[] = {
    {"tee", 't'},
    {"redirects", 'r'},
    {"local-ranks-filter", 0},
    {"run-path", 0},
    {"start-method", 0},
    {"signals-to-handle", 0},
    {"event-log-handler", 0},
    {"logs-specs", 0},
    {"virtual-local-rank", 0},
    {"numa-binding", 0},
    {"duplicate-stdout-filters", 0},
    {"duplicate-stderr-filters", 0},
};

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

// The flag with the smallest edit distance, if it is close enough to be suggested.
const FlagSpec* Nearest(CliProgram program, absl::string_view name) {
  const FlagSpec* best = nullptr;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const FlagSpec& flag : FlagTable()) {
    const size_t distance = EditDistance(name, flag.name);
    if (Offers(program, flag) && distance < best_distance) {
      best = &flag;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

bool Offers(CliProgram program, const FlagSpec& flag) {
  return program == CliProgram::kFsdprun || !flag.launcher_only;
}

std::string UnsupportedFlag(absl::string_view written) {
  const std::string name = absl::StrReplaceAll(written, {{"_", "-"}});
  for (const UnsupportedName& flag : kUnsupported) {
    if (name == flag.name || (name.size() == 1 && name[0] == flag.letter)) {
      return absl::StrCat("torchrun's --", flag.name, " is not supported yet");
    }
  }
  return "";
}

const char* ProgramName(CliProgram program) {
  return program == CliProgram::kFsdprun ? "fsdprun" : "fsdp-agent";
}

const std::vector<FlagSpec>& FlagTable() {
  using G = FlagGroup;
  static const std::vector<FlagSpec> table = {
      {"standalone", 0, false, "", "off", G::kNodes, true,
       "One node, a random run id, free ports. Overrides the rendezvous flags."},
      {"nnodes", 0, true, "N|MIN:MAX", "1", G::kNodes, true,
       "Nodes of the job. With MIN:MAX the job starts with MIN nodes once --rdzv-conf's "
       "last_call_timeout has passed, "
       "at once with MAX."},
      {"nproc-per-node", 0, true, "N|cpu|gpu|auto", "1", G::kNodes, false,
       "Workers on this node. auto: one per GPU, or one per usable CPU without GPUs."},
      {"node-rank", 0, true, "N", "0 (static)", G::kNodes, false,
       "This node's rank. Static rendezvous needs it; node 0 hosts the coordinator. Ignored with "
       "c10d."},
      {"role", 0, true, "NAME", "default", G::kNodes, false, "ROLE_NAME of this node's workers."},

      {"rdzv-backend", 0, true, "c10d|static", "static", G::kRendezvous, true,
       "c10d: the launcher that binds the endpoint first hosts the coordinator; surviving nodes "
       "keep their order, new ones are ordered by name. static: node rank 0 hosts it."},
      {"rdzv-endpoint", 0, true, "HOST[:PORT]",
       "c10d: localhost:29400; static: master-addr:master-port", G::kRendezvous, false,
       "Where the coordinator listens."},
      {"rdzv-id", 0, true, "ID", "none", G::kRendezvous, false,
       "Run id; must be the same on all nodes of a job."},
      {"rdzv-conf", 0, true, "K=V,...", "join_timeout=600,last_call_timeout=30", G::kRendezvous,
       false, "Timeouts in seconds. Unknown keys are ignored, as by torchrun."},
      {"master-addr", 0, true, "ADDR", "127.0.0.1", G::kRendezvous, true,
       "Static: address of node rank 0."},
      {"master-port", 0, true, "PORT", "29500", G::kRendezvous, true,
       "Static: port of node rank 0. If the default port of a one-node job is in use, a free one "
       "is "
       "taken."},
      {"local-addr", 0, true, "ADDR", "from the route to the coordinator", G::kRendezvous, false,
       "Address of this node that the others can reach."},
      {"token-file", 0, true, "FILE", "FSDPRUN_TOKEN, else a private file on this machine",
       G::kRendezvous, false,
       "File with the job token; overrides the variable FSDPRUN_TOKEN. Jobs over several machines "
       "need one of them. Keep it private (mode 600)."},

      {"max-restarts", 0, true, "N", "0", G::kFailures, true,
       "How many times all workers of the job are restarted after a failure."},
      {"monitor-interval", 0, true, "SECONDS", "0.1", G::kFailures, false,
       "Accepted for compatibility; has no effect, because workers are not polled."},
      {"shutdown-timeout", 0, true, "SECONDS", "30", G::kFailures, false,
       "Time between the signal and SIGKILL when workers are stopped by an operator or because "
       "nodes join or leave."},
      {"abort-timeout", 0, true, "SECONDS", "2", G::kFailures, true,
       "The same after a failure: the workers that survived it cannot go on without the one that "
       "failed. At most the shutdown timeout."},

      {"log-dir", 0, true, "DIR", "temporary, removed after success", G::kOutput, false,
       "Where DIR/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json} "
       "are written."},

      {"module", 'm', false, "", "off", G::kProgram, false,
       "The program is a Python module (python -u -m)."},
      {"no-python", 0, false, "", "off", G::kProgram, false,
       "The program is an executable, not a Python script."},

      {"dry-run", 0, false, "", "off", G::kOther, false, "Print what would be done and exit."},
      {"help", 'h', false, "", "", G::kOther, false, "Print this text and exit."},
      {"version", 0, false, "", "", G::kOther, false, "Print the version and exit."},
  };
  return table;
}

std::string FlagVariableName(const FlagSpec& flag) {
  return absl::StrCat("PET_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag.name, {{"-", "_"}})));
}

absl::StatusOr<const FlagSpec*> FindFlag(CliProgram program, absl::string_view written) {
  const std::string name = absl::StrReplaceAll(written, {{"_", "-"}});
  std::vector<const FlagSpec*> candidates;
  for (const FlagSpec& flag : FlagTable()) {
    if (!Offers(program, flag) || !absl::StartsWith(flag.name, name)) {
      continue;
    }
    if (name == flag.name) {
      return &flag;
    }
    candidates.push_back(&flag);
  }
  if (candidates.size() == 1) {
    return candidates.front();
  }
  if (!candidates.empty()) {
    const std::string names = absl::StrJoin(
        candidates, ", ",
        [](std::string* out, const FlagSpec* flag) { absl::StrAppend(out, "--", flag->name); });
    return absl::InvalidArgumentError(
        absl::StrCat("--", written, " is ambiguous: it could be ", names));
  }
  if (const std::string unsupported = UnsupportedFlag(name); !unsupported.empty()) {
    return absl::InvalidArgumentError(unsupported);
  }
  std::string message = absl::StrCat("unknown flag --", written);
  if (const FlagSpec* nearest = Nearest(program, name)) {
    absl::StrAppend(&message, "; did you mean --", nearest->name, "?");
  } else {
    absl::StrAppend(&message, "; see ", ProgramName(program), " --help");
  }
  return absl::InvalidArgumentError(message);
}

const FlagSpec* FindShortFlag(CliProgram program, char letter) {
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.short_name == letter && Offers(program, flag)) {
      return &flag;
    }
  }
  return nullptr;
}

namespace {

constexpr size_t kHelpWidth = 96;
constexpr size_t kHelpIndent = 8;

struct GroupTitle {
  FlagGroup group;
  const char* title;
};
constexpr GroupTitle kGroupTitles[] = {
    {FlagGroup::kNodes, "Nodes and workers"}, {FlagGroup::kRendezvous, "Rendezvous"},
    {FlagGroup::kFailures, "Failures"},       {FlagGroup::kOutput, "Logs"},
    {FlagGroup::kProgram, "What to run"},     {FlagGroup::kOther, "Other"},
};

void AppendWrapped(absl::string_view text, std::string* out) {
  std::string line(kHelpIndent, ' ');
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const absl::string_view word = text.substr(0, space);
    text = space == absl::string_view::npos ? absl::string_view() : text.substr(space + 1);
    if (line.size() > kHelpIndent && line.size() + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(out, line, "\n");
      line.assign(kHelpIndent, ' ');
    }
    absl::StrAppend(&line, line.size() > kHelpIndent ? " " : "", word);
  }
  absl::StrAppend(out, line, "\n");
}

void AppendFlag(const FlagSpec& flag, std::string* out) {
  absl::StrAppend(out, "  ");
  if (flag.short_name != 0) {
    absl::StrAppend(out, "-", std::string(1, flag.short_name), ", ");
  }
  absl::StrAppend(out, "--", flag.name);
  if (flag.takes_value) {
    absl::StrAppend(out, " ", flag.metavar);
  }
  absl::StrAppend(out, "\n");
  AppendWrapped(flag.help, out);
  if (*flag.default_text != '\0') {
    AppendWrapped(absl::StrCat("Default: ", flag.default_text,
                               ". Environment: ", FlagVariableName(flag), "."),
                  out);
  }
}

constexpr char kLauncherIntro[] =
    "usage: fsdprun [flags] PROGRAM [arguments of PROGRAM]\n"
    "\n"
    "Starts PROGRAM as the workers of one distributed job, monitors them, restarts them after a\n"
    "failure and leaves no process behind. Command line and environment are torchrun's.\n"
    "\n"
    "  fsdprun --standalone --nproc-per-node 4 train.py\n"
    "  fsdprun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train.py\n"
    "  fsdprun --standalone --nproc-per-node 2 --no-python fsdp-train --config run.json\n";
constexpr char kAgentIntro[] =
    "usage: fsdp-agent --rdzv-endpoint HOST:PORT --rdzv-id ID [flags] PROGRAM [arguments of "
    "PROGRAM]\n"
    "\n"
    "The agent of one node as a separate program, for service managers: it runs PROGRAM as this\n"
    "node's workers whenever the coordinator at the endpoint (an fsdprun) forms a world. It never\n"
    "hosts the coordinator, never runs a command from the network, and joins again with a new\n"
    "incarnation when the connection breaks. It exits with the job, on a signal, or when it "
    "cannot\n"
    "join within join_timeout.\n"
    "\n"
    "  FSDPRUN_TOKEN=... fsdp-agent --rdzv-endpoint 10.0.0.1:29400 --rdzv-id run7 train.py\n";
constexpr char kRules[] =
    "\n"
    "Flags may be written with dashes or underscores, as --flag value or --flag=value, and "
    "shortened\n"
    "while unambiguous. They end at PROGRAM: what follows is passed to it unchanged, except for\n"
    "${local_rank} and $local_rank, which become the worker's local rank ($$ is a plain $).\n"
    "The command line wins over the PET_* environment.\n";
constexpr char kSignalsAndExits[] =
    "\nSignals:\n"
    "  SIGINT, SIGTERM, SIGHUP, SIGQUIT\n"
    "        Where the coordinator runs (one node, or node 0), first: the same signal goes to "
    "every\n"
    "        worker, the job ends within the shutdown timeout and exits 1. On another node, first: "
    "only\n"
    "        its own workers are stopped and it leaves the job, which continues if --nnodes "
    "allows.\n"
    "        Second: this node's workers are killed at once; at the coordinator, those of all "
    "nodes.\n"
    "  SIGKILL\n"
    "        The keeper kills the workers of this node and all their descendants.\n"
    "\nExit codes:\n"
    "  0     all workers ended with 0\n"
    "  1     a worker failed and no restart was left, the rendezvous failed, or a signal ended "
    "the job\n"
    "  2     the command line is invalid\n"
    "\nEnvironment:\n"
    "  FSDPRUN_TOKEN   job token, the same on all nodes (a random string)\n"
    "  PYTHON_EXEC     Python interpreter for scripts and modules (default: python3 on PATH)\n"
    "  LOGLEVEL        DEBUG, INFO, WARNING (default) or ERROR\n"
    "  TMPDIR          where temporary log directories go (default: /tmp)\n";

}  // namespace

std::string HelpText(CliProgram program) {
  std::string text = program == CliProgram::kFsdprun ? kLauncherIntro : kAgentIntro;
  absl::StrAppend(&text, kRules);
  for (const auto& [group, title] : kGroupTitles) {
    absl::StrAppend(&text, "\n", title, ":\n");
    for (const FlagSpec& flag : FlagTable()) {
      if (flag.group == group && Offers(program, flag)) {
        AppendFlag(flag, &text);
      }
    }
  }
  absl::StrAppend(&text, kSignalsAndExits, "\nNot supported yet, of torchrun's flags:\n");
  AppendWrapped(absl::StrJoin(kUnsupported, ", ",
                              [](std::string* out, const UnsupportedName& flag) {
                                absl::StrAppend(out, "--", flag.name);
                              }),
                &text);
  return text;
}

}  // namespace fsdprun
