#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

/// The longest pauses between the signals to one node and the next: as a controller sends them, as
/// one that is busy does, and longer than JobSpec::signal_spread.
constexpr Nanos kLongestPauses[] = {20 * kMilli, kSecond, 10 * kSecond};

}  // namespace

std::vector<int> World::ShuffledSlots() {
  std::vector<int> order;
  for (int slot = 0; slot < options_.nodes + options_.mix.spares; ++slot) {
    order.push_back(slot);
    std::swap(order.back(), order[random_.Below(order.size())]);
  }
  return order;
}

void World::SignalNodes() {
  if (random_.Chance(0.4)) {
    SignalAll();
  } else {
    SignalSome();
  }
}

/// The end of the job, or a notice of it: nobody starts an agent of the allocation again. The
/// signal may find one of them in trouble, reach the coordinator itself, and be known to who asks
/// the scheduler.
void World::SignalAll() {
  const int signal = random_.Chance(0.1) ? SIGUSR1 : SIGTERM;
  const Nanos longest_pause = kLongestPauses[random_.Below(std::size(kLongestPauses))];
  Log("the scheduler ends the job with signal " + std::to_string(signal));
  Nanos when = now_;
  for (const int slot : ShuffledSlots()) {
    if (slot >= allocated_) {
      continue;
    }
    slots_[slot].is_scrapped = true;
    At(when, [this, slot, signal, loses_word = random_.Chance(0.1)] {
      SignalSlot(slot, signal, loses_word);
    });
    when += random_.Between(0, longest_pause);
  }
  if (random_.Chance(0.6)) {
    const uint64_t slots = static_cast<uint64_t>(allocated_);
    TroubleDuring(static_cast<int>(random_.Below(slots)), now_, when + kSecond);
  }
  if (random_.Chance(0.2)) {
    At(random_.Between(now_, when), [this, signal] { SignalCoordinator(signal); });
  }
  scheduler_ends_it_ = scheduler_ends_it_ || random_.Chance(0.3);
}

/// Nodes that are shut down, in the allocation or not; most often all but one. Some are there again
/// soon.
void World::SignalSome() {
  const Nanos longest_pause = kLongestPauses[random_.Below(std::size(kLongestPauses))];
  std::vector<int> order = ShuffledSlots();
  const size_t spared = random_.Chance(0.5) ? 1 : 1 + random_.Below(order.size() - 1);
  const int bystander = order.back();
  order.resize(order.size() - spared);
  const bool come_back = random_.Chance(0.6);
  Nanos when = now_;
  for (const int slot : order) {
    slots_[slot].is_scrapped |= !come_back;
    At(when, [this, slot] { SignalSlot(slot, SIGTERM, /*loses_word=*/false); });
    when += random_.Between(0, longest_pause);
  }
  if (random_.Chance(0.5)) {
    TroubleDuring(bystander, now_, when);
  }
}

/// A node that is just about to fail, or does so between two signals.
void World::TroubleDuring(int slot, Nanos from, Nanos to) {
  At(random_.Between(from, to), [this, slot] {
    const std::optional<uint32_t> agent = slots_[slot].agent;
    if (healed_ || !agent) {
      return;
    }
    switch (random_.Below(4)) {
      case 0:
        BreakStream(*agent);
        // The end of the stream gets through, a new one does not for a moment.
        At(now_ + InMix(options_.mix.max_delay_ms / 1000),
           [this, slot] { CutFor(slot, random_.Between(kMilli, 400 * kMilli)); });
        return;
      case 1:
        PauseAgent(*agent, now_ + random_.Between(kSecond, 10 * kSecond));
        return;
      case 2:
        CutFor(slot, random_.Between(kSecond, 10 * kSecond));
        return;
      default:
        KillAgent(FaultKind::kPowerOff, *agent);
        return;
    }
  });
}

void World::CutFor(int slot, Nanos time) {
  if (!healed_) {
    referee_.ledger().Add(FaultOn(FaultKind::kPartition, slot, now_ + time));
    CutSlot(slot, true, true, now_ + time);
  }
}

void World::SignalSlot(int slot, int signal, bool loses_word) {
  if (!healed_ && slots_[slot].agent) {
    Log("signal " + std::to_string(signal) + " to " + slots_[slot].name);
    SignalAgent(*slots_[slot].agent, signal, loses_word);
  }
}

/// What an agent says may be lost with its stream. One that has workers says it once more; one that
/// has none is gone by then.
void World::SignalAgent(uint32_t index, int signal, bool loses_word) {
  const uint32_t stream = agents_[index]->stream;
  NoteLeaving(index);
  if (loses_word && stream != 0) {
    referee_.StreamReset(FaultOn(FaultKind::kResetStream, agents_[index]->slot, now_));
  }
  StepAgent(index, node::OperatorSignal{signal});
  if (!loses_word || stream == 0) {
    return;
  }
  up_messages_.Clear(streams_[stream - 1].up.queue);
  if (agents_[index]->alive) {
    BreakStream(index);
  }
}

/// A launcher that does not know whether all are meant asks the scheduler, as long as it has not
/// been told.
void World::MaybeAnswerDoubt() {
  constexpr Nanos kLongestAnswer = 5 * kSecond;
  if (std::exchange(doubtful_signals_, job_->doubtful_signals()) == job_->doubtful_signals() ||
      !scheduler_ends_it_) {
    return;
  }
  At(now_ + random_.Between(10 * kMilli, kLongestAnswer), [this] {
    if (!job_->operator_signal() && !job_->outcome()) {
      Log("the scheduler says that all nodes are meant");
      SignalCoordinator(SIGTERM);
    }
  });
}

}  // namespace fsdprun::sim
