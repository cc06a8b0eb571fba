#pragma once

// A training job in virtual time, as its nodes would tell of it: ranks that step together, wait for
// each other in collectives, save, evaluate, wait for data; and what goes wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/watch/progress_watch.h"

namespace fsdprun::watch {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

struct TrainingOptions {
  int ranks = 4;
  int ranks_per_node = 2;
  uint64_t seed = 1;
  Duration step = milliseconds(200);
  /// Of a rank's own time, as a share of it.
  double noise = 0.05;
  /// 0: it says nothing of collectives, nor of what it does in a step.
  uint64_t collectives_per_step = 20;
  /// The first steps take so long.
  Duration warm_step = seconds(20);
  bool tells = true;
  /// These ranks say nothing of themselves.
  std::set<int> silent = {};
  /// What ranks wait for each other is told.
  bool tells_waits = true;
  ProgressWatch::Options watch{};
};

/// Something that holds up the job, and then it goes on.
struct Pause {
  Duration length{};
  /// What these do; the others wait in a collective. Empty: all do it.
  std::set<int> ranks;
  Activity activity = Activity::kSaving;
  char state = 'S';
  /// Seen in no sample: the machine, or the coordinator, was paused.
  bool is_unseen = false;
  bool is_busy = false;
  /// All wait in one collective.
  bool is_collective = false;
  /// For ever.
  bool is_hang = false;
};

class SimulatedTraining {
 public:
  explicit SimulatedTraining(const TrainingOptions& options)
      : options_(options), random_(options.seed), watch_(options.watch) {
    WorldBegan began{Generation(1), {}, seconds(1)};
    for (int first = 0; first < options.ranks; first += options.ranks_per_node) {
      began.nodes.push_back({"node-" + std::to_string(first / options.ranks_per_node), first,
                             std::min(options.ranks_per_node, options.ranks - first)});
    }
    nodes_ = began.nodes;
    slower_.assign(static_cast<size_t>(options.ranks), 0);
    cpu_.assign(static_cast<size_t>(options.ranks), Duration{});
    Step(began);
    ready_at_ = now_ + 5 * options.warm_step;
  }

  /// Runs for so long, with samples once a second.
  void Run(Duration length) {
    const MonoTime end = now_ + length;
    while (now_ < end) {
      Second();
    }
  }
  /// Runs until something is found, at most for so long. How long that took.
  std::optional<Duration> RunUntilFound(Duration at_most) {
    const MonoTime began = now_;
    const size_t before = found_.size();
    while (now_ - began < at_most && found_.size() == before) {
      Second();
    }
    return found_.size() == before ? std::nullopt : std::optional(found_at_ - began);
  }
  /// From now on.
  void Begin(Pause pause) {
    pause_ = std::move(pause);
    pause_ends_ = pause_->is_hang ? MonoTime::max() : now_ + pause_->length;
    if (pause_->is_unseen) {
      now_ += pause_->length;
      pause_.reset();
    } else {
      frozen_ = done_;
    }
  }
  void GoOn() {
    // What was waited in has been left.
    collectives_ += pause_.has_value() ? 1 : 0;
    pause_.reset();
    pause_ends_ = MonoTime::max();
  }
  /// A rank's own time of a step is longer by this share, of which `in` says what it does.
  void Slow(int rank, double by, SlowIn in = SlowIn::kComputing) {
    slower_[static_cast<size_t>(rank)] = by;
    slow_in_ = in;
  }
  void StopTelling(int rank) { silent_.insert(rank); }

  const Findings& found() const { return found_; }
  const HangFound* hang() const {
    for (const Finding& finding : found_) {
      if (const auto* hang = std::get_if<HangFound>(&finding)) {
        return hang;
      }
    }
    return nullptr;
  }
  std::vector<SlowFound> slow() const {
    std::vector<SlowFound> all;
    for (const Finding& finding : found_) {
      if (const auto* slow = std::get_if<SlowFound>(&finding)) {
        all.push_back(*slow);
      }
    }
    return all;
  }
  std::string Texts() const {
    std::string text;
    for (const Finding& finding : found_) {
      text += std::visit([](const auto& what) { return TextIn(what); }, finding) + "\n";
    }
    return text;
  }
  ProgressWatch& watch() { return watch_; }
  MonoTime now() const { return now_; }
  std::mt19937_64& random() { return random_; }

 private:
  template <class What>
  static std::string TextIn(const What& what) {
    return what.what;
  }
  static std::string TextIn(const HangReported& reported) { return reported.file; }

  void Step(const Event& event) {
    Findings found = watch_.Step(event, now_);
    if (!found.empty()) {
      found_at_ = now_;
    }
    found_.insert(found_.end(), found.begin(), found.end());
  }
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  void Second() {
    const MonoTime began = now_;
    Advance(seconds(1));
    for (const NodeRanks& node : nodes_) {
      // Samples of the nodes are spread over the second, and some are late or lost.
      now_ = std::max(now_, began + seconds(1) / static_cast<int>(nodes_.size()));
      if (Uniform() < 0.01) {
        continue;
      }
      VitalsCame vitals{Generation(1), {}};
      for (int rank = node.first_rank; rank < node.first_rank + node.workers; ++rank) {
        if (silent_.count(rank) == 0) {
          vitals.workers.push_back(SampleOf(rank));
        }
      }
      Step(vitals);
    }
    now_ = began + seconds(1);
    while (watch_.wake_at() <= now_) {
      Step(TimerDue{});
    }
  }

  void Advance(Duration by) {
    if (pause_.has_value() && now_ + by >= pause_ends_) {
      GoOn();
    }
    if (pause_.has_value()) {
      return;
    }
    const bool is_warm = now_ >= ready_at_;
    done_ += ToSeconds(by) / ToSeconds(is_warm ? options_.step : options_.warm_step);
  }

  Sample SampleOf(int rank) {
    Sample sample{rank, 1000 + rank, 'R', {}, std::nullopt};
    Duration& cpu = cpu_[static_cast<size_t>(rank)];
    const bool is_held = pause_.has_value();
    const bool is_one = is_held && (pause_->ranks.empty() || pause_->ranks.count(rank) > 0);
    if (!is_held || (is_one && pause_->is_busy)) {
      cpu += milliseconds(900);
    } else {
      sample.state = is_one ? pause_->state : 'S';
    }
    sample.cpu = cpu;
    if (options_.tells && options_.silent.count(rank) == 0) {
      sample.own = is_held ? Held(is_one) : Moving(rank);
    }
    return sample;
  }

  OwnSample Moving(int rank) {
    OwnSample own;
    own.step = static_cast<int64_t>(done_);
    const double part = done_ - static_cast<double>(own.step);
    own.activity = part < 0.3 || options_.collectives_per_step == 0 ? Activity::kForward
                   : part < 0.9                                     ? Activity::kBackward
                                                                    : Activity::kOptimizer;
    own.begun = Collectives(done_, 0.5);
    own.ended = Collectives(done_, 0);
    own.collective = "all_gather";
    Measure(rank, &own);
    return own;
  }

  /// Each takes half of the time until the next one; they never go back.
  uint64_t Collectives(double done, double ahead) const {
    const double per_step = static_cast<double>(options_.collectives_per_step);
    return options_.collectives_per_step == 0
               ? 0
               : collectives_ + static_cast<uint64_t>(done * per_step + ahead);
  }

  /// Of the steps: what a rank does not need is what it waits for the slowest.
  void Measure(int rank, OwnSample* own) {
    const double base = 0.7 * ToSeconds(options_.step);
    const double more = slower_[static_cast<size_t>(rank)];
    const double noise = options_.noise * (Uniform() + Uniform() + Uniform() - 1.5) * 2;
    const double took = base * (1 + noise) + base * more;
    const auto in_ns = [](double s) { return Duration(static_cast<int64_t>(s * 1e9)); };
    own->step_time = in_ns(std::max(took, ToSeconds(options_.step)));
    if (!options_.tells_waits) {
      own->step_time = in_ns(took);
    }
    own->collective_wait = own->step_time - in_ns(took);
    (slow_in_ == SlowIn::kWaitingForData ? own->data_wait : own->save_time) =
        slow_in_ == SlowIn::kComputing ? Duration{} : in_ns(base * more);
  }

  OwnSample Held(bool is_one) const {
    OwnSample own;
    own.step = static_cast<int64_t>(frozen_);
    const bool is_told = options_.collectives_per_step > 0;
    const bool waits = is_told && (!is_one || pause_->is_collective);
    own.ended = Collectives(frozen_, 0.5);
    own.begun = own.ended + (waits ? 1 : 0);
    own.collective = waits ? "all_gather" : "";
    own.unit = waits ? "layers.3" : "";
    own.bytes = waits ? 4'200'000 : 0;
    own.activity = waits ? Activity::kCollective : is_one ? pause_->activity : Activity::kForward;
    return own;
  }

  const TrainingOptions options_;
  std::mt19937_64 random_;
  ProgressWatch watch_;
  std::vector<NodeRanks> nodes_;
  MonoTime now_{std::chrono::hours(1)};
  MonoTime ready_at_{};
  MonoTime found_at_{};
  /// Steps, with the part of the present one.
  double done_ = 0;
  double frozen_ = 0;
  /// Those that were waited in, besides the steps' own.
  uint64_t collectives_ = 0;
  std::optional<Pause> pause_;
  MonoTime pause_ends_ = MonoTime::max();
  std::vector<double> slower_;
  SlowIn slow_in_ = SlowIn::kComputing;
  std::set<int> silent_;
  std::vector<Duration> cpu_;
  Findings found_;
};

/// A job that has been running for a while.
inline SimulatedTraining RunningJob(const TrainingOptions& options = {}) {
  SimulatedTraining job(options);
  job.Run(minutes(3));
  EXPECT_EQ(job.Texts(), "");
  return job;
}

inline std::vector<int> RanksOf(const std::vector<RankPlace>& places) {
  std::vector<int> ranks;
  for (const RankPlace& place : places) {
    ranks.push_back(place.rank);
  }
  return ranks;
}

}  // namespace fsdprun::watch
