#include "launcher/journal/open_journal.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/journal/etcd_journal.h"
#include "launcher/journal/folder_journal.h"

namespace fsdprun {
namespace {

/// Of one call: several fit into the lease.
constexpr Duration kCallTimeout = std::chrono::seconds(2);

absl::StatusOr<std::unique_ptr<EtcdJournal>> OpenInEtcd(JournalOptions options) {
  EtcdClient::Options client{.etcd = options.etcd, .timeout = kCallTimeout};
  for (const HostPort& member : options.place.etcd) {
    client.targets.push_back(ToString(member));
  }
  client.advice = "check --journal, and protocol and certificates in --rdzv-conf";
  // What ends the search for a job's place must not end the writing of its record.
  const auto is_opening = std::make_shared<std::atomic<bool>>(true);
  client.is_cancelled = [is_opening, poll = options.is_cancelled] {
    return is_opening->load() && poll && poll();
  };
  EtcdJournal::Options journal{.key = absl::StrCat(options.place.prefix, "/", options.job.run_id),
                               .job = options.job,
                               .holder_id = options.holder_id,
                               .is_cancelled = options.is_cancelled,
                               .notify = std::move(options.notify),
                               .on_taken = std::move(options.on_taken)};
  ASSIGN_OR_RETURN(std::unique_ptr<EtcdClient> made, EtcdClient::Make(std::move(client)));
  absl::StatusOr<std::unique_ptr<EtcdJournal>> opened =
      EtcdJournal::Open(std::move(made), std::move(journal));
  *is_opening = false;
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> OpenJournal(JournalOptions options) {
  if (options.place.etcd.empty()) {
    return FolderJournal::Open(options.place.folder, options.job);
  }
  return OpenInEtcd(std::move(options));
}

}  // namespace fsdprun
