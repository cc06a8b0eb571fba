#include "launcher/run/join_record_sweep.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "launcher/directory/join_record_file.h"
#include "launcher/slurm/queue_listing.h"

namespace fsdprun {
namespace {

Environment OfThisCluster(const Environment& environment) {
  Environment asks = ListJobsEnvironment(environment);
  asks.erase("SLURM_CLUSTERS");
  return asks;
}

}  // namespace

JoinRecordSweep::JoinRecordSweep(EventLoop& loop, FileThread& files, const Environment& environment,
                                 const SlurmJoinRecord& own)
    : loop_(loop),
      files_(files),
      environment_(environment),
      cluster_(own.cluster),
      own_job_(own.job),
      squeue_path_(
          loop, [environment] { return LocateProgram(ListJobsCommand().front(), environment); }) {
  const auto recorded = std::make_shared<std::vector<std::string>>();
  files_.Run(
      [recorded, environment, cluster = cluster_, own_job = own_job_] {
        *recorded = RecordedJobs(environment, cluster);
        std::erase(*recorded, own_job);
      },
      [this, recorded] {
        recorded_ = std::move(*recorded);
        is_done_ = recorded_.empty();
        if (!is_done_) {
          squeue_path_.Use([this](const absl::StatusOr<std::string>& squeue) { Ask(squeue); });
        }
      });
}

// A controller that does not answer may hold it up for long.
JoinRecordSweep::~JoinRecordSweep() {
  if (squeue_ != nullptr) {
    squeue_->Kill();
  }
}

void JoinRecordSweep::Ask(const absl::StatusOr<std::string>& squeue) {
  if (!squeue.ok()) {
    Leave(std::string(squeue.status().message()));
    return;
  }
  ChildCommand::Hooks hooks;
  hooks.on_lines = [this](absl::string_view lines) { absl::StrAppend(&said_, lines); };
  hooks.has_room = [] { return true; };
  hooks.on_end = [this](int code) { OnListing(code); };
  hooks.on_failure = [this](const absl::Status& why) { Leave(std::string(why.message())); };
  squeue_ = std::make_unique<ChildCommand>(loop_, ChildCommand::Reads::kAll, std::move(hooks));
  std::vector<std::string> command = ListJobsCommand();
  command.front() = *squeue;
  squeue_->Start(command, OfThisCluster(environment_));
}

// A listing without this job says nothing of the others.
void JoinRecordSweep::OnListing(int code) {
  std::set<std::string> alive;
  for (const ListedJob& listed : ReadListedJobs(said_)) {
    alive.insert(listed.job);
  }
  if (code != 0 || !alive.contains(own_job_)) {
    Leave(absl::StrCat("squeue ended with ", code, ": ", said_));
    return;
  }
  std::erase_if(recorded_, [&alive](const std::string& job) { return alive.contains(job); });
  files_.Run(
      [environment = environment_, cluster = cluster_, over = recorded_] {
        for (const std::string& job : over) {
          RemoveJoinRecord(environment, cluster, job);
        }
      },
      [this] { is_done_ = true; });
}

void JoinRecordSweep::Leave(const std::string& why) {
  Log(LogLevel::kInfo, absl::StrCat("records of jobs that are over are left: ", why));
  is_done_ = true;
}

}  // namespace fsdprun
