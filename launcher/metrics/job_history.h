#pragma once

#include <cstdint>

#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/ledger/time_ledger.h"
#include "launcher/metrics/job_tally.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// What has become of a job since its coordinator began: where its time went, and how often what
/// happened. Is told of each step of the machine, and decides nothing. Pure.
class JobHistory {
 public:
  /// `machine`: as it is before its first step. `took_over`: from a coordinator before this one.
  JobHistory(const JobMachine& machine, bool took_over, MonoTime now);

  /// The machine is about to take this event.
  void Begin(const job::Event& event);
  /// Something has happened in the present step.
  void Note(const job::News& news, MonoTime now);
  /// After every step.
  void Stepped(const JobMachine& machine, MonoTime now);
  void Refuse() { tally_.Refuse(); }
  /// To be called before the ledger is read.
  void Advance(MonoTime now) { ledger_.Advance(now); }

  bool took_over() const { return took_over_; }
  const TimeLedger& ledger() const { return ledger_; }
  const JobTally& tally() const { return tally_; }
  /// For JobStatus.
  void Describe(MonoTime now, v1::TimeLedger* out) const;

 private:
  const bool took_over_;
  TimeLedger ledger_;
  JobTally tally_;
  /// The present step does what an operator asks for, at no charge: to the machine a change of the
  /// world like any other.
  bool is_asked_for_ = false;
  // Of the latest progress that was told.
  Generation generation_;
  int64_t step_ = -1;
};

}  // namespace fsdprun
