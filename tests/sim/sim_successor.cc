#include <utility>

#include "launcher/journal/record_codec.h"
#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

/// The process of a coordinator that hosts nothing else is killed, and started again a little
/// later: between two steps, or within one that has just kept a record.
void World::RestartCoordinator() {
  if (coordinator_is_down_ || coordinator_paused_until_ > now_ || dies_with_next_record_) {
    --result_.faults;
    return;
  }
  ++coordinator_restarts_;
  if (random_.Chance(0.5)) {
    dies_with_next_record_ = true;
    At(now_ + random_.Between(0, 3 * kSecond), [this] {
      if (std::exchange(dies_with_next_record_, false)) {
        EndCoordinator();
      }
    });
  } else {
    EndCoordinator();
  }
}

/// What a successor reads is what this one's journal has on the disk.
void World::KeepRecord(const job::Record& record) {
  kept_ = record;
  if (!Spec().may_be_taken_over) {
    return;
  }
  const JournaledJob job{"simulated", 1, 1, 0};
  const absl::StatusOr<v1::JobRecord> read = ReadFileText(FileText(Encode(record, job)));
  absl::StatusOr<job::Record> decoded =
      read.ok() ? Decode(*read) : absl::StatusOr<job::Record>(read.status());
  if (!decoded.ok()) {
    Violate("the journal cannot be read again: " + std::string(decoded.status().message()));
    return;
  }
  kept_ = *std::move(decoded);
}

/// Alone, or with the launcher that hosts it, which has an agent in the same process and a standby
/// beside it. What agents have sent and it has not read is lost; what it has sent arrives before
/// the end of the stream.
void World::EndCoordinator() {
  Log("the coordinator is killed");
  coordinator_is_down_ = true;
  job_timer_at_ = 0;
  const std::optional<uint32_t> with_it =
      random_.Chance(options_.mix.hosted) ? PickAgent() : std::nullopt;
  const Nanos starts_at = now_ + (with_it ? random_.Between(5 * kMilli, 50 * kMilli)
                                          : random_.Between(10 * kMilli, 4 * kSecond));
  // Until then it may wait for a node that is gone.
  const Nanos knows_all_at = starts_at + Spec().rejoin_grace.count() + kSecond;
  referee_.ledger().Add(FaultOn(FaultKind::kRestartCoordinator, kCoordinatorNode, knows_all_at));
  referee_.CoordinatorRestarted(now_, knows_all_at);
  current_stream_.clear();
  for (Stream& stream : streams_) {
    stream.server_open = false;
    up_messages_.Clear(stream.up.queue);
  }
  for (uint32_t i = 0; i < agents_.size(); ++i) {
    if (agents_[i]->is_leaving) {  // Its word may be lost, and it gone before it can say it again.
      referee_.ledger().Add(FaultOn(FaultKind::kResetStream, agents_[i]->slot, now_));
    }
    const Slot& slot = slots_[agents_[i]->slot];
    const bool is_cut = slot.up_cut_until > now_ || slot.down_cut_until > now_;
    At(now_ + (is_cut ? kSilence : Delay(slot)), [this, i, stream = agents_[i]->stream] {
      if (agents_[i]->stream == stream) {
        LoseStream(i, "end of stream");
      }
    });
  }
  if (!with_it) {
    At(starts_at, [this] { StartSuccessor(); });
    return;
  }
  ++result_.faults;
  KillAgent(FaultKind::kKillAgent, *with_it);
  At(starts_at, [this, died = agents_[*with_it]->incarnation] {
    StartSuccessor();
    StepJob(job::AgentDied{died});
  });
}

void World::StartSuccessor() {
  coordinator_is_down_ = false;
  JobSpec spec = Spec();
  if (!kept_) {
    StartJob(std::make_unique<JobMachine>(spec));
  } else if (const std::string why = job::WhyUnusable(*kept_, spec); !why.empty()) {
    Violate("the journal cannot be used: " + why);
    return;
  } else {
    StartJob(std::make_unique<JobMachine>(spec, *kept_, Mono(now_)));
    worlds_taken_over_ += job_->phase() == job::Phase::kRunning ? 1 : 0;
  }
  Log("a coordinator is started again: " + std::string(job::PhaseName(job_->phase())));
  referee_.ledger().SuccessorStarted(now_);
  checked_revision_ = 0;
  StepJob(job::TimerDue{});
}

}  // namespace fsdprun::sim
