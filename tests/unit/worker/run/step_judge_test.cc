#include "worker/run/step_judge.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

TrainConfig::Train JudgePolicy(const std::string& on_nonfinite, const std::string& on_spike) {
  TrainConfig::Train train;
  train.on_nonfinite = on_nonfinite;
  train.on_spike = on_spike;
  train.spike_window = 5;
  train.spike_deviations = 3;
  return train;
}

struct Answer {
  Verdict verdict;
  bool must_skip;
  bool operator==(const Answer&) const = default;
};

Answer Ask(StepJudge& judge, double loss, double norm) {
  const StepJudge::Judgement judged =
      judge.Judge(at::scalar_tensor(loss, at::kFloat), at::scalar_tensor(norm, at::kFloat));
  EXPECT_EQ(judged.must_skip.scalar_type(), at::kFloat);
  return {static_cast<Verdict>(std::lround(judged.verdict.item<float>())),
          judged.must_skip.item<float>() != 0};
}

constexpr Answer kGood{Verdict::kGood, false};

// The stated formula in plain numbers.
class Reference {
 public:
  Verdict Judge(double loss, double norm) {
    const auto is_above = [](const std::deque<double>& last, double value) {
      double sum = 0;
      for (const double x : last) {
        sum += x;
      }
      const double mean = sum / static_cast<double>(last.size());
      double squares = 0;
      for (const double x : last) {
        squares += (x - mean) * (x - mean);
      }
      const double deviation = std::sqrt(squares / static_cast<double>(last.size() - 1));
      return value > mean + 3 * std::max(deviation, std::abs(mean) / 100);
    };
    if (losses_.size() == 5 && (is_above(losses_, loss) || is_above(norms_, norm))) {
      return Verdict::kSpike;
    }
    losses_.push_back(loss);
    norms_.push_back(norm);
    if (losses_.size() > 5) {
      losses_.pop_front();
      norms_.pop_front();
    }
    return Verdict::kGood;
  }

 private:
  std::deque<double> losses_;
  std::deque<double> norms_;
};

TEST(StepJudgeTest, WhatIsNotFiniteIsSkippedOnce) {
  StepJudge judge(JudgePolicy("skip", "off"), at::kCPU);
  EXPECT_EQ(Ask(judge, 2, 1), kGood);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    EXPECT_EQ(Ask(judge, bad, 1), (Answer{Verdict::kNonFinite, true}));
    EXPECT_EQ(Ask(judge, 2, bad), (Answer{Verdict::kNonFinite, true}));
    EXPECT_EQ(Ask(judge, 2, 1), kGood);
  }
  EXPECT_EQ(judge.Steps(), JudgedSteps());
}

TEST(StepJudgeTest, NothingIsUpdatedBehindABadStepThatEndsOrRedoesTheRest) {
  for (const char* policy : {"stop", "rollback"}) {
    StepJudge judge(JudgePolicy(policy, "off"), at::kCPU);
    EXPECT_EQ(Ask(judge, std::nan(""), 1), (Answer{Verdict::kNonFinite, true}));
    EXPECT_EQ(Ask(judge, 2, 1), (Answer{Verdict::kGood, true}));
    judge.Restore({});
    EXPECT_EQ(Ask(judge, 2, 1), kGood);
  }
}

TEST(StepJudgeTest, SpikesAreWhatTheFormulaSays) {
  StepJudge judge(JudgePolicy("skip", "skip"), at::kCPU);
  Reference reference;
  int64_t spikes = 0;
  for (int step = 0; step < 200; ++step) {
    // Falls slowly, with a ripple; every 17th loss and every 29th norm is higher by more or less.
    const auto x = static_cast<float>(step);
    const float loss = 4 / (1 + x / 50) + 0.1F * std::sin(x) + (step % 17 == 16 ? x / 100 : 0);
    const float norm = 1 + 0.2F * std::cos(3 * x) + (step % 29 == 28 ? x / 50 : 0);
    const Verdict expected = reference.Judge(double{loss}, double{norm});
    EXPECT_EQ(Ask(judge, double{loss}, double{norm}),
              (Answer{expected, expected != Verdict::kGood}))
        << step;
    spikes += expected == Verdict::kSpike ? 1 : 0;
  }
  EXPECT_GT(spikes, 5);
  EXPECT_LT(spikes, 25);
}

TEST(StepJudgeTest, ThereIsNoSpikeBeforeTheWindowIsFullNorOfEqualLosses) {
  StepJudge judge(JudgePolicy("skip", "skip"), at::kCPU);
  EXPECT_EQ(Ask(judge, 1, 1), kGood);
  EXPECT_EQ(Ask(judge, 100, 1), kGood);
  StepJudge flat(JudgePolicy("skip", "skip"), at::kCPU);
  for (int step = 0; step < 6; ++step) {
    EXPECT_EQ(Ask(flat, 1, 1), kGood);
  }
  EXPECT_EQ(Ask(flat, 1.02, 1), kGood);  // three deviations are 3 % at least
  EXPECT_EQ(Ask(flat, 1.05, 1), (Answer{Verdict::kSpike, true}));
}

TEST(StepJudgeTest, GoesOnWithTheStepsThatItHasSeen) {
  StepJudge judge(JudgePolicy("skip", "skip"), at::kCPU);
  StepJudge shorter(JudgePolicy("skip", "skip"), at::kCPU);
  for (int step = 0; step < 7; ++step) {
    Ask(judge, 1 + 0.01 * step, 2);
  }
  const JudgedSteps steps = judge.Steps();
  ASSERT_EQ(steps.losses.size(), 5u);
  EXPECT_EQ(steps.losses.back(), double{static_cast<float>(1.06)});
  StepJudge resumed(JudgePolicy("skip", "skip"), at::kCPU);
  resumed.Restore(steps);
  EXPECT_EQ(resumed.Steps(), steps);
  EXPECT_EQ(Ask(resumed, 1.5, 2), Ask(judge, 1.5, 2));
  EXPECT_EQ(Ask(resumed, 1.5, 2).verdict, Verdict::kSpike);
  // Of a longer window, the newest.
  JudgedSteps longer = steps;
  longer.losses.insert(longer.losses.begin(), {9, 9, 9});
  longer.grad_norms.insert(longer.grad_norms.begin(), {9, 9, 9});
  shorter.Restore(longer);
  EXPECT_EQ(shorter.Steps(), steps);
  EXPECT_EQ(JudgedSteps(), StepJudge(JudgePolicy("skip", "skip"), at::kCPU).Steps());
}

}  // namespace
}  // namespace fsdprun::worker
