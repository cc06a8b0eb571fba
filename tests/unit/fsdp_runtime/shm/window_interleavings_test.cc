#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/shm/window_lane.h"
#include "tests/unit/fsdp_runtime/shm/thread_ranks.h"

namespace fsdp::shm {
namespace {

using testing::run_ranks;

// Ranks as threads run one random program, each with pauses of its own. What a use shows must be
// what its place in the program says, word by word: neither older, nor newer, nor mixed.
//
// ThreadSanitizer cannot see a race in the shards, because ranks see them at different addresses.
// So next to each part stands an ordinary variable that is read and written with it.

enum class Action {
  kIssue,     // prefetch: the use follows, or never comes
  kUse,       // forward, backward, evaluation; again and again in no_sync
  kScribble,  // the user writes over a gathered parameter
  kRelease,
  kLoad,      // of one unit: a checkpoint, a broadcast; before its first use, too
  kOptimize,  // all units but those that are kept gathered
};

struct Step {
  Action action;
  size_t window;
};

struct Program {
  size_t windows = 0;
  std::vector<Step> steps;
};

Program make_program(uint64_t seed) {
  std::mt19937_64 random(seed);
  Program program;
  program.windows = 1 + random() % 3;
  std::vector<bool> is_held(program.windows);
  for (size_t steps = 20 + random() % 30; program.steps.size() < steps;) {
    const size_t window = random() % program.windows;
    const uint64_t choice = random() % 10;
    Action action = choice < 5 ? Action::kIssue : choice < 8 ? Action::kLoad : Action::kOptimize;
    if (is_held[window]) {
      action = choice < 5   ? Action::kRelease
               : choice < 8 ? Action::kUse
               : choice < 9 ? Action::kScribble
                            : Action::kOptimize;
    }
    if (action == Action::kIssue || action == Action::kRelease) {
      is_held[window] = !is_held[window];
    }
    program.steps.push_back({action, window});
  }
  return program;
}

constexpr uint64_t kScribbled = ~uint64_t{0};

/// One rank's run of a program.
class ProgramRun {
 public:
  using Shadows = std::vector<uint64_t>;  // of each part of each window

  ProgramRun(Group& group, uint64_t seed, Shadows& shadows)
      : group_(group),
        lane_(*group.windows()),
        seed_(seed),
        program_(make_program(seed)),
        random_(seed * 31 + static_cast<uint64_t>(group.rank())),
        shadows_(shadows),
        is_scribbled_(program_.windows),
        versions_(program_.windows),
        gathers_(program_.windows) {
    for (size_t window = 0; window < program_.windows; ++window) {
      windows_.push_back(group.make_window(0, page_bytes(), "unit " + std::to_string(window)));
      write(window);
    }
  }

  void steps() {
    for (const Step& step : program_.steps) {
      pause();
      take(step);
    }
  }

 private:
  void take(const Step& step) {
    const size_t window = step.window;
    switch (step.action) {
      case Action::kIssue:
        gathers_[window] = lane_.issue(*windows_[window], windows_[window]->purpose());
        break;
      case Action::kUse:
        use(window);
        break;
      case Action::kScribble:
        lane_.wait(gathers_[window]);
        words_of(window, 0)[random_() % words()] = kScribbled;
        is_scribbled_[window] = true;
        break;
      case Action::kRelease:
        lane_.release(*windows_[window]);
        is_scribbled_[window] = false;
        break;
      case Action::kLoad:
        lane_.wait_for_readers(*windows_[window]);
        write(window);
        break;
      case Action::kOptimize:
        lane_.wait_for_all_readers();
        for (size_t each = 0; each < program_.windows; ++each) {
          if (!windows_[each]->is_held()) {
            write(each);
          }
        }
        break;
    }
  }

  void use(size_t window) {
    lane_.wait(gathers_[window]);
    for (int rank = 0; rank < group_.size(); ++rank) {
      expect(window, rank, shadow(window, rank));
      const uint64_t* part = words_of(window, rank);
      for (size_t i = 0; i < words(); ++i) {
        if (!(rank == 0 && is_scribbled_[window] && part[i] == kScribbled)) {
          expect(window, rank, part[i]);
        }
        if (i % (words() / 4) == 0) {
          pause();
        }
      }
      expect(window, rank, shadow(window, rank));
    }
  }

  // Part by part, so that who reads too early or too late sees two versions.
  void write(size_t window) {
    const uint64_t value = value_of(window, ++versions_[window], group_.rank());
    auto* part = reinterpret_cast<uint64_t*>(windows_[window]->own());
    for (size_t i = 0; i < words(); ++i) {
      part[i] = value;
      if (i % (words() / 4) == 0) {
        pause();
      }
    }
    shadow(window, group_.rank()) = value;
  }

  void expect(size_t window, int rank, uint64_t found) const {
    const uint64_t expected = value_of(window, versions_[window], rank);
    if (found != expected) {
      throw std::runtime_error("seed " + std::to_string(seed_) + ": rank " +
                               std::to_string(group_.rank()) + " sees " + std::to_string(found) +
                               " instead of " + std::to_string(expected) + " from rank " +
                               std::to_string(rank) + " in window " + std::to_string(window));
    }
  }

  uint64_t value_of(size_t window, uint64_t version, int rank) const {
    return ((seed_ * 1000 + version) * 10 + window) * 10 + static_cast<uint64_t>(rank);
  }

  void pause() {
    for (uint64_t yields = random_() % 8 == 0 ? random_() % 6 : 0; yields > 0; --yields) {
      std::this_thread::yield();
    }
  }

  static size_t words() { return page_bytes() / sizeof(uint64_t); }
  uint64_t* words_of(size_t window, int rank) const {
    return reinterpret_cast<uint64_t*>(windows_[window]->whole()) +
           static_cast<size_t>(rank) * words();
  }
  uint64_t& shadow(size_t window, int rank) {
    return shadows_[window * static_cast<size_t>(group_.size()) + static_cast<size_t>(rank)];
  }

  Group& group_;
  WindowLane& lane_;
  const uint64_t seed_;
  const Program program_;
  std::mt19937_64 random_;
  Shadows& shadows_;
  std::vector<bool> is_scribbled_;
  std::vector<uint64_t> versions_;
  std::vector<Gather> gathers_;
  std::vector<std::shared_ptr<Window>> windows_;
};

uint64_t seeds_to_run() {
  const char* given = std::getenv("FSDPRUN_INTERLEAVINGS");
  return given == nullptr ? 400 : std::stoull(given);
}

TEST(WindowInterleavingsTest, AUseShowsOneVersionTheRightOne) {
  // A world runs several programs one after another, and the ranks meet in between only to make
  // windows: a rank may still read the windows of a program that another has left behind.
  constexpr uint64_t kProgramsPerWorld = 20;
  constexpr size_t kPartsMax = 12;
  const uint64_t seeds = seeds_to_run();
  for (uint64_t first = 0; first < seeds; first += kProgramsPerWorld) {
    const int size = 2 + static_cast<int>(first / kProgramsPerWorld % 3);
    std::vector<ProgramRun::Shadows> shadows(kProgramsPerWorld, ProgramRun::Shadows(kPartsMax));
    const std::vector<std::string> errors = run_ranks(size, [&](Group& group) {
      for (uint64_t i = 0; i < kProgramsPerWorld; ++i) {
        ProgramRun(group, first + i, shadows[i]).steps();
      }
    });
    ASSERT_EQ(errors, std::vector<std::string>(static_cast<size_t>(size)));
  }
}

}  // namespace
}  // namespace fsdp::shm
