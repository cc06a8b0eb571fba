#include "launcher/cli/option_table.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using G = OptionGroup;

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

bool Offers(CliProgram program, const OptionSpec& option) {
  return program == CliProgram::kFsdprun || !option.launcher_only;
}

}  // namespace fsdprun
