#pragma once

#include <string>
#include <vector>

namespace fsdprun {

/// An option of sbatch.
struct Directive {
  std::string name;   ///< Without dashes.
  std::string value;  ///< Empty for a switch.

  bool operator==(const Directive&) const = default;
};

/// What becomes a batch file. Plain data.
struct BatchFile {
  std::vector<Directive> directives;
  /// As they are, in front of the command.
  std::string setup;
  /// In place of the shell, so that it gets the signals that Slurm sends to the shell alone, and
  /// its exit code is the job's.
  std::vector<std::string> command;
};

/// Pure.
std::string BatchText(const BatchFile& file);

}  // namespace fsdprun
