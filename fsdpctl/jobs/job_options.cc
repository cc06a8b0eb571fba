#include "fsdpctl/jobs/job_options.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

/// More workers than any job has.
constexpr int kMaxRank = 1 << 20;

absl::Status CheckEndpoint(const RawOptions& options) {
  const RawValue* endpoint = options.Find("rdzv-endpoint");
  if (endpoint == nullptr) {
    return absl::OkStatus();
  }
  const size_t colon = endpoint->text.rfind(':');
  if (colon == 0 || colon == std::string::npos || colon + 1 == endpoint->text.size()) {
    return InvalidValue(*endpoint, "HOST:PORT, such as node0:29400");
  }
  if (options.TextOf("job").empty()) {
    return absl::InvalidArgumentError(
        "--rdzv-endpoint needs --job: the run id that the job was started with (--rdzv-id)");
  }
  return absl::OkStatus();
}

absl::Status ReadWhich(const RawOptions& options, JobOptions* result) {
  if (const RawValue* ranks = options.Find("rank"); ranks != nullptr) {
    ASSIGN_OR_RETURN(result->ranks, ToRanks(*ranks));
  }
  if (const RawValue* nodes = options.Find("node"); nodes != nullptr) {
    result->nodes = ToTexts(nodes->text);
  }
  if (const RawValue* tail = options.Find("tail"); tail != nullptr) {
    ASSIGN_OR_RETURN(result->tail_lines, ToInt(*tail, 0, "a number of lines, 0 or more"));
  }
  if (const RawValue* timeout = options.Find("timeout"); timeout != nullptr) {
    ASSIGN_OR_RETURN(result->timeout, ToSeconds(*timeout, /*zero_allowed=*/false));
  }
  return absl::OkStatus();
}

/// What the command takes beside its options; empty: nothing.
const char* OperandOf(CliProgram program) {
  switch (program) {
    case CliProgram::kJobDrain:
      return "NODE";
    case CliProgram::kJobScale:
      return "MIN:MAX";
    default:
      return "";
  }
}

struct Words {
  RawOptions options;
  std::string operand;
};

/// Options stand before the operand or behind it.
absl::StatusOr<Words> Split(CliProgram program, const std::vector<std::string>& args) {
  Words words;
  ASSIGN_OR_RETURN(words.options, OptionsAroundOperands(program, args));
  std::vector<std::string>& rest = words.options.program;
  if (OperandOf(program)[0] != '\0' && !rest.empty()) {
    words.operand = rest.front();
    rest.erase(rest.begin());
  }
  return words;
}

absl::Status CheckWords(CliProgram program, const Words& words) {
  if (!words.options.program.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", words.options.program.front(),
                                                   "' is no option; a job is named by --job ID"));
  }
  if (OperandOf(program)[0] != '\0' && words.operand.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no ", OperandOf(program), " was given; see ",
                                                   ProgramName(program), " --help"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int>> ToRanks(const RawValue& value) {
  std::vector<int> ranks;
  for (const absl::string_view part : absl::StrSplit(value.text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last > kMaxRank) {
      return InvalidValue(value, "ranks, such as 0 or 0,4-7");
    }
    for (int rank = first; rank <= last; ++rank) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

absl::StatusOr<JobOptions> ReadJobOptions(CliProgram program,
                                          const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const Words words, Split(program, args));
  const RawOptions& options = words.options;
  JobOptions result{.request = TextRequest(options)};
  if (result.request != Request::kRun) {
    return result;
  }
  RETURN_IF_ERROR(CheckWords(program, words));
  if (program == CliProgram::kJobScale) {
    ASSIGN_OR_RETURN(result.numbers, ToNodeNumbers({"MIN:MAX", words.operand}));
  }
  result.node = words.operand;
  result.may_wait = options.IsOn("below-min");
  RETURN_IF_ERROR(CheckEndpoint(options));
  result.job = options.TextOf("job");
  result.endpoint = options.TextOf("rdzv-endpoint");
  result.token_file = options.TextOf("token-file");
  result.takes_anybody = options.IsOn("no-token");
  result.tls = {options.TextOf("tls-cert"), options.TextOf("tls-key"), options.TextOf("tls-ca")};
  result.follows = options.IsOn("follow");
  result.is_json = options.IsOn("json");
  result.now = options.IsOn("now");
  result.with_workers = options.IsOn("workers");
  result.once = options.IsOn("once");
  RETURN_IF_ERROR(ReadWhich(options, &result));
  return result;
}

}  // namespace fsdprun
