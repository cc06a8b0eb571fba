// Trains random models in random ways, and compares all bits, where sums have one order, with
// training without sharding.
//
// FSDPRUN_SEEDS: how many; FSDPRUN_FIRST_SEED: from which on, to repeat one that has failed.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <sstream>

#include "tests/unit/fsdp_runtime/engine/placed_model.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kTrainingSteps = 2;

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

ToyConfig draw_config(Draw& draw) {
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

std::set<std::string> draw_frozen(Draw& draw, int64_t blocks) {
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
std::vector<size_t> draw_list(Draw& draw, const std::vector<bool>& is_unit, int64_t block,
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

std::vector<MicroBatch> draw_step(Draw& draw, const RandomTraining& training) {
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

RandomTraining draw_training(uint64_t seed) {
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
  training.as_on_a_device = draw.one_in(4);
  return training;
}

std::string RandomTraining::describe() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << ranks << " ranks, " << replicas << " copies, vocab "
       << config.vocab << ", width " << config.width << ", hidden " << config.hidden
       << (config.unmaterialized ? ", unmaterialized" : "")
       << (config.use_block_twice ? ", blocks used twice" : "") << ", checkpointing "
       << static_cast<int>(config.checkpointing) << (policy.param_dtype ? ", bfloat16" : "")
       << (as_on_a_device ? ", as on a device" : "");
  const auto tell = [](std::optional<bool> choice) { return !choice ? '?' : *choice ? '1' : '0'; };
  for (size_t i = 0; i < is_unit.size(); ++i) {
    text << "; block " << i << (is_unit[i] ? " is a unit, reshard " : " is no unit, reshard ")
         << tell(reshard[i]) << ", lists " << forward_lists[i].size() << " and "
         << backward_lists[i].size();
  }
  text << "; root reshard " << tell(reshard.back()) << "; frozen";
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
bool RandomTraining::is_exact() const {
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

void freeze(ToyModel& model, const std::set<std::string>& frozen) {
  for (auto& item : model.named_parameters()) {
    if (frozen.contains(item.key())) {
      item.value().set_requires_grad(false);
    }
  }
}

at::Tensor loss_of_micro_batch(const Unit<ToyModel>& model, const MicroBatch& micro_batch,
                               int64_t number, int64_t rank) {
  model->skipped = micro_batch.skipped;
  for (size_t i = 0; i < model->blocks.size(); ++i) {
    model->blocks[i]->use_spare = micro_batch.uses_spare[static_cast<size_t>(rank)][i];
  }
  return loss(model, number, rank);
}

/// Without sharding: gradients are computed by a copy in the dtype of the policy, one rank after
/// the other, and added up in float32.
class Reference {
 public:
  explicit Reference(const RandomTraining& training)
      : training_(training),
        plain_(training.config, training.ranks, options()),
        copy_(make_plain(training.config)) {
    freeze(*copy_, training.frozen);
    if (training.policy.param_dtype) {
      copy_->to(*training.policy.param_dtype);
    }
    plain_.options_of = [&training](const std::string& fqn) {
      return training.frozen.contains(fqn) ? std::nullopt : std::optional(options());
    };
  }
  static AdamWOptions options() { return {.lr = 1e-2}; }

  void step(int64_t number) {
    plain_.update(gradients(number));
    at::NoGradGuard no_grad;
    for (auto& [fqn, parameter] : plain_.unique_parameters()) {
      copy_->named_parameters()[fqn].copy_(parameter);
    }
  }
  at::Tensor parameter(const std::string& fqn) const { return plain_.parameter(fqn); }

 private:
  Gradients gradients(int64_t step) {
    Gradients sum;
    for (int64_t rank = 0; rank < training_.ranks; ++rank) {
      for (const auto& [fqn, gradient] : gradients_of(step, rank)) {
        // A rank that has none counts as zeros.
        sum[fqn] = sum.contains(fqn) ? sum[fqn] + gradient : gradient;
      }
    }
    for (auto& [fqn, gradient] : sum) {
      gradient.div_(training_.ranks);
    }
    return sum;
  }

  Gradients gradients_of(int64_t step, int64_t rank) {
    Gradients sum;
    const auto& micro_batches = training_.micro_batches[static_cast<size_t>(step)];
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      copy_->zero_grad();
      loss_of_micro_batch(copy_, micro_batches[i], 10 * step + static_cast<int64_t>(i), rank)
          .backward();
      for (const auto& [fqn, ignored] : plain_.unique_parameters()) {
        const at::Tensor gradient = copy_->named_parameters()[fqn].grad();
        if (gradient.defined()) {
          const at::Tensor whole = gradient.to(at::kFloat);
          sum[fqn] = sum.contains(fqn) ? sum[fqn] + whole : whole.clone();
        }
      }
    }
    return sum;
  }

  const RandomTraining& training_;
  PlainTraining plain_;
  Unit<ToyModel> copy_;
};

Sharded make_random(const Rank& rank, const RandomTraining& training) {
  const auto mesh =
      training.replicas == 1
          ? rank.mesh
          : init_device_mesh(c10::kCPU, {training.replicas, training.ranks / training.replicas},
                             {"dp_replicate", "dp_shard"}, rank.comm);
  Sharded setup{Unit<ToyModel>(std::make_shared<ToyModel>(training.config)), {}};
  freeze(*setup.model, training.frozen);
  const auto& blocks = setup.model->blocks;
  const auto options = [&](size_t number) {
    FullyShardOptions chosen;
    chosen.mesh = mesh;
    chosen.mp_policy = training.policy;
    if (training.reshard[number]) {
      chosen.reshard_after_forward = *training.reshard[number];
    }
    const uint64_t division = (training.seed + number) % 6;
    if (division < 2) {
      chosen.shard_placement_fn =
          division == 0 ? shard_on_dim(0) : last_that_divides(training.ranks / training.replicas);
    }
    return chosen;
  };
  std::vector<FSDPModule> units(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (training.is_unit[i]) {
      units[i] = fully_shard(blocks[i].ptr(), options(i));
    }
  }
  setup.root = fully_shard(setup.model.ptr(), options(blocks.size()));
  setup.root.init_parameters(initialise);
  const auto units_of = [&units](const std::vector<size_t>& numbers) {
    std::vector<FSDPModule> chosen;
    for (const size_t number : numbers) {
      chosen.push_back(units[number]);
    }
    return chosen;
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (training.is_unit[i]) {
      units[i].set_modules_to_forward_prefetch(units_of(training.forward_lists[i]));
      units[i].set_modules_to_backward_prefetch(units_of(training.backward_lists[i]));
    }
  }
  return setup;
}

void run_training(Rank& rank, const RandomTraining& training, const Reference& expected) {
  Sharded setup = make_random(rank, training);
  AdamW optimizer(setup.root, Reference::options());
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    const auto& micro_batches = training.micro_batches[static_cast<size_t>(step)];
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      if (training.replicas > 1 && training.seed % 2 == 0) {
        setup.root.set_requires_all_reduce(micro_batches[i].reduces);
      } else {
        setup.root.set_requires_gradient_sync(micro_batches[i].reduces);
      }
      loss_of_micro_batch(setup.model, micro_batches[i], 10 * step + static_cast<int64_t>(i),
                          rank.rank)
          .backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  // What AdamW makes of the last bits of a gradient is a part of a step of 1e-2.
  const double bound = training.is_exact() ? 0 : 2e-5;
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    const at::Tensor actual = setup.root.full_parameter(shard.fqn);
    const at::Tensor whole = expected.parameter(shard.fqn);
    ASSERT_EQ(actual.sizes(), whole.sizes()) << shard.fqn;
    EXPECT_LE((actual - whole).abs().max().item<double>(), bound)
        << shard.fqn << " on rank " << rank.rank;
  }
}

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

TEST(RandomTrainingTest, AnyModelOnAnyMeshWithAnyPolicyTrainsAsWithoutSharding) {
  at::set_num_threads(1);
  const uint64_t first = number_of("FSDPRUN_FIRST_SEED", 1);
  const uint64_t count = number_of("FSDPRUN_SEEDS", 100);
  int64_t exact = 0;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    const RandomTraining training = draw_training(seed);
    Reference expected(training);
    for (int64_t step = 0; step < kTrainingSteps; ++step) {
      expected.step(step);
    }
    try {
      run_ranks(
          training.ranks, [&](Rank& rank) { run_training(rank, training, expected); },
          training.as_on_a_device);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) {
      ADD_FAILURE() << training.describe();
    }
    exact += training.is_exact() ? 1 : 0;
  }
  // Else the test compares less than it seems to.
  EXPECT_TRUE(HasFailure() || count < 100 || exact > static_cast<int64_t>(count) / 4)
      << exact << " of " << count << " compare bits";
}

}  // namespace
}  // namespace fsdp::testing
