#include "launcher/watch/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

namespace fsdprun::watch {
namespace {

Duration FromSeconds(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f %%", share * 100);
  return text;
}

/// The faster of two. Takes the order of `values`.
double LowerMedian(std::vector<double>* values) {
  if (values->empty()) {
    return 0;
  }
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>((values->size() - 1) / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

}  // namespace

void StragglerWatch::Begin(int world_size, MonoTime now) {
  ranks_.assign(ratio_ > 0 ? static_cast<size_t>(world_size) : 0, Rank());
  round_began_ = now;
}

void StragglerWatch::Take(const Sample& sample) {
  if (static_cast<size_t>(sample.rank) >= ranks_.size() || !sample.own.has_value()) {
    return;
  }
  Rank& rank = ranks_[static_cast<size_t>(sample.rank)];
  const OwnSample& own = *sample.own;
  const bool is_first = std::exchange(rank.pid, sample.pid) != sample.pid;
  const bool is_new = std::exchange(rank.step, own.step) != own.step;
  if (is_first || !is_new || own.step_time <= Duration{}) {
    return;
  }
  Round step;
  step.own = std::max(0.0, ToSeconds(own.step_time - own.collective_wait));
  step.data = ToSeconds(own.data_wait);
  step.save = ToSeconds(own.save_time);
  step.compute = std::max(0.0, step.own - step.data - step.save);
  ++rank.sum.steps;
  rank.sum.waited += ToSeconds(own.collective_wait);
  rank.sum.own += step.own;
  rank.sum.compute += step.compute;
  rank.sum.data += step.data;
  rank.sum.save += step.save;
  rank.squares += step.own * step.own;
  rank.longest = step.own > rank.longest.own ? step : rank.longest;
}

// --- Rounds

bool StragglerWatch::IsRoundOver(MonoTime now) const {
  if (now - round_began_ < kRound) {
    return false;
  }
  const auto shown = std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.sum.steps >= kStepsOfRound;
  });
  return shown * 2 > static_cast<std::ptrdiff_t>(ranks_.size()) || now - round_began_ >= kLongRound;
}

/// Without the longest step, where others are left.
StragglerWatch::Round StragglerWatch::EndRound(Rank* rank) {
  Round mean = std::exchange(rank->sum, Round());
  double squares = std::exchange(rank->squares, 0);
  const Round longest = std::exchange(rank->longest, Round());
  if (mean.steps > kStepsOfRound) {
    --mean.steps;
    mean.own -= longest.own;
    mean.compute -= longest.compute;
    mean.data -= longest.data;
    mean.save -= longest.save;
    squares -= longest.own * longest.own;
  }
  const double n = mean.steps;
  if (mean.steps == 0) {
    return mean;
  }
  mean.own /= n;
  mean.compute /= n;
  mean.data /= n;
  mean.save /= n;
  mean.variance = std::max(0.0, squares / n - mean.own * mean.own);
  return mean;
}

/// The mean of the last rounds, each as heavy as its steps.
StragglerWatch::Round StragglerWatch::Together(const Rank& rank) {
  Round all;
  for (size_t i = 0; i < rank.round_count; ++i) {
    const Round& round = rank.rounds[i];
    all.steps += round.steps;
    all.own += round.own * round.steps;
    all.compute += round.compute * round.steps;
    all.data += round.data * round.steps;
    all.save += round.save * round.steps;
    all.variance += round.variance * round.steps;
    all.waited += round.waited;
  }
  const double n = std::max(1, all.steps);
  return {all.steps,    all.own / n,      all.compute / n, all.data / n,
          all.save / n, all.variance / n, all.waited};
}

StragglerWatch::Means StragglerWatch::MeansOf(const std::vector<Round>& rounds) const {
  std::vector<double> values;
  const auto median = [&](const auto& value_of) {
    values.clear();
    for (const Round& round : rounds) {
      if (round.steps > 0) {
        values.push_back(value_of(round));
      }
    }
    return LowerMedian(&values);
  };
  return {median([](const Round& r) { return r.own; }),
          median([](const Round& r) { return r.compute; }),
          median([](const Round& r) { return r.data; }),
          median([](const Round& r) { return r.save; }),
          median([](const Round& r) { return r.variance / r.steps; })};
}

// --- Verdicts

bool StragglerWatch::AreWaitsKnown(const std::vector<Round>& rounds) {
  return std::any_of(rounds.begin(), rounds.end(),
                     [](const Round& round) { return round.waited > 0; });
}

bool StragglerWatch::IsSlow(const Rank& rank, const Round& all, const Means& others) const {
  const auto votes = std::count_if(rank.excess.begin(), rank.excess.end(),
                                   [this](double excess) { return excess >= ratio_; });
  const double difference = all.own - others.own;
  const double error = std::sqrt(all.variance / std::max(1, all.steps) + others.squared_error);
  return rank.finding == 0 && votes >= kVotes && difference >= ratio_ * others.own &&
         difference >= ToSeconds(kLeast) && difference >= kSurety * error;
}

bool StragglerWatch::IsSlowNoMore(const Rank& rank) const {
  return std::count_if(rank.excess.begin(), rank.excess.end(),
                       [this](double excess) { return excess >= kEndRatio * ratio_; }) <= 1;
}

void StragglerWatch::Judge(const Places& places, MonoTime now, uint64_t* next_id, Findings* found) {
  if (ranks_.size() < 2 || !IsRoundOver(now)) {
    return;
  }
  round_began_ = now;
  std::vector<Round> rounds;
  for (Rank& rank : ranks_) {
    rounds.push_back(EndRound(&rank));
  }
  const Means of_round = MeansOf(rounds);
  std::vector<Round> together;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rounds[i].steps > 0 && of_round.own > 0) {
      std::rotate(rank.rounds.begin(), rank.rounds.end() - 1, rank.rounds.end());
      std::rotate(rank.excess.begin(), rank.excess.end() - 1, rank.excess.end());
      rank.rounds.front() = rounds[i];
      rank.excess.front() = rounds[i].own / of_round.own - 1;
      rank.round_count = std::min(rank.round_count + 1, kRounds);
    }
    together.push_back(Together(rank));
  }
  const Means others = MeansOf(together);
  const bool knows_waits = AreWaitsKnown(together);
  std::vector<int> slow;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (IsSlow(ranks_[i], together[i], others) &&
        (knows_waits || LosesTimeIn(together[i], others) != SlowIn::kComputing)) {
      slow.push_back(static_cast<int>(i));
    } else if (ranks_[i].finding != 0 && IsSlowNoMore(ranks_[i])) {
      Acquit(&ranks_[i], "as fast as the others again", found);
    }
  }
  TellSlow(slow, others, places, next_id, found);
}

SlowIn StragglerWatch::LosesTimeIn(const Round& all, const Means& others) {
  const double compute = all.compute - others.compute;
  const double data = all.data - others.data;
  const double save = all.save - others.save;
  return save > compute && save > data ? SlowIn::kSaving
         : data > compute              ? SlowIn::kWaitingForData
                                       : SlowIn::kComputing;
}

/// Those of one node that are slow in the same way are one finding.
void StragglerWatch::TellSlow(const std::vector<int>& slow, const Means& others,
                              const Places& places, uint64_t* next_id, Findings* found) {
  std::map<std::pair<size_t, SlowIn>, std::vector<int>> groups;
  for (const int rank : slow) {
    const SlowIn in = LosesTimeIn(Together(ranks_[static_cast<size_t>(rank)]), others);
    groups[{places.NodeIndexOf(rank), in}].push_back(rank);
  }
  for (const auto& [group, ranks] : groups) {
    SlowFound finding = Describe(ranks, group.second, others, places);
    finding.id = (*next_id)++;
    for (const int rank : ranks) {
      ranks_[static_cast<size_t>(rank)].finding = finding.id;
    }
    still_slow_[finding.id] = finding.rank_count;
    open_[finding.id] = finding;
    found->push_back(std::move(finding));
  }
}

SlowFound StragglerWatch::Describe(const std::vector<int>& ranks, SlowIn in, const Means& others,
                                   const Places& places) const {
  SlowFound finding;
  finding.rank_count = static_cast<int>(ranks.size());
  finding.in = in;
  double own = 0;
  for (const int rank : ranks) {
    own += Together(ranks_[static_cast<size_t>(rank)]).own / static_cast<double>(ranks.size());
    if (finding.ranks.size() < kPlacesMax) {
      finding.ranks.push_back({rank, places.NodeOf(rank), ranks_[static_cast<size_t>(rank)].pid});
    }
  }
  finding.excess = own / others.own - 1;
  finding.step_time = FromSeconds(own);
  finding.others_step_time = FromSeconds(others.own);
  const bool is_one = ranks.size() == 1;
  const std::string how = in == SlowIn::kComputing        ? is_one ? " computes " : " compute "
                          : in == SlowIn::kWaitingForData ? is_one ? " waits " : " wait "
                          : is_one                        ? " saves "
                                                          : " save ";
  const std::string what = in == SlowIn::kComputing        ? ""
                           : in == SlowIn::kWaitingForData ? " for data, and so takes"
                                                           : ", and so takes";
  finding.what = DescribeRanks(ranks, places) + how +
                 (what.empty() ? Percent(finding.excess) + " longer than the others ("
                               : "longer than the others" + what + " " + Percent(finding.excess) +
                                     " longer (") +
                 TextOfStep(finding.step_time) + " against " +
                 TextOfStep(finding.others_step_time) + " a step)";
  return finding;
}

void StragglerWatch::Acquit(Rank* rank, const char* why, Findings* found) {
  const uint64_t id = std::exchange(rank->finding, 0);
  if (--still_slow_[id] > 0) {
    return;
  }
  const SlowFound& finding = open_[id];
  const std::string who = finding.what.substr(0, finding.what.find(" on node "));
  found->push_back(SlowEnded{id, who + " on node " + finding.ranks.front().node +
                                     (finding.rank_count == 1 ? " is " : " are ") + why});
  open_.erase(id);
  still_slow_.erase(id);
}

void StragglerWatch::End(Findings* found) {
  for (Rank& rank : ranks_) {
    if (rank.finding != 0) {
      Acquit(&rank, "watched no longer: the world has ended", found);
    }
  }
  ranks_.clear();
}

}  // namespace fsdprun::watch
