// State dicts of sharded models: what they have, and that it can be loaded wherever it should.

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/fsdp_runtime/state_dict/stateful_model.h"

namespace fsdp::testing {
namespace {

struct StateCase {
  std::string name;
  int64_t ranks;
  int64_t replicas = 1;
  std::optional<at::ScalarType> param_dtype = std::nullopt;
};

class ModelStateTest : public ::testing::TestWithParam<StateCase> {
 protected:
  /// Runs `body` on each rank with a model that has the values of whole_dict().
  static void run(const std::function<void(Rank&, Stateful&)>& body) {
    run_ranks(GetParam().ranks, [&](Rank& rank) {
      Stateful setup = make(rank);
      set_model_state_dict(setup.root, whole_dict());
      body(rank, setup);
    });
  }
  static Stateful make(const Rank& rank, bool unmaterialized = false) {
    FullyShardOptions options;
    options.mp_policy.param_dtype = GetParam().param_dtype;
    return make_stateful(rank, options, GetParam().replicas, unmaterialized);
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ModelStateTest,
                         ::testing::Values(StateCase{"1", 1}, StateCase{"2", 2}, StateCase{"3", 3},
                                           StateCase{"2x2", 4, 2},
                                           StateCase{"bfloat16", 2, 1, at::kBFloat16}),
                         [](const auto& info) { return info.param.name; });

TEST_P(ModelStateTest, ShardsAreThereUnderPythonsNamesWithoutCommunication) {
  run([](Rank& rank, Stateful& setup) {
    rank.comm->clear();
    const ModelStateDict dict = get_model_state_dict(setup.root);
    EXPECT_TRUE(rank.comm->records().empty());
    EXPECT_EQ(keys_of(dict), names_of_stateful_model());
    const ModelStateDict whole = whole_dict();
    for (const auto& entry : dict) {
      const at::Tensor& expected = std::get<at::Tensor>(whole[entry.key()]);
      if (const auto* shard = std::get_if<LocalShard>(&entry.value())) {
        EXPECT_EQ(shard->fqn, entry.key());
        EXPECT_TRUE(at::equal(shard->local, part_of(expected, *shard))) << entry.key();
      } else {
        EXPECT_TRUE(at::equal(std::get<at::Tensor>(entry.value()), expected)) << entry.key();
      }
    }
    EXPECT_TRUE(std::holds_alternative<at::Tensor>(dict["norm.shift"]));
    EXPECT_TRUE(std::holds_alternative<LocalShard>(dict["norm_again.weight"]));
  });
}

TEST_P(ModelStateTest, ShardsAreViewsAndOffloadedOnesCopies) {
  run([](Rank&, Stateful& setup) {
    const ModelStateDict views = get_model_state_dict(setup.root);
    const ModelStateDict copies = get_model_state_dict(setup.root, {.cpu_offload = true});
    expect_equal(copies, views);
    std::map<std::string, at::Tensor> own;
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      own[shard.fqn] = shard.local;
    }
    const auto address = [](const ModelStateDict& dict, const std::string& key) {
      return std::get<LocalShard>(dict[key]).local.const_data_ptr();
    };
    EXPECT_EQ(address(views, "toy.head"), own.at("toy.embedding").const_data_ptr());
    for (const auto& [name, local] : own) {
      if (local.numel() > 0) {
        EXPECT_NE(address(copies, name), local.const_data_ptr()) << name;
      }
    }
    EXPECT_NE(std::get<at::Tensor>(copies["count"]).const_data_ptr(),
              setup.model->count.const_data_ptr());
  });
}

TEST_P(ModelStateTest, WholeTensorsAreOnAllRanksOrOnRank0) {
  run([](Rank& rank, Stateful& setup) {
    expect_equal(get_model_state_dict(setup.root, kWhole), whole_dict());
    const ModelStateDict on_one = get_model_state_dict(setup.root, kWholeOnRank0);
    if (rank.rank == 0) {
      expect_equal(on_one, whole_dict());
    } else {
      EXPECT_TRUE(on_one.is_empty());
    }
  });
}

TEST_P(ModelStateTest, WholeTensorsAreGatheredGroupByGroup) {
  run([](Rank& rank, Stateful& setup) {
    if (GetParam().replicas > 1) {
      return;  // rank.comm is not the group of a row
    }
    rank.comm->clear();
    get_model_state_dict(setup.root, kWholeOnRank0);
    int64_t gathers = 0;
    for (const CollectiveRecord& record : rank.comm->records()) {
      gathers += record.operation == "all_gather" && record.dtype == "Float" ? 1 : 0;
    }
    // Of each block two, for frozen parameters and others, and of the root two as well.
    EXPECT_EQ(gathers, 3 * 2 + 1 + 2);
    EXPECT_LE(std::ssize(rank.comm->records()), gathers + 1);
  });
}

TEST_P(ModelStateTest, FrozenParametersCanBeLeftOut) {
  run([](Rank&, Stateful& setup) {
    const StateDictOptions ignoring{.full_state_dict = true, .ignore_frozen_params = true};
    const ModelStateDict dict = get_model_state_dict(setup.root, ignoring);
    EXPECT_EQ(keys_of(dict), names_of_stateful_model(/*with_frozen=*/false));
    EXPECT_EQ(set_model_state_dict(setup.root, dict, ignoring), IncompatibleKeys());
    const std::string said = refusal([&] { set_model_state_dict(setup.root, dict, kWhole); });
    EXPECT_NE(said.find("missing key(s) in the dict: \"anchor\", \"toy.block0.up\""),
              std::string::npos)
        << said;
  });
}

TEST_P(ModelStateTest, ParametersMayBeGatheredAndGradientsWait) {
  run([](Rank& rank, Stateful& setup) {
    setup.root.set_requires_gradient_sync(false);
    setup.root.set_reshard_after_backward(false);
    loss(setup, 0, rank.rank).backward();
    setup.root.unshard();
    expect_equal(get_model_state_dict(setup.root, kWhole), whole_dict());
    const ModelStateDict shards = copy_of(get_model_state_dict(setup.root));
    set_model_state_dict(setup.root, shards);
    expect_equal(get_model_state_dict(setup.root, kWhole), whole_dict());
    setup.root.set_requires_gradient_sync(true);
    loss(setup, 1, rank.rank).backward();
    EXPECT_TRUE(setup.root.parameters()[1].grad().defined());
  });
}

/// What a model computes that was loaded in another way.
at::Tensor computed_by(const Stateful& setup) {
  at::NoGradGuard no_grad;
  return loss(setup, 3, 0);
}

TEST_P(ModelStateTest, IsLoadedFromWholeTensorsFromRank0AndFromShards) {
  run([](Rank& rank, Stateful& setup) {
    const at::Tensor expected = computed_by(setup);
    for (const bool unmaterialized : {false, true}) {
      Stateful whole = make(rank, unmaterialized);
      computed_by(whole);  // what the forward has gathered is not what is loaded
      EXPECT_EQ(set_model_state_dict(whole.root, whole_dict(), kWhole), IncompatibleKeys());
      EXPECT_TRUE(at::equal(computed_by(whole), expected));

      Stateful sent = make(rank, unmaterialized);
      computed_by(sent);
      const ModelStateDict own = rank.rank == 0 ? whole_dict() : ModelStateDict();
      EXPECT_EQ(set_model_state_dict(sent.root, own, kFromRank0), IncompatibleKeys());
      EXPECT_TRUE(at::equal(computed_by(sent), expected));
      expect_equal(get_model_state_dict(sent.root), get_model_state_dict(setup.root));

      Stateful shards = make(rank, unmaterialized);
      set_model_state_dict(shards.root, copy_of(get_model_state_dict(setup.root)));
      EXPECT_TRUE(at::equal(computed_by(shards), expected));
      EXPECT_EQ(shards.model->count.item<int64_t>(), 41);
    }
  });
}

TEST_P(ModelStateTest, WhatIsNotStrictSaysWhatItHasLeftOut) {
  run([](Rank& rank, Stateful& setup) {
    const at::Tensor other = at::full({15}, 2.0);
    ModelStateDict some = with(whole_dict(), "anchor", at::Tensor());
    some = with(with(some, "stranger", other), "norm.weight", other);
    some = with(some, "norm_again.weight", at::Tensor());
    for (const bool from_rank0 : {false, true}) {
      const StateDictOptions lenient{
          .full_state_dict = true, .strict = false, .broadcast_from_rank0 = from_rank0};
      const bool has_it = !from_rank0 || rank.rank == 0;
      const IncompatibleKeys keys =
          set_model_state_dict(setup.root, has_it ? some : ModelStateDict(), lenient);
      EXPECT_THAT(keys.missing_keys, ::testing::ElementsAre("anchor", "norm_again.weight"));
      EXPECT_THAT(keys.unexpected_keys, ::testing::ElementsAre("stranger"));
      const ModelStateDict now = get_model_state_dict(setup.root, kWhole);
      expect_equal(now["anchor"], whole_dict()["anchor"], "anchor");
      expect_equal(now["norm_again.weight"], other, "norm_again.weight");
    }
  });
}

/// What each thread has of LibTorch's memory at most.
class PeakOfThread : public c10::Allocator {
 public:
  PeakOfThread() { c10::SetCPUAllocator(this, 1); }
  ~PeakOfThread() override { c10::SetCPUAllocator(inner_, 1); }
  c10::DataPtr allocate(size_t bytes) override {
    auto* piece = new Piece{inner_->allocate(bytes), static_cast<int64_t>(bytes)};
    live_ += piece->bytes;
    peak_ = std::max(peak_, live_);
    return {piece->memory.get(), piece, &free_piece, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  /// Of the calling thread, in `run`.
  static int64_t peak_of(const std::function<void()>& run) {
    live_ = peak_ = 0;
    run();
    return peak_;
  }

 private:
  struct Piece {
    c10::DataPtr memory;
    int64_t bytes;
  };
  static void free_piece(void* piece) {
    live_ -= static_cast<Piece*>(piece)->bytes;
    delete static_cast<Piece*>(piece);
  }
  static thread_local int64_t live_;
  static thread_local int64_t peak_;
  c10::Allocator* const inner_ = c10::GetCPUAllocator();
};
thread_local int64_t PeakOfThread::live_ = 0;
thread_local int64_t PeakOfThread::peak_ = 0;

TEST(ModelStateMemoryTest, RanksThatKeepNothingHaveMemoryForOneSmallGroup) {
  const PeakOfThread memory;
  run_ranks(2, [](Rank& rank) {
    const Sharded setup = make(rank, wide_toy());
    int64_t model_bytes = 0;
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      model_bytes += c10::multiply_integers(shard.global_shape) * 4;
    }
    const int64_t block_bytes = (2 * 1024 * 64 + 1024 + 15) * 4;
    const int64_t peak = PeakOfThread::peak_of(
        [&] { const ModelStateDict dict = get_model_state_dict(setup.root, kWholeOnRank0); });
    ASSERT_GT(model_bytes, 2 * block_bytes);
    // With padding, and words of both ranks.
    EXPECT_LT(peak, (rank.rank == 0 ? model_bytes : 0) + block_bytes * 9 / 8);
    EXPECT_GT(peak, (rank.rank == 0 ? model_bytes : 0));
  });
}

struct LargeParameter : torch::nn::Module {
  LargeParameter() {
    weight = register_parameter("weight", at::arange(24 << 20, at::kFloat).view({-1, 1024}));
  }
  at::Tensor weight;
};

// One parameter of 96 MiB, which comes in two pieces.
TEST(ModelStateMemoryTest, IsBoundedHoweverLargeAParameterIs) {
  const PeakOfThread memory;
  run_ranks(2, [](Rank& rank) {
    const auto module = std::make_shared<LargeParameter>();
    FullyShardOptions options;
    options.mesh = rank.mesh;
    const FSDPModule root = fully_shard(module, options);
    rank.comm->clear();
    ModelStateDict dict;
    const int64_t peak =
        PeakOfThread::peak_of([&] { dict = get_model_state_dict(root, kWholeOnRank0); });
    EXPECT_EQ(std::ssize(rank.comm->records()), 1 + 2);
    const int64_t piece_bytes = int64_t{64} << 20;
    EXPECT_LE(peak, (rank.rank == 0 ? int64_t{96} << 20 : 0) + piece_bytes * 9 / 8);
    if (rank.rank == 0) {
      EXPECT_TRUE(at::equal(std::get<at::Tensor>(dict["weight"]),
                            at::arange(24 << 20, at::kFloat).view({-1, 1024})));
      std::get<at::Tensor>(dict["weight"]).neg_();
    }
    EXPECT_LE(PeakOfThread::peak_of([&] { set_model_state_dict(root, dict, kFromRank0); }),
              piece_bytes * 9 / 8);
    const LocalShard part = root.sharded_parameters().at(0);
    EXPECT_TRUE(at::equal(part.local, part_of(-LargeParameter().weight, part)));
  });
}

TEST(ModelStateOfWindowsTest, WhatIsLoadedIsWhatPeersRead) {
  run_ranks(2, [](Rank& rank) {
    FullyShardOptions options;
    options.mp_policy.param_dtype = at::kBFloat16;
    Sharded first = make(rank, wide_toy(), options);
    const at::Tensor expected = loss(first.model, 0, 0).detach();
    Sharded second = make(rank, wide_toy(), options);
    second.root.init_parameters([](const std::string&, at::Tensor full) { full.fill_(0.01); });
    loss(second.model, 0, 0).backward();
    loss(second.model, 0, 0);  // gathered, and in use
    set_model_state_dict(second.root, get_model_state_dict(first.root));
    EXPECT_TRUE(at::equal(loss(second.model, 0, 0), expected));
  });
}

// Of a unit in a model the names are below the unit.
TEST(ModelStateOfAUnitTest, HasTheNamesBelowIt) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    const FSDPModule block = fsdp_module(*setup.model->toy->blocks[1]);
    const ModelStateDict dict = get_model_state_dict(block, kWhole);
    EXPECT_THAT(keys_of(dict), ::testing::ElementsAre("up", "bias", "down", "spare"));
    EXPECT_EQ(set_model_state_dict(block, dict), IncompatibleKeys());
  });
}

}  // namespace
}  // namespace fsdp::testing
