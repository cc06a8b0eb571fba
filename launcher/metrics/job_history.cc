#include "launcher/metrics/job_history.h"

#include <optional>
#include <variant>

namespace fsdprun {
namespace {

bool IsAnybodyMissed(const JobMachine& machine) {
  for (const job::Node& node : machine.nodes()) {
    if (node.is_expected) {
      return true;
    }
  }
  return false;
}

}  // namespace

JobHistory::JobHistory(const JobMachine& machine, bool took_over, MonoTime now)
    : took_over_(took_over),
      ledger_(took_over ? TimeLedger(machine.phase(), now) : TimeLedger(now)) {}

void JobHistory::Begin(const job::Event& event) {
  is_asked_for_ = std::holds_alternative<job::RestartAsked>(event) ||
                  std::holds_alternative<job::DrainAsked>(event) ||
                  std::holds_alternative<job::ScaleAsked>(event);
}

void JobHistory::Note(const job::News& news, MonoTime now) {
  job::News told = news;
  if (auto* stopping = std::get_if<job::WorldStopping>(&told);
      stopping != nullptr && is_asked_for_) {
    stopping->kind = job::StopKind::kOperator;
  }
  ledger_.On(told, now);
  tally_.On(told, now);
}

void JobHistory::Stepped(const JobMachine& machine, MonoTime now) {
  if (machine.outcome().has_value()) {
    ledger_.Decide(now);
    return;
  }
  if (ledger_.is_headless() && !IsAnybodyMissed(machine)) {
    ledger_.NodesAreBack(now);
  }
  if (machine.generation() != generation_) {
    generation_ = machine.generation();
    step_ = -1;
  }
  const int64_t step = machine.world().has_progress() ? machine.progress().step : -1;
  if (step >= 0 && step != step_) {
    step_ = step;
    ledger_.Progress(step, now);
    tally_.Progress(now);
  }
}

void JobHistory::Describe(MonoTime now, v1::TimeLedger* out) const {
  out->set_wall_ns(ledger_.Wall(now).count());
  const TimeLedger::Times times = ledger_.All(now);
  for (size_t i = 0; i < kTimeBuckets; ++i) {
    v1::TimeLedger::Entry* const entry = out->add_entries();
    entry->set_bucket(std::string(TimeBucketName(static_cast<TimeBucket>(i))));
    entry->set_ns(times[i].count());
  }
  if (const std::optional<double> goodput = ledger_.Goodput(Duration::max(), now)) {
    out->set_goodput_ratio(*goodput);
  }
  out->set_repeated_steps(ledger_.repeated_steps());
}

}  // namespace fsdprun
