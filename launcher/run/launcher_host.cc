// What a launcher has that hosts the coordinator: the coordinator, its standby, and Slurm's queue.
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "launcher/directory/claim.h"
#include "launcher/directory/private_folder.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/launcher.h"

namespace fsdprun {
namespace {

/// Longer than to look at a place takes unless it hangs, and shorter than another launcher waits
/// before it takes one, whatever it sees of the holder.
constexpr Duration kPlaceSureFor = std::chrono::seconds(7);
static_assert(kPlaceSureFor < kSilenceOfRefused && kPlaceSureFor < Clocks{}.claim_lease);

}  // namespace

void Launcher::MakeHost() {
  CoordinatorHost::Hooks hooks;
  hooks.on_finish = [this](const JobOutcome& outcome) {
    outcome_ = outcome;
    StopWhenDone();
  };
  hooks.on_check_place = [this] { StepSearch(place::CheckOrdered{}); };
  hooks.on_stall = [this](Duration length) {
    if (length >= clocks_.coordinator_grace) {
      StepSearch(place::Stalled{});
    }
  };
  hooks.on_step = [this] { OnCoordinatorStep(); };
  RecordNews(&hooks);
  hooks.on_other_host = [this](const std::vector<std::string>& where) {
    // The host, which calls this, may end there.
    loop_.Post([this, where] { OnOtherHost({where, /*has_endpoint=*/false}); });
  };
  JobSpec spec = MakeJobSpec(plan_, clocks_);
  spec.place_sure_for = place_.can_be_taken ? kPlaceSureFor : Duration::zero();
  spec.place_sure_from = place_.sure_from;
  if (CanHaveStandby()) {
    spec.has_standby = true;
    MakeStandby(&hooks);
  }
  host_ = std::make_unique<CoordinatorHost>(
      loop_,
      CoordinatorHost::Options{.spec = std::move(spec),
                               .run_id = run_id_,
                               .token = place_.is_shared() ? place_.token.value : "",
                               .stream_silence = clocks_.stream_silence,
                               .tls = tls_,
                               .watch = MakeWatchOptions(plan_),
                               .control = {.folder = RuntimeFolder(environment_),
                                           .node = NodeName(),
                                           .endpoint = place_.is_shared() ? place_.where() : ""}},
      std::move(hooks));
  if (plan_.scheduler_job.has_value()) {
    queue_ = std::make_unique<SlurmQueue>(
        loop_, plan_, environment_,
        SlurmQueue::Hooks{[this](int signal) { OnSignal(signal); },
                          [this] { return IsStopping(host_->machine()); },
                          [this](const std::string& text) { Print(text); }},
        SlurmQueue::UsualMeans(loop_, environment_));
  }
}

// Ranks that bind are given away by nobody but who knows them, and a scheduler ends a launcher's
// processes with it. A place without a claim that can be taken is kept by asking at the endpoint
// that several run ids share, which a standby does not.
bool Launcher::CanHaveStandby() const {
  const bool is_kept_elsewhere = place_.can_be_taken && place_.claim.empty();
  return !is_kept_elsewhere && !arguments_.empty() && place_.is_shared() &&
         plan_.backend != RendezvousBackend::kStatic && !plan_.scheduler_job.has_value();
}

// There is something to lose from the first world on. The program is the one that runs here, which
// another release may have replaced on the disk since.
void Launcher::MakeStandby(CoordinatorHost::Hooks* hooks) {
  std::vector<std::string> command = arguments_;
  command.insert(command.begin(), ProgramName(program_));
  standby_ = std::make_unique<Standby>(
      loop_,
      Standby::Options{.path = "/proc/self/exe",
                       .command = std::move(command),
                       .handover = {.run_id = run_id_,
                                    .token = place_.token.value,
                                    .endpoints = place_.endpoints,
                                    .pid = ::getpid(),
                                    .agent = Incarnation(),
                                    .claim = place_.claim},
                       .job = {run_id_, plan_.min_nodes, plan_.max_nodes, plan_.max_restarts}});
  for (const UniqueFd& listener : place_.listeners) {
    standby_->AddListener(UniqueFd(::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0)));
  }
  hooks->persist = [this](const job::Record& record) {
    if (standby_ != nullptr && record.generation != Generation()) {
      standby_->Keep(record);
    }
  };
}

}  // namespace fsdprun
