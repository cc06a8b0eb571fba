#include "launcher/slurm/srun_message.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/slurm/node_list.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kErrorPrefix = "srun: error: ";
constexpr absl::string_view kFatalPrefix = "srun: fatal: ";

}  // namespace

std::string ReadSrunError(absl::string_view line) {
  const bool is_error =
      absl::ConsumePrefix(&line, kErrorPrefix) || absl::ConsumePrefix(&line, kFatalPrefix);
  return is_error ? std::string(absl::StripAsciiWhitespace(line)) : "";
}

std::optional<SrunTasksEnded> ReadTasksEnded(absl::string_view line) {
  const std::string text = ReadSrunError(line);
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(": ", 2));
  const bool is_about_tasks = parts.size() == 3 && (absl::StartsWith(parts[1], "task ") ||
                                                    absl::StartsWith(parts[1], "tasks "));
  if (!is_about_tasks) {
    return std::nullopt;
  }
  auto nodes = ExpandNodeList(parts[0]);
  if (!nodes.ok() || nodes->empty()) {
    return std::nullopt;
  }
  return SrunTasksEnded{*std::move(nodes), parts[2]};
}

}  // namespace fsdprun
