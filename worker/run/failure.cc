#include "worker/run/failure.h"

#include <fsdp/collectives.h>

#include <cstdio>
#include <string_view>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/error.h"
#include "formats/json/strict_json.h"
#include "proto/worker_contract.h"
#include "worker/config/command_line.h"
#include "worker/contract/error_file.h"
#include "worker/data/data_file.h"
#include "worker/run/out_of_memory.h"
#include "worker/run/stop_signal.h"
#include "worker/world/agreement.h"

namespace fsdprun::worker {
namespace {

/// How long a victim waits to be killed with the job before it reports its own error.
constexpr auto kVictimDelay = std::chrono::milliseconds(1000);
/// The same for a rank whose failure another rank reports; that one must leave LibTorch first.
constexpr auto kSharedDelay = std::chrono::milliseconds(3000);
constexpr int kExitUsage = 2;

/// c10::Error appends a backtrace; the first line is the message.
std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

Failure Describe(const char* type, const std::exception& error, int exit_code, bool is_shared) {
  return {type, FirstLine(error.what()), error.what(), exit_code, is_shared};
}

}  // namespace

Failure DescribeFailure(const std::exception_ptr& error, bool is_launched) {
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& usage) {
    return Describe("UsageError", usage, is_launched ? contract::kExitConfig : kExitUsage, true);
  } catch (const DisagreementError& disagreement) {
    Failure failure = Describe("DisagreementError", disagreement, contract::kExitConfig, true);
    failure.is_of_all_ranks = true;
    return failure;
  } catch (const TokenIdError& token) {
    // Each rank reads other parts of the data.
    return Describe("TokenIdError", token, contract::kExitConfig, false);
  } catch (const ConfigError& config) {
    return Describe("ConfigError", config, contract::kExitConfig, true);
  } catch (const EnvironmentError& environment) {
    return Describe("EnvironmentError", environment, contract::kExitConfig, false);
  } catch (const checkpoint::ClaimHeldError& held) {
    return Describe("ClaimHeldError", held, contract::kExitConfig, true);
  } catch (const checkpoint::CheckpointError& checkpoint) {
    return Describe("CheckpointError", checkpoint, contract::kExitFailure, true);
  } catch (const DivergedError& diverged) {
    return Describe("DivergedError", diverged, contract::kExitFailure, true);
  } catch (const MemoryError& memory) {
    // Of this rank; the others wait for it.
    return Describe("MemoryError", memory,
                    memory.is_final() ? contract::kExitConfig : contract::kExitFailure, false);
  } catch (const fsdp::PeerError& peer) {
    Failure failure = Describe("PeerError", peer, contract::kExitPeerLost, false);
    failure.is_victim = true;
    return failure;
  } catch (const std::exception& other) {
    return Describe("RuntimeError", other, contract::kExitFailure, false);
  }
}

std::string ConsoleLine(const Failure& failure, const WorkerEnvironment& environment) {
  const bool is_reported_once = failure.is_shared && environment.rank == 0;
  const std::string rank = environment.world_size > 1 && !is_reported_once
                               ? "rank " + std::to_string(environment.rank) + ": "
                               : std::string();
  return "fsdp-train: " + rank + failure.line;
}

int ReportFailure(const Failure& failure, const WorkerEnvironment& environment) {
  std::fflush(stdout);
  const int place = failure.is_of_all_ranks ? environment.rank : environment.local_rank;
  if (failure.is_shared && place != 0) {
    // Before the error file, because the launcher takes the first for the cause.
    StopSignal::WaitForTermination(kSharedDelay);
  }
  const std::string problem =
      WriteErrorFile(environment.error_file, failure.type, failure.line, failure.text);
  if (failure.is_victim) {
    StopSignal::WaitForTermination(kVictimDelay);
  }
  std::fprintf(stderr, "%s\n", ConsoleLine(failure, environment).c_str());
  if (!problem.empty()) {
    std::fprintf(stderr, "fsdp-train: %s\n", problem.c_str());
  }
  return failure.exit_code;
}

}  // namespace fsdprun::worker
