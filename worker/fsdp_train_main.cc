// fsdp-train: the worker. Reads command line and environment once, runs one command, and reports a
// failure as one line, an error file and an exit code of the contract.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "proto/release.h"
#include "proto/standard_streams.h"
#include "proto/worker_contract.h"
#include "worker/config/accelerate_settings.h"
#include "worker/config/command_line.h"
#include "worker/config/presets.h"
#include "worker/config/resolve.h"
#include "worker/contract/control_channel.h"
#include "worker/contract/worker_environment.h"
#include "worker/data/open_file_limit.h"
#include "worker/estimate/run_estimate.h"
#include "worker/run/check.h"
#include "worker/run/failure.h"
#include "worker/run/sampling.h"
#include "worker/run/trainer.h"
#include "worker/tokenize/tokenize.h"

namespace fsdprun::worker {
namespace {

/// The settings of a file of accelerate stand behind those that are given in our own words.
ConfigSources SourcesOf(const CommandLine& line, const WorkerEnvironment& environment) {
  ConfigSources sources{.preset = line.preset, .file = line.config, .overrides = line.overrides};
  if (line.accelerate_config.empty()) {
    return sources;
  }
  AccelerateSettings accelerate =
      SettingsOfAccelerate(ReadAccelerateConfig(line.accelerate_config),
                           {environment.world_size, environment.local_world_size});
  if (environment.rank == 0) {
    for (const std::string& note : accelerate.notes) {
      std::fprintf(stderr, "fsdp-train: %s\n", note.c_str());
    }
  }
  sources.settings = std::move(accelerate.settings);
  sources.settings_source = line.accelerate_config;
  return sources;
}

Json Resolve(const CommandLine& line, const WorkerEnvironment& environment) {
  return ResolveConfig(SourcesOf(line, environment));
}

/// A part of a configuration must not pass for all of it.
int Print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) == EOF || std::fflush(stdout) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot write to standard output");
  }
  return contract::kExitOk;
}

int Train(const CommandLine& line, const WorkerEnvironment& environment) {
  ControlChannel channel(environment.control_fd);
  channel.SendHello(environment.rank, environment.generation);
  Trainer trainer(Resolve(line, environment), environment, channel);
  trainer.Run();
  channel.SendDone();
  return contract::kExitOk;
}

int EstimateCommand(const CommandLine& line, const WorkerEnvironment& environment) {
  const std::string text = RunEstimate(MergeSources(SourcesOf(line, environment)), line.estimate,
                                       environment.world_size);
  return environment.rank == 0 ? Print(text) : contract::kExitOk;
}

int CheckCommand(const CommandLine& line, const WorkerEnvironment& environment) {
  const int64_t ranks = line.estimate.ranks > 0 ? line.estimate.ranks : environment.world_size;
  std::string text;
  CheckRun(Resolve(line, environment), ranks, environment,
           [&text](const std::string& part) { text += part; });
  return environment.rank == 0 ? Print(text) : contract::kExitOk;
}

int SampleCommand(const CommandLine& line, const WorkerEnvironment& environment) {
  const auto write = [is_first = environment.rank == 0](std::string_view text) {
    if (is_first) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  };
  // The model is sharded over all ranks of the job, and every rank samples the same bytes.
  Sample(line, write);
  write("\n");
  return contract::kExitOk;
}

int RunCommand(const std::vector<std::string>& arguments, const WorkerEnvironment& environment) {
  const CommandLine line = ParseCommandLine(arguments);
  switch (line.command) {
    case Command::kHelp:
      return Print(line.help);
    case Command::kVersion:
      return Print(std::string("fsdp-train ") + kRelease + "\n");
    case Command::kPrintConfig:
      return Print(Resolve(line, environment).dump(2) + "\n");
    case Command::kPrintDefaultConfig:
      return Print(CommentedConfig(MergeSources(SourcesOf(line, environment))));
    case Command::kListPresets:
      return Print(DescribePresets());
    case Command::kEstimate:
      return EstimateCommand(line, environment);
    case Command::kCheck:
      return CheckCommand(line, environment);
    case Command::kSample:
      return SampleCommand(line, environment);
    case Command::kTokenize:
      RunTokenize(line.tokenize);
      return contract::kExitOk;
    case Command::kTrain:
      return Train(line, environment);
  }
  return contract::kExitFailure;
}

int Main(const std::vector<std::string>& arguments) {
  // A pipe of metrics or output whose reader has gone is an error of that write.
  std::signal(SIGPIPE, SIG_IGN);
  RaiseOpenFileLimit();
  const std::map<std::string, std::string> variables = ReadProcessEnvironment();
  WorkerEnvironment environment;
  // Read first, so that an invalid variable can be reported in the error file.
  if (const auto path = variables.find(contract::kEnvErrorFile); path != variables.end()) {
    environment.error_file = path->second;
  }
  try {
    environment = ParseWorkerEnvironment(variables);
    return RunCommand(arguments, environment);
  } catch (const std::exception&) {
    return ReportFailure(DescribeFailure(std::current_exception(), environment.is_launched),
                         environment);
  }
}

}  // namespace
}  // namespace fsdprun::worker

int main(int argc, char** argv) {
  return fsdprun::worker::Main(std::vector<std::string>(argv + 1, argv + argc));
}
