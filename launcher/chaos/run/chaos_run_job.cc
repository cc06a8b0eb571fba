// Where the job comes from: it is started here, or runs already.
#include <unistd.h>

#include <csignal>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "fsdpctl/jobs/job_choice.h"
#include "launcher/chaos/plan/device_shares.h"
#include "launcher/chaos/run/chaos_run.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/private_folder.h"
#include "launcher/run/devices.h"

namespace fsdprun::chaos {
namespace {

absl::StatusOr<uint16_t> FreePort() {
  ASSIGN_OR_RETURN(const UniqueFd socket, BindListener({.address = "127.0.0.1", .port = 0}));
  return PortOf(socket);
}

}  // namespace

// What is started is in a group of its own, in the background of a terminal. With `stty tostop` its
// first line would stop it, but for what it inherits.
absl::Status ChaosRun::Start() {
  ::signal(SIGTTOU, SIG_IGN);
  RETURN_IF_ERROR(StartsJob() ? StartJob() : Attach());
  outcome_.seed = setting_.seed;
  if (setting_.seed.has_value() && setting_.options.schedule.empty()) {
    const size_t count = setting_.plan.faults.size();
    const std::string faults = absl::StrCat(", ", count, count == 1 ? " fault" : " faults");
    Say(absl::StrCat("seed ", *setting_.seed, setting_.options.duration.has_value() ? "" : faults));
  }
  SayWarning(DamageWarning(setting_.plan, !setting_.options.verify.empty()));
  return absl::OkStatus();
}

absl::Status ChaosRun::StartJob() {
  ASSIGN_OR_RETURN(scratch_, ScratchFolder::Make(environment_));
  Environment environment = environment_;
  environment["TMPDIR"] = scratch_->path();
  launches_ = std::make_unique<Launches>(
      loop_, environment,
      Launches::Hooks{[this](int code) { OnJobEnd({.exit_code = code}); },
                      [this](const absl::Status& why) { OnCannot(why); },
                      [this](const std::string& line) { Say(line); }});
  if (setting_.wrapped->form == Form::kNodes) {
    return StartNodes();
  }
  launches_->StartJob(setting_.wrapped->command);
  return absl::OkStatus();
}

absl::Status ChaosRun::StartNodes() {
  const WrappedJob& job = *setting_.wrapped;
  outcome_.run_id = job.run_id;
  ASSIGN_OR_RETURN(const std::vector<Environment> shares,
                   ShareDevices(job, CountGpus("", environment_), environment_));
  ASSIGN_OR_RETURN(const uint16_t port, FreePort());
  std::vector<std::vector<std::string>> nodes;
  std::vector<TcpLink*> links;
  for (int i = 0; i < job.nodes; ++i) {
    links_.push_back(std::make_unique<TcpLink>(loop_, port));
    ASSIGN_OR_RETURN(const uint16_t own, links_.back()->Listen());
    links.push_back(links_.back().get());
    nodes.push_back(NodeCommand(job, own));
  }
  injector_.UseLinks(links);
  launches_->StartNodes(CoordinatorCommand(job, port, scratch_->path() + "/journal"), nodes,
                        shares);
  return absl::OkStatus();
}

absl::Status ChaosRun::Attach() {
  const std::vector<JobEntry> jobs = ListJobs(JobsFolder(RuntimeFolder(environment_)));
  if (jobs.empty()) {
    return absl::NotFoundError(
        "no job of this user has its coordinator on this machine: start one first, or give the "
        "command that starts it, as in fsdprun chaos -- fsdprun --nnodes 2 train.py");
  }
  ASSIGN_OR_RETURN(attached_, ChooseJob(jobs, setting_.options.job));
  outcome_.run_id = attached_->run_id;
  return absl::OkStatus();
}

// What is started here may be anything that starts a job: that is one of a process below. Workers
// may start jobs, too, but not of the id that the nodes were given.
JobWatch::Which ChaosRun::WhichJob() const {
  JobWatch::Which which{.job = attached_};
  const auto list = [environment = environment_] {
    return ListJobs(JobsFolder(RuntimeFolder(environment)));
  };
  std::string run_id;
  if (attached_.has_value()) {
    run_id = attached_->run_id;
    which.since_ms = absl::ToUnixMillis(absl::Now());
  } else if (form() == Form::kNodes) {
    run_id = setting_.wrapped->run_id;
  }
  which.list = [list, run_id, has_run_id = form() != Form::kOneLauncher, is_below = StartsJob(),
                own = ::getpid()] {
    std::vector<JobEntry> jobs = list();
    std::erase_if(jobs, [&](const JobEntry& job) {
      return (has_run_id && job.run_id != run_id) || (is_below && !DescendsFrom(job.pid, own));
    });
    return jobs;
  };
  return which;
}

std::vector<JobProcess> ChaosRun::FindProcesses() const {
  return FindJobProcesses(
      {.job_id = view_.job_id,
       .coordinator_pid = view_.coordinator_pid,
       .coordinator_start_ticks = view_.coordinator_start_ticks,
       .launchers = launches_ != nullptr ? launches_->launchers() : std::map<int64_t, int>()});
}

}  // namespace fsdprun::chaos
