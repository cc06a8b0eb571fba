#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// What a launcher in the shell of a Slurm job leaves for those who let more nodes join it.
/// Contains the job's token: for this user's eyes only.
struct SlurmJoinRecord {
  /// As people name it: `12`, `12_3`.
  std::string job;
  std::string cluster;
  std::string run_id;
  /// How often the job was requeued, as Slurm writes it; empty for never.
  std::string restarts;
  std::string token;
  /// Addresses of the coordinator, separated by commas.
  std::string coordinators;
  /// Where the launcher was started.
  std::string folder;
  /// The launcher and its arguments.
  std::vector<std::string> command;
  /// Of RecordedEnvironment().
  Environment environment;
  /// What the job was granted, by sbatch's names of options: another of the kind needs the same.
  std::map<std::string, std::string> resources;

  bool operator==(const SlurmJoinRecord&) const = default;
};

/// The record as a text, and back. Any bytes but NUL may be in it. Pure. Errors: INVALID_ARGUMENT
/// with what is wrong.
std::string EncodeJoinRecord(const SlurmJoinRecord& record);
absl::StatusOr<SlurmJoinRecord> DecodeJoinRecord(absl::string_view text);

/// What Slurm's variables in the shell of a job say that it was granted. Pure.
std::map<std::string, std::string> GrantedResources(const Environment& environment);

/// What of a launcher's environment is recorded: not what is about its own place, and no secret of
/// ours. Those of others, such as keys of services, have to be: workers need them everywhere. Pure.
Environment RecordedEnvironment(Environment environment);

/// For agents that join from a job of their own, with the variables `own` there: the recorded
/// environment, with what is about this job and this machine. Pure.
Environment JoinEnvironment(const SlurmJoinRecord& record, const Environment& own);

}  // namespace fsdprun
