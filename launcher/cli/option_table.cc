#include "launcher/cli/option_table.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using G = OptionGroup;

constexpr absl::string_view kPending[] = {
    "numa-binding", "forward-signals", "stop-signal-to", "use-env",
    "compat",       "omp-threads",     "stdin",
};

}  // namespace

const char* ProgramName(CliProgram program) {
  return program == CliProgram::kFsdprun ? "fsdprun" : "fsdp-agent";
}

const std::vector<OptionSpec>& OptionTable() {
  static const std::vector<OptionSpec> table = [] {
    std::vector<OptionSpec> all;
    for (const auto& part : {NodeOptions(), RendezvousOptions(), FailureOptions(), StopOptions(),
                             LogOptions(), ProgramOptions(), WorkerOptions(), OtherOptions()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

const std::vector<OptionGroupTitle>& OptionGroupTitles() {
  static const std::vector<OptionGroupTitle> titles = {
      {G::kNodes, "Nodes and workers"},
      {G::kRendezvous, "Rendezvous"},
      {G::kFailures, "Failures"},
      {G::kStopping, "Stopping"},
      {G::kOutput, "Logs"},
      {G::kProgram, "What to run"},
      {G::kWorkers, "Worker processes"},
      {G::kOther, "Other"},
  };
  return titles;
}

std::string OptionVariableName(const OptionSpec& option) {
  return absl::StrCat("PET_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(option.name, {{"-", "_"}})));
}

bool IsPending(const OptionSpec& option) {
  return std::find(std::begin(kPending), std::end(kPending), option.name) != std::end(kPending);
}

bool Offers(CliProgram program, const OptionSpec& option) {
  return !IsPending(option) && (program == CliProgram::kFsdprun || !option.launcher_only);
}

}  // namespace fsdprun
