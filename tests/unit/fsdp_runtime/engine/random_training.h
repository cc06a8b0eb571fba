#pragma once

// What a seed means for random_training_test.cc.

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {

inline constexpr int64_t kTrainingSteps = 2;

/// Of one micro batch, on all ranks or on each.
struct MicroBatch {
  bool reduces = true;
  int64_t skipped = -1;                         // block
  std::vector<std::vector<bool>> uses_spare{};  // by rank and block
};

/// What a seed means.
struct RandomTraining {
  uint64_t seed = 0;
  int64_t ranks = 1;
  int64_t replicas = 1;
  ToyConfig config;
  std::set<std::string> frozen{};
  MixedPrecisionPolicy policy{};
  std::vector<bool> is_unit{};                           // by block
  std::vector<std::optional<bool>> reshard{};            // by block, then the root's
  std::vector<std::vector<size_t>> forward_lists{};      // by block: units to be prefetched
  std::vector<std::vector<size_t>> backward_lists{};     // the same
  std::vector<std::vector<MicroBatch>> micro_batches{};  // by step
  bool as_on_a_device = false;
  std::vector<bool> keeps_half{};  // by block, then the root's: a part of two between the passes
  bool is_scaled = false;
  bool steps_in_backward = false;

  std::string describe() const;
  bool is_exact() const;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  /// From 0 to count - 1. The library's distributions are not the same everywhere.
  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  bool one_in(int64_t count) { return below(count) == 0; }
  std::optional<bool> maybe() { return one_in(3) ? std::nullopt : std::optional<bool>(one_in(2)); }

 private:
  std::mt19937_64 random_;
};

using Checkpointing = ToyConfig::Checkpointing;

inline ToyConfig draw_config(Draw& draw) {
  ToyConfig config;
  config.vocab = 3 + draw.below(30);
  config.width = 1 + draw.below(17);
  config.hidden = 1 + draw.below(40);
  config.blocks = draw.below(5);
  config.unmaterialized = draw.one_in(2);
  config.use_block_twice = draw.one_in(5);
  config.checkpointing =
      std::vector{Checkpointing::kNone, Checkpointing::kNone, Checkpointing::kAroundUnit,
                  Checkpointing::kInsideUnit}[static_cast<size_t>(draw.below(4))];
  return config;
}

inline std::set<std::string> draw_frozen(Draw& draw, int64_t blocks) {
  std::set<std::string> frozen;
  if (draw.one_in(2)) {
    return frozen;
  }
  for (int64_t i = 0; i < blocks; ++i) {
    for (const char* name : {"up", "bias", "down"}) {
      if (draw.one_in(3)) {
        frozen.insert("block" + std::to_string(i) + '.' + name);
      }
    }
  }
  return frozen;
}

/// Some of the units in front of `block`, or behind it.
inline std::vector<size_t> draw_list(Draw& draw, const std::vector<bool>& is_unit, int64_t block,
                                     int64_t direction) {
  std::vector<size_t> list;
  for (int64_t i = block + direction; i >= 0 && i < static_cast<int64_t>(is_unit.size());
       i += direction) {
    if (is_unit[static_cast<size_t>(i)] && draw.one_in(2)) {
      list.push_back(static_cast<size_t>(i));
    }
  }
  return list;
}

inline std::vector<MicroBatch> draw_step(Draw& draw, const RandomTraining& training) {
  std::vector<MicroBatch> step(static_cast<size_t>(1 + draw.below(3)));
  for (MicroBatch& micro_batch : step) {
    micro_batch.reduces = &micro_batch == &step.back() || draw.one_in(3);
    if (training.config.blocks > 1 && draw.one_in(4)) {
      micro_batch.skipped = draw.below(training.config.blocks);
    }
    for (int64_t rank = 0; rank < training.ranks; ++rank) {
      auto& uses = micro_batch.uses_spare.emplace_back();
      for (int64_t i = 0; i < training.config.blocks; ++i) {
        uses.push_back(draw.one_in(3));
      }
    }
  }
  return step;
}

/// Whether each parameter has one gradient in each step, behind all of it.
inline bool reduces_once(const RandomTraining& training) {
  bool is_once = training.replicas == 1 && !training.config.use_block_twice;
  for (const auto& step : training.micro_batches) {
    for (size_t i = 0; i + 1 < step.size(); ++i) {
      is_once = is_once && !step[i].reduces;
    }
  }
  return is_once;
}

/// What has come later; so older seeds mean what they meant, and more.
inline void draw_the_rest(Draw& draw, RandomTraining& training) {
  training.as_on_a_device = draw.one_in(4);
  for (int64_t i = 0; i <= training.config.blocks; ++i) {
    training.keeps_half.push_back(draw.one_in(2) && training.ranks / training.replicas == 4);
  }
  training.is_scaled = draw.one_in(3);
  training.steps_in_backward = !training.is_scaled && draw.one_in(2) && reduces_once(training);
}

inline RandomTraining draw_training(uint64_t seed) {
  Draw draw(seed);
  RandomTraining training{.seed = seed, .config = draw_config(draw)};
  training.ranks = 1 + draw.below(4);
  training.replicas = training.ranks % 2 == 0 && draw.one_in(3) ? 2 : 1;
  training.frozen = draw_frozen(draw, training.config.blocks);
  // Of a block that is used twice, bfloat16 gradients are added in float32 if each use is reduced,
  // and else by autograd.
  if (draw.one_in(3) && !training.config.use_block_twice) {
    training.policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  }
  for (int64_t i = 0; i < training.config.blocks; ++i) {
    training.is_unit.push_back(!draw.one_in(4));
  }
  for (int64_t i = 0; i <= training.config.blocks; ++i) {
    training.reshard.push_back(draw.maybe());
  }
  const bool has_lists = draw.one_in(3);
  for (int64_t i = 0; i < training.config.blocks; ++i) {
    const bool is_unit = has_lists && training.is_unit[static_cast<size_t>(i)];
    training.forward_lists.push_back(is_unit ? draw_list(draw, training.is_unit, i, 1)
                                             : std::vector<size_t>{});
    training.backward_lists.push_back(is_unit ? draw_list(draw, training.is_unit, i, -1)
                                              : std::vector<size_t>{});
  }
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    training.micro_batches.push_back(draw_step(draw, training));
  }
  draw_the_rest(draw, training);
  return training;
}

inline std::string RandomTraining::describe() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << ranks << " ranks, " << replicas << " copies, vocab "
       << config.vocab << ", width " << config.width << ", hidden " << config.hidden
       << (config.unmaterialized ? ", unmaterialized" : "")
       << (config.use_block_twice ? ", blocks used twice" : "") << ", checkpointing "
       << static_cast<int>(config.checkpointing) << (policy.param_dtype ? ", bfloat16" : "")
       << (as_on_a_device ? ", as on a device" : "") << (is_scaled ? ", scaled" : "")
       << (steps_in_backward ? ", steps in backward" : "");
  const auto tell = [](std::optional<bool> choice) { return !choice ? '?' : *choice ? '1' : '0'; };
  for (size_t i = 0; i < is_unit.size(); ++i) {
    text << "; block " << i << (is_unit[i] ? " is a unit, reshard " : " is no unit, reshard ")
         << tell(reshard[i]) << (keeps_half[i] ? " to 2" : "") << ", lists "
         << forward_lists[i].size() << " and " << backward_lists[i].size();
  }
  text << "; root reshard " << tell(reshard.back()) << (keeps_half.back() ? " to 2" : "")
       << "; frozen";
  for (const std::string& name : frozen) {
    text << ' ' << name;
  }
  for (const auto& step : micro_batches) {
    text << "; step";
    for (const MicroBatch& micro_batch : step) {
      text << (micro_batch.reduces ? " reduce" : " keep") << " without block "
           << micro_batch.skipped;
    }
  }
  text << ". To repeat it: FSDPRUN_FIRST_SEED=" << seed
       << " FSDPRUN_SEEDS=1 fsdp_random_training_test";
  return text.str();
}

/// Whether each gradient is added up in the order of the reference: the uses of a micro batch, the
/// micro batches, the ranks of one row.
inline bool RandomTraining::is_exact() const {
  const bool recomputes_each_use =
      config.use_block_twice && config.checkpointing != Checkpointing::kNone;
  const bool reduces_each_use =
      config.use_block_twice && config.checkpointing == Checkpointing::kAroundUnit;
  bool is_in_order = !reduces_each_use && replicas == 1;
  for (const auto& step : micro_batches) {
    is_in_order = is_in_order && !(recomputes_each_use && step.size() > 1);
    for (size_t i = 0; i + 1 < step.size(); ++i) {
      is_in_order = is_in_order && !step[i].reduces;
    }
  }
  return is_in_order;
}

}  // namespace fsdp::testing
