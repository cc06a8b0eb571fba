#include "tests/unit/worker/models/fused/cuda/emulation.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace emulation {

Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr unsigned kLanes = 32;

/// Where some threads meet, again and again.
struct Meeting {
  unsigned arrived = 0;
  unsigned times = 0;
};

struct Warp {
  Meeting meeting;
  float values[kLanes] = {};
};

struct Thread {
  ucontext_t context = {};
  bool has_ended = false;
  const Meeting* waits_at = nullptr;
  unsigned times = 0;  // of the meeting, when it came there

  bool can_go_on() const { return !has_ended && (waits_at == nullptr || waits_at->times != times); }
};

struct Block {
  ucontext_t scheduler = {};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Meeting meeting;
  const std::function<void()>* kernel = nullptr;
};

Block* block = nullptr;
std::string failed_assertion;

/// The last one to come does not go on at once either: who does is a matter of the schedule.
void Meet(Meeting& meeting, unsigned all) {
  Thread& thread = block->threads[thread_index.x];
  thread.waits_at = &meeting;
  thread.times = meeting.times;
  if (++meeting.arrived == all) {
    meeting.arrived = 0;
    ++meeting.times;
  }
  swapcontext(&thread.context, &block->scheduler);
}

void RunThread() {
  (*block->kernel)();
  block->threads[thread_index.x].has_ended = true;
}

void Prepare(Thread& thread, char* stack) {
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = stack;
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = &block->scheduler;
  makecontext(&thread.context, RunThread, 0);
}

/// Of `count` threads or warps, as Schedule::order says.
std::vector<unsigned> OrderOf(unsigned count, unsigned order) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  if (order == 1) {
    std::reverse(numbers.begin(), numbers.end());
  } else if (order > 1) {
    std::shuffle(numbers.begin(), numbers.end(), std::minstd_rand(order));
  }
  return numbers;
}

/// As far as its next meeting, if it can go on; returns whether it could.
bool RunOnce(unsigned number) {
  Thread& thread = block->threads[number];
  if (!thread.can_go_on()) {
    return false;
  }
  thread_index.x = number;
  swapcontext(&block->scheduler, &thread.context);
  return true;
}

/// A turn of each thread.
bool RunEach(const std::vector<unsigned>& threads) {
  bool has_run = false;
  for (const unsigned thread : threads) {
    has_run = RunOnce(thread) || has_run;
  }
  return has_run;
}

/// A turn of the first warp that can go on.
bool RunFirst(const std::vector<unsigned>& warps) {
  return std::any_of(warps.begin(), warps.end(), [](unsigned warp) {
    bool has_run = false;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      has_run = RunOnce(warp * kLanes + lane) || has_run;
    }
    return has_run;
  });
}

void RunBlock(const Launch& launch, const std::function<void()>& kernel, char* stacks) {
  Block here;
  here.kernel = &kernel;
  here.threads.resize(launch.threads);
  here.warps.resize(launch.threads / kLanes);
  block = &here;
  for (Thread& thread : here.threads) {
    Prepare(thread, stacks);
    stacks += kStackBytes;
  }
  const bool is_by_turns = launch.schedule.kind == Schedule::Kind::kTurns;
  const std::vector<unsigned> order =
      OrderOf(is_by_turns ? launch.threads : launch.threads / kLanes, launch.schedule.order);
  while (is_by_turns ? RunEach(order) : RunFirst(order)) {
  }
  for (const Thread& thread : here.threads) {
    if (!thread.has_ended) {
      throw std::logic_error("threads of a block wait for others, which do not come");
    }
  }
}

}  // namespace

void Synchronise() { Meet(block->meeting, block_size.x); }

float Shuffle(float value, int distance) {
  Warp& warp = block->warps[thread_index.x / kLanes];
  const unsigned lane = thread_index.x % kLanes;
  warp.values[lane] = value;
  Meet(warp.meeting, kLanes);
  const float others = warp.values[lane ^ static_cast<unsigned>(distance)];
  Meet(warp.meeting, kLanes);
  return others;
}

void FailAssertion(const char* condition) {
  if (failed_assertion.empty()) {
    failed_assertion = condition;
  }
}

std::string Run(const Launch& launch, const std::function<void()>& kernel) {
  if (launch.threads == 0 || launch.threads % kLanes != 0 || launch.threads > 1024) {
    throw std::logic_error("a device has no such blocks");
  }
  failed_assertion.clear();
  block_size.x = launch.threads;
  grid_size.x = launch.blocks;
  const auto stacks = std::make_unique_for_overwrite<char[]>(kStackBytes * launch.threads);
  for (block_index.x = 0; block_index.x < launch.blocks; ++block_index.x) {
    RunBlock(launch, kernel, stacks.get());
  }
  return failed_assertion;
}

}  // namespace emulation
