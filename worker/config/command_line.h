#pragma once

#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "worker/config/estimate_request.h"
#include "worker/config/sampling_request.h"
#include "worker/config/tokenize_request.h"

namespace fsdprun::worker {

enum class Command {
  kTrain,
  kPrintConfig,
  kPrintDefaultConfig,
  kListPresets,
  kEstimate,
  kCheck,
  kSample,
  kTokenize,
  kHelp,
  kVersion
};

/// The command line of fsdp-train, parsed.
struct CommandLine {
  Command command = Command::kTrain;
  // Which configuration is meant.
  std::string preset;
  std::string config;
  std::string accelerate_config;
  std::vector<std::string> overrides;

  EstimateRequest estimate;
  SampleRequest sample;
  TokenizeRequest tokenize;
  /// Of Command::kHelp: what is to be printed.
  std::string help;
};

/// An invalid command line. what() is one line.
class UsageError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// `arguments` without the program's name. `--flag value` and `--flag=value` are the same. Errors:
/// UsageError, one line naming the argument and what is expected. Pure.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace fsdprun::worker
