#include "launcher/slurm/srun_message.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/slurm/node_list.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kErrorPrefix = "srun: error: ";
constexpr absl::string_view kFatalPrefix = "srun: fatal: ";
constexpr absl::string_view kNodeFailure = "Node failure on ";

std::optional<SrunTasksEnded> EndedOn(absl::string_view node_list, absl::string_view how) {
  auto nodes = ExpandNodeList(std::string(node_list));
  if (!nodes.ok() || nodes->empty()) {
    return std::nullopt;
  }
  return SrunTasksEnded{*std::move(nodes), std::string(how)};
}

}  // namespace

std::string ReadSrunError(absl::string_view line) {
  const bool is_error =
      absl::ConsumePrefix(&line, kErrorPrefix) || absl::ConsumePrefix(&line, kFatalPrefix);
  return is_error ? std::string(absl::StripAsciiWhitespace(line)) : "";
}

std::optional<SrunTasksEnded> ReadTasksEnded(absl::string_view line) {
  const std::string text = ReadSrunError(line);
  if (absl::string_view nodes = text; absl::ConsumePrefix(&nodes, kNodeFailure)) {
    return EndedOn(nodes, text);
  }
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(": ", 2));
  const bool is_about_tasks = parts.size() == 3 && (absl::StartsWith(parts[1], "task ") ||
                                                    absl::StartsWith(parts[1], "tasks "));
  if (!is_about_tasks) {
    return std::nullopt;
  }
  return EndedOn(parts[0], parts[2]);
}

bool IsControllerAway(absl::string_view srun_error) {
  for (const absl::string_view words :
       {"Unable to contact slurm controller", "Socket timed out on send/recv", "standby mode",
        "Communication connection failure", "Message send failure", "Message receive failure",
        "Zero Bytes were transmitted or received"}) {
    if (absl::StrContains(srun_error, words)) {
      return true;
    }
  }
  return false;
}

std::string StepAdvice(absl::string_view srun_error, absl::string_view job) {
  for (const absl::string_view words : {"Invalid job id", "already complet", "expired"}) {
    if (absl::StrContains(srun_error, words)) {
      return absl::StrCat("the allocation, SLURM_JOB_ID=", job,
                          ", is over: get another from salloc or sbatch");
    }
  }
  if (IsControllerAway(srun_error)) {
    return "see why Slurm's controller does not answer (scontrol ping), then submit the job again";
  }
  return "compare what was granted (scontrol show job) with --srun-args and with srun's variables "
         "(SRUN_*, SLURM_*)";
}

}  // namespace fsdprun
