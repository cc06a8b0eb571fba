// What cannot be loaded is refused on all ranks, by a message that says what it is, and nothing of
// it is loaded on any of them.

#include <gmock/gmock.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "tests/unit/fsdp_runtime/state_dict/stateful_model.h"

namespace fsdp::testing {
namespace {

/// `bad(rank 1's dict)` is refused on both ranks; the message of the other one names rank 1.
void expect_refused(const std::function<ModelStateDict(const ModelStateDict&)>& bad,
                    const std::vector<std::string>& words, bool of_shards = false) {
  run_ranks(2, [&](Rank& rank) {
    Stateful setup = make_stateful(rank);
    set_model_state_dict(setup.root, whole_dict());
    const ModelStateDict before = copy_of(get_model_state_dict(setup.root));
    ModelStateDict given = copy_of(of_shards ? before : whole_dict());
    for (auto& entry : given) {
      if (auto* whole = std::get_if<at::Tensor>(&entry.value())) {
        whole->add_(1);
      }
    }
    given = rank.rank == 1 ? bad(given) : given;
    const std::string said = refusal([&] { set_model_state_dict(setup.root, given); });
    for (const std::string& word : words) {
      EXPECT_NE(said.find(word), std::string::npos) << word << " is not in: " << said;
    }
    EXPECT_EQ(said.find("rank 1: ") != std::string::npos, rank.rank == 0) << said;
    expect_equal(get_model_state_dict(setup.root), before);
    loss(setup, 0, rank.rank).backward();
  });
}

TEST(RefusedStateTest, MissingAndUnexpectedKeys) {
  expect_refused(
      [](const ModelStateDict& dict) {
        return with(with(dict, "toy.gain", at::Tensor()), "toy.gian", at::zeros({15}));
      },
      {"set_model_state_dict", "missing key(s) in the dict: \"toy.gain\"",
       "unexpected key(s) in the dict: \"toy.gian\""});
}

TEST(RefusedStateTest, AnotherShape) {
  expect_refused(
      [](const ModelStateDict& dict) {
        return with(dict, "anchor", at::zeros({5, 7}));
      },
      {"size mismatch for anchor: the dict has shape [5, 7], expected [7, 5]"});
  expect_refused([](const ModelStateDict& dict) { return with(dict, "count", at::zeros({1})); },
                 {"size mismatch for count: the dict has shape [1], expected []"});
}

TEST(RefusedStateTest, AnotherDtype) {
  expect_refused(
      [](const ModelStateDict& dict) {
        return with(dict, "toy.block1.down", at::zeros({15, 33}, at::kHalf));
      },
      {"dtype mismatch for toy.block1.down: the dict has Half, expected Float"});
}

TEST(RefusedStateTest, UndefinedTensorsAndShardsOfBuffers) {
  expect_refused(
      [](const ModelStateDict& dict) {
        ModelStateDict bad = dict;
        bad["toy.gain"] = at::Tensor();
        bad["norm.shift"] = LocalShard{{"norm.shift", {15}, {{{0}, {15}}}, {}}, at::zeros({15})};
        return bad;
      },
      {"toy.gain: the tensor given is undefined", "norm.shift: a shard is given"});
}

// What stands before it in the dict has been copied by the time that it is come to.
TEST(RefusedStateTest, TensorsWithoutDataAndSparseOnes) {
  const auto on_meta = [](const ModelStateDict& dict) {
    return with(dict, "norm.weight",
                at::zeros({15}, at::TensorOptions(at::kFloat).device(at::kMeta)));
  };
  expect_refused(on_meta, {"norm.weight: the tensor given is on the meta device and has no data"});
  expect_refused(
      [](const ModelStateDict& dict) {
        auto shard = std::get<LocalShard>(dict["norm.weight"]);
        shard.local = shard.local.to(at::kMeta);
        return with(dict, "norm.weight", shard);
      },
      {"norm.weight: the tensor given is on the meta device"}, /*of_shards=*/true);
  expect_refused(
      [](const ModelStateDict& dict) {
        return with(dict, "norm.weight", std::get<at::Tensor>(dict["norm.weight"]).to_sparse());
      },
      {"norm.weight: the tensor given is Sparse, expected a dense one"});
}

TEST(RefusedStateTest, ShardsOfAnotherNumberOfRanks) {
  expect_refused(
      [](const ModelStateDict& dict) {
        auto shard = std::get<LocalShard>(dict["anchor"]);
        shard.boxes = {{{0, 0}, {7, 5}}};
        shard.local = at::zeros({35});
        return with(dict, "anchor", shard);
      },
      {"anchor: the shard given has [7, 5] at [0, 0] of the tensor", "another number of ranks",
       "full_state_dict"},
      /*of_shards=*/true);
}

TEST(RefusedStateTest, ShardsWithOtherDataThanTheirBoxes) {
  expect_refused(
      [](const ModelStateDict& dict) {
        auto shard = std::get<LocalShard>(dict["toy.block0.up"]);
        shard.local = at::zeros({3});
        return with(dict, "toy.block0.up", shard);
      },
      {"toy.block0.up: the shard given has 3 elements"}, /*of_shards=*/true);
}

TEST(RefusedStateTest, WhatRank0WouldSend) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    set_model_state_dict(setup.root, whole_dict());
    const ModelStateDict bad = with(whole_dict(), "anchor", at::zeros({3}));
    const std::string said = refusal([&] {
      set_model_state_dict(setup.root, rank.rank == 0 ? bad : ModelStateDict(), kFromRank0);
    });
    EXPECT_NE(said.find("size mismatch for anchor"), std::string::npos) << said;
    const ModelStateDict shards = get_model_state_dict(setup.root);
    const std::string of_shards =
        refusal([&] { set_model_state_dict(setup.root, shards, kFromRank0); });
    EXPECT_NE(of_shards.find("broadcast_from_rank0 sends whole tensors"), std::string::npos);
    expect_equal(get_model_state_dict(setup.root, kWhole), whole_dict());
  });
}

TEST(RefusedStateTest, OptionsThatDoNotGoTogetherOrDiffer) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    const ModelStateDict dict = whole_dict();
    EXPECT_NE(refusal([&] {
                set_model_state_dict(setup.root, dict, {.broadcast_from_rank0 = true});
              }).find("broadcast_from_rank0 needs full_state_dict"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                get_model_state_dict(setup.root, kFromRank0);
              }).find("broadcast_from_rank0 is an option of the functions that set"),
              std::string::npos);
    const std::string said = refusal([&] {
      get_model_state_dict(setup.root, {.full_state_dict = true, .cpu_offload = rank.rank == 0});
    });
    EXPECT_NE(said.find("ranks 0 and 1 differ"), std::string::npos) << said;
    const StateDictOptions lenient{.full_state_dict = true, .strict = false};
    const ModelStateDict own = rank.rank == 0 ? dict : with(dict, "anchor", at::Tensor());
    EXPECT_NE(refusal([&] {
                set_model_state_dict(setup.root, own, lenient);
              }).find("ranks 0 and 1 differ"),
              std::string::npos);
  });
}

// What a FakeTensor is: all that is asked of it before the first is sent, and no data.
TEST(RefusedStateTest, WhoCannotGoOnInTheMiddleEndsTheWorld) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    const ModelStateDict dict = whole_dict();
    std::get<at::Tensor>(dict["anchor"])
        .storage()
        .unsafeGetStorageImpl()
        ->release_data_and_set_meta_custom_data_ptr_error_msg_("the data is gone");
    const std::string said = refusal([&] { set_model_state_dict(setup.root, dict, kFromRank0); });
    EXPECT_NE(said.find("the data is gone"), std::string::npos) << said;
    EXPECT_EQ(said.find("rank 0 cannot go on") != std::string::npos, rank.rank == 1) << said;
  });
}

TEST(RefusedStateTest, RanksOfAMeshHearOfEachOther) {
  run_ranks(4, [](Rank& rank) {
    Stateful setup = make_stateful(rank, {}, /*replicas=*/2);
    ModelStateDict dict = whole_dict();
    dict = rank.rank == 3 ? with(dict, "anchor", at::zeros({1})) : dict;
    const std::string said = refusal([&] { set_model_state_dict(setup.root, dict); });
    EXPECT_NE(said.find("size mismatch for anchor"), std::string::npos) << said;
    EXPECT_EQ(said.find("rank 3: ") != std::string::npos, rank.rank != 3) << said;
    set_model_state_dict(setup.root, whole_dict());
  });
}

TEST(RefusedStateTest, AnEmptyHandle) {
  EXPECT_NE(refusal([] { get_model_state_dict(FSDPModule()); }).find("empty FSDPModule handle"),
            std::string::npos);
}

TEST(RefusedStateTest, OptimizersThatAreNotKnownOrOfAnotherModel) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    torch::optim::LBFGS unknown(setup.root.parameters());
    const std::string said = refusal([&] { get_optimizer_state_dict(setup.root, unknown); });
    EXPECT_NE(said.find("an optimizer of type torch::optim::LBFGS"), std::string::npos) << said;
    EXPECT_NE(said.find("save()"), std::string::npos) << said;
    Stateful other = make_stateful(rank);
    torch::optim::SGD of_other(other.root.parameters(), 0.1);
    EXPECT_NE(refusal([&] {
                get_optimizer_state_dict(setup.root, of_other, kWhole);
              }).find("parameter 0 of group 0 of the torch::optim::SGD is none of this model's"),
              std::string::npos);
    const FSDPModule block = fsdp_module(*setup.model->toy->blocks[0]);
    AdamW whole(setup.root, {});
    EXPECT_NE(refusal([&] {
                get_optimizer_state_dict(block, whole);
              }).find("which the model has not; pass the model whose handle AdamW was made with"),
              std::string::npos);
  });
}

// Rank 1's alone; also where rank 0, whose optimizer is whole, says what is loaded.
TEST(RefusedStateTest, StatesOfAFailedStepCannotStay) {
  for (const StateDictOptions options :
       {StateDictOptions{.full_state_dict = true, .strict = false},
        StateDictOptions{.full_state_dict = true, .strict = false, .broadcast_from_rank0 = true}}) {
    run_ranks(2, [options](Rank& rank) {
      Stateful setup = make_stateful(rank);
      set_model_state_dict(setup.root, whole_dict());
      AdamW optimizer(setup.root, {});
      loss(setup, 0, rank.rank).backward();
      optimizer.step();
      OptimizerStateDict dict = get_optimizer_state_dict(setup.root, optimizer, kWhole);
      std::erase(dict.param_groups[0].params, "toy.gain");  // its state stays
      dict.param_groups[0].options["lr"] = 0.5;
      for (const auto& state : dict.state["toy.block0.down"]) {
        std::get<at::Tensor>(state.value()).add_(1);
      }
      if (rank.rank == 1) {  // whose second moments cannot be written
        for (const LocalShard& part : optimizer.exp_avg_sq()) {
          part.local.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
        }
        EXPECT_THROW(optimizer.step(), c10::Error);
      }
      const auto moments = [&optimizer] {
        std::vector<at::Tensor> copies;
        for (const LocalShard& part : optimizer.exp_avg()) {
          if (part.fqn == "toy.block0.down") {
            copies.push_back(part.local.clone());
          }
        }
        return copies.at(0);
      };
      const at::Tensor before = moments();
      const std::string said =
          refusal([&] { set_optimizer_state_dict(setup.root, optimizer, dict, options); });
      EXPECT_NE(said.find("toy.gain, which the dict has not, cannot stay: "), std::string::npos)
          << said;
      EXPECT_NE(said.find("a step has failed in the middle"), std::string::npos) << said;
      EXPECT_EQ(said.find("rank 1: ") != std::string::npos, rank.rank == 0) << said;
      EXPECT_TRUE(at::equal(moments(), before));
      EXPECT_EQ(optimizer.options().lr, AdamWOptions().lr);
    });
  }
}

TEST(RefusedStateTest, RanksThatReadOtherOptionsAreRefused) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    AdamW optimizer(setup.root, {});
    OptimizerStateDict dict = get_optimizer_state_dict(setup.root, optimizer, kWhole);
    dict.param_groups[0].options["lr"] = 0.5 + static_cast<double>(rank.rank);
    const std::string said =
        refusal([&] { set_optimizer_state_dict(setup.root, optimizer, dict); });
    EXPECT_NE(said.find("ranks 0 and 1 differ"), std::string::npos) << said;
    EXPECT_EQ(optimizer.options().lr, AdamWOptions().lr);
  });
}

}  // namespace
}  // namespace fsdp::testing
