// fsdp-train: the worker. Reads command line and environment once, runs one command, and turns what
// went wrong into one line, an error file and an exit code of the contract.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "proto/worker_contract.h"
#include "worker/contract/control_channel.h"
#include "worker/contract/error_file.h"
#include "worker/contract/worker_environment.h"
#include "worker/train/command_line.h"
#include "worker/train/config.h"
#include "worker/train/sampling.h"
#include "worker/train/stop_signal.h"
#include "worker/train/trainer.h"

namespace fsdprun::worker {
namespace {

constexpr char kVersion[] = "0.1.0";

/// c10::Error appends a backtrace; the first line says it all.
std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

int Fail(const std::string& error_file, std::string_view type, std::string_view text, int code) {
  const std::string line = FirstLine(text);
  std::fflush(stdout);
  std::fprintf(stderr, "fsdp-train: %s\n", line.c_str());
  const std::string problem = WriteErrorFile(error_file, type, line, text);
  if (!problem.empty()) {
    std::fprintf(stderr, "fsdp-train: %s\n", problem.c_str());
  }
  return code;
}

int Train(const CommandLine& line, const WorkerEnvironment& environment) {
  ControlChannel channel(environment.control_fd);
  channel.SendHello(environment.rank, environment.generation);
  StopSignal::Install();
  Trainer trainer(ResolveConfig(line.config, line.overrides), environment, channel);
  trainer.Run();
  channel.SendDone();
  return contract::kExitOk;
}

int SampleCommand(const CommandLine& line) {
  // Sampling is a world of one wherever it runs; "auto" lets it pick a GPU.
  Json resolved = ResolveConfig(line.config, line.overrides);
  Sample(ParseConfig(resolved), line.sample, [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  std::fputc('\n', stdout);
  return contract::kExitOk;
}

int RunCommand(const std::vector<std::string>& arguments, const WorkerEnvironment& environment) {
  const CommandLine line = ParseCommandLine(arguments);
  switch (line.command) {
    case Command::kHelp:
      std::fputs(HelpText().c_str(), stdout);
      return contract::kExitOk;
    case Command::kVersion:
      std::printf("fsdp-train %s\n", kVersion);
      return contract::kExitOk;
    case Command::kPrintConfig:
      std::printf("%s\n", ResolveConfig(line.config, line.overrides).dump(2).c_str());
      return contract::kExitOk;
    case Command::kSample:
      return SampleCommand(line);
    case Command::kTrain:
      return Train(line, environment);
  }
  return contract::kExitFailure;
}

int Main(const std::vector<std::string>& arguments) {
  const char* path = std::getenv(contract::kEnvErrorFile);
  const std::string error_file = path != nullptr ? path : "";
  try {
    return RunCommand(arguments, ParseWorkerEnvironment(ReadProcessEnvironment()));
  } catch (const ConfigError& error) {
    return Fail(error_file, "ConfigError", error.what(), contract::kExitConfig);
  } catch (const std::invalid_argument& error) {
    return Fail(error_file, "EnvironmentError", error.what(), contract::kExitConfig);
  } catch (const std::exception& error) {
    return Fail(error_file, "RuntimeError", error.what(), contract::kExitFailure);
  }
}

}  // namespace
}  // namespace fsdprun::worker

int main(int argc, char** argv) {
  return fsdprun::worker::Main(std::vector<std::string>(argv + 1, argv + argc));
}
