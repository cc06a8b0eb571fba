#pragma once

#include <functional>
#include <memory>
#include <string>

#include "launcher/cli/launch_plan.h"
#include "launcher/journal/journal.h"

namespace fsdprun {

struct JournalOptions {
  JournalPlace place;
  /// How an etcd is reached.
  EtcdOptions etcd;
  JournaledJob job;
  /// Random, for each coordinator.
  std::string holder_id;
  /// Polled while the journal is being opened; may be null.
  std::function<bool()> is_cancelled{};
  /// See EtcdJournal::Options; may be null.
  std::function<void(const std::string&)> notify{};
  std::function<void(const absl::Status&)> on_taken{};
};

/// Takes the journal and reads what a coordinator before this one has left in it. Errors: those of
/// FolderJournal::Open() and EtcdJournal::Open(), and INVALID_ARGUMENT for a certificate that
/// cannot be read.
absl::StatusOr<std::unique_ptr<Journal>> OpenJournal(JournalOptions options);

}  // namespace fsdprun
