// State dicts of optimizers: training goes on from them as if it had not been interrupted.

#include <fsdp/muon.h>
#include <fsdp/sgd.h>
#include <gmock/gmock.h>
#include <torch/optim.h>

#include <variant>

#include "tests/unit/fsdp_runtime/state_dict/stateful_model.h"

namespace fsdp::testing {
namespace {

/// An optimizer of either library.
struct AnyOptimizer {
  std::variant<std::shared_ptr<AdamW>, std::shared_ptr<fsdp::SGD>, std::shared_ptr<Muon>,
               std::shared_ptr<torch::optim::Optimizer>>
      any;

  OptimizerRef ref() const {
    return std::visit([](const auto& one) { return OptimizerRef(*one); }, any);
  }
  void step() const {
    std::visit([](const auto& one) { one->step(); }, any);
  }
  void zero_grad() const {
    std::visit([](const auto& one) { one->zero_grad(); }, any);
  }
};

struct OptimizerCase {
  std::string name;
  std::function<AnyOptimizer(const FSDPModule& root, double lr)> make;
  std::vector<std::string> states;  // of a parameter that is used
};

template <class O, class Options>
std::function<AnyOptimizer(const FSDPModule&, double)> torchs(Options options) {
  return [options](const FSDPModule& root, double lr) {
    Options with_lr = options;
    with_lr.set_lr(lr);
    return AnyOptimizer{
        std::shared_ptr<torch::optim::Optimizer>(new O(root.parameters(), with_lr))};
  };
}

AnyOptimizer ours_in_groups(const FSDPModule& root, double lr) {
  AdamWParamGroup wide{.params = {}, .weight_decay = 0.3};
  AdamWParamGroup rest{.params = {}, .lr = lr / 2, .beta1 = 0.8};
  for (const LocalShard& shard : root.sharded_parameters()) {
    (shard.fqn.find("down") != std::string::npos ? wide : rest).params.push_back(shard.fqn);
  }
  return {std::make_shared<AdamW>(root, std::vector<AdamWParamGroup>{wide, rest},
                                  AdamWOptions{.lr = lr})};
}

AnyOptimizer in_two_groups(const FSDPModule& root, double lr) {
  using Options = torch::optim::AdamWOptions;
  std::vector<at::Tensor> wide;
  std::vector<at::Tensor> rest;
  for (const auto& [name, tensor] : root.named_parameters()) {
    (name.find("down") != std::string::npos ? wide : rest).push_back(tensor);
  }
  return {std::shared_ptr<torch::optim::Optimizer>(
      new torch::optim::AdamW(std::vector<torch::optim::OptimizerParamGroup>{
          {wide, std::make_unique<Options>(Options(lr).weight_decay(0.1))},
          {rest, std::make_unique<Options>(Options(lr / 2).betas({0.8, 0.95}))}}))};
}

std::vector<OptimizerCase> optimizer_cases() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  return {{"ours",
           [](const FSDPModule& root, double lr) {
             return AnyOptimizer{std::make_shared<fsdp::AdamW>(root, fsdp::AdamWOptions{.lr = lr})};
           },
           {"step", "exp_avg", "exp_avg_sq"}},
          {"ours_in_groups", ours_in_groups, {"step", "exp_avg", "exp_avg_sq"}},
          {"our_sgd",
           [](const FSDPModule& root, double lr) {
             return AnyOptimizer{std::make_shared<fsdp::SGD>(
                 root, fsdp::SGDOptions{.lr = lr, .momentum = 0.9, .dampening = 0.5})};
           },
           {"momentum_buffer"}},
          {"sgd", torchs<torch::optim::SGD>(torch::optim::SGDOptions(0.1)), {}},
          {"momentum",
           torchs<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)),
           {"momentum_buffer"}},
          {"adam", torchs<Adam>(AdamOptions()), {"step", "exp_avg", "exp_avg_sq"}},
          {"adamw",
           torchs<torch::optim::AdamW>(torch::optim::AdamWOptions().amsgrad(true)),
           {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
          {"groups", in_two_groups, {"step", "exp_avg", "exp_avg_sq"}},
          {"rmsprop",
           torchs<RMSprop>(RMSpropOptions().momentum(0.5).centered(true)),
           {"step", "square_avg", "momentum_buffer", "grad_avg"}},
          {"adagrad", torchs<Adagrad>(AdagradOptions()), {"step", "sum"}}};
}

class OptimizerStateTest : public ::testing::TestWithParam<std::tuple<int64_t, OptimizerCase>> {
 protected:
  static const OptimizerCase& optimizer() { return std::get<1>(GetParam()); }
  static int64_t ranks() { return std::get<0>(GetParam()); }
  /// -2: hybrid sharding, two by two.
  static void run(const std::function<void(Rank&)>& body) {
    run_ranks(ranks() == -2 ? 4 : ranks(), body);
  }
  static Stateful make_model(const Rank& rank) {
    Stateful setup = make_stateful(rank, {}, ranks() == -2 ? 2 : 1);
    set_model_state_dict(setup.root, whole_dict());
    return setup;
  }
  static void train(const Rank& rank, const Stateful& setup, const AnyOptimizer& optimizer,
                    int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      loss(setup, step, rank.rank).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, OptimizerStateTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, -2),
                                            ::testing::ValuesIn(optimizer_cases())),
                         [](const auto& info) {
                           const int64_t ranks = std::get<0>(info.param);
                           return std::get<1>(info.param).name +
                                  (ranks == -2 ? "_2x2" : "_" + std::to_string(ranks));
                         });

TEST_P(OptimizerStateTest, HasPythonsNamesForParametersThatWereUpdated) {
  run([](Rank& rank) {
    const Stateful setup = make_model(rank);
    const AnyOptimizer made = optimizer().make(setup.root, 1e-2);
    train(rank, setup, made, 0, 2);
    const OptimizerStateDict dict = get_optimizer_state_dict(setup.root, made.ref(), kWhole);
    std::vector<std::string> listed;
    for (const OptimizerParamGroup& group : dict.param_groups) {
      listed.insert(listed.end(), group.params.begin(), group.params.end());
      EXPECT_TRUE(std::holds_alternative<double>(group.options.at("lr")));
    }
    for (const char* name : {"toy.embedding", "norm.weight", "toy.block2.spare"}) {
      EXPECT_EQ(std::count(listed.begin(), listed.end(), name), 1) << name;
    }
    if (optimizer().states.empty()) {
      EXPECT_TRUE(dict.state.is_empty());
      return;
    }
    EXPECT_EQ(keys_of(dict.state["toy.block1.down"]), optimizer().states);
    EXPECT_FALSE(dict.state.contains("toy.head"));
    EXPECT_FALSE(dict.state.contains("anchor") && optimizer().name != "adagrad") << "is frozen";
    if (optimizer().name != "adagrad") {
      EXPECT_FALSE(dict.state.contains("toy.block0.spare")) << "no step has used it";
    }
    for (const auto& state : dict.state["toy.block1.down"]) {
      const auto& value = std::get<at::Tensor>(state.value());
      if (state.key() == "step") {
        EXPECT_TRUE(at::equal(value, at::full({}, 2.0F)));
      } else {
        EXPECT_EQ(value.sizes(), at::IntArrayRef({15, 33})) << state.key();
      }
    }
  });
}

TEST_P(OptimizerStateTest, TrainingGoesOnBitEqualInANewModel) {
  run([](Rank& rank) {
    const Stateful setup = make_model(rank);
    const AnyOptimizer made = optimizer().make(setup.root, 1e-2);
    train(rank, setup, made, 0, 2);
    const auto [shards, shard_states] =
        get_state_dict(setup.root, made.ref(), {.cpu_offload = true});
    const auto [whole, whole_states] = get_state_dict(setup.root, made.ref(), kWhole);
    const auto [sent, sent_states] = get_state_dict(setup.root, made.ref(), kWholeOnRank0);
    EXPECT_EQ(sent.is_empty(), rank.rank != 0);
    EXPECT_EQ(sent_states.param_groups.empty(), rank.rank != 0);
    train(rank, setup, made, 2, 4);
    const ModelStateDict expected = get_model_state_dict(setup.root);
    const OptimizerStateDict expected_states = get_optimizer_state_dict(setup.root, made.ref());

    const auto expect_goes_on = [&](const ModelStateDict& model, const OptimizerStateDict& states,
                                    const StateDictOptions& options) {
      const Stateful again = make_model(rank);
      const AnyOptimizer other = optimizer().make(again.root, 0.5);
      train(rank, again, other, 7, 8);  // what it has of its own is replaced
      EXPECT_EQ(set_state_dict(again.root, other.ref(), model, states, options),
                IncompatibleKeys());
      train(rank, again, other, 2, 4);
      expect_equal(get_model_state_dict(again.root), expected);
      expect_equal(get_optimizer_state_dict(again.root, other.ref()), expected_states);
    };
    expect_goes_on(shards, shard_states, {});
    expect_goes_on(whole, whole_states, kWhole);
    expect_goes_on(sent, sent_states, kFromRank0);
  });
}

TEST_P(OptimizerStateTest, IsLoadedByAnotherNumberOfRanks) {
  ModelStateDict model;
  OptimizerStateDict states;
  run([&](Rank& rank) {
    const Stateful setup = make_model(rank);
    const AnyOptimizer made = optimizer().make(setup.root, 1e-2);
    train(rank, setup, made, 0, 2);
    auto [whole, whole_states] = get_state_dict(setup.root, made.ref(), kWholeOnRank0);
    if (rank.rank == 0) {
      model = std::move(whole);
      states = std::move(whole_states);
    }
  });
  const int64_t others = ranks() == 2 ? 3 : 2;
  run_ranks(others, [&](Rank& rank) {
    const Stateful setup = make_stateful(rank);
    const AnyOptimizer made = optimizer().make(setup.root, 0.5);
    set_state_dict(setup.root, made.ref(), model, states, kWhole);
    expect_equal(get_optimizer_state_dict(setup.root, made.ref(), kWhole), states);
    expect_equal(get_model_state_dict(setup.root, kWhole), model);
    train(rank, setup, made, 2, 3);
  });
}

TEST_P(OptimizerStateTest, EachGroupIsGatheredOncePerState) {
  run([](Rank& rank) {
    const Stateful setup = make_model(rank);
    if (ranks() == -2) {
      return;  // rank.comm is not the group of a row
    }
    const AnyOptimizer made = optimizer().make(setup.root, 1e-2);
    train(rank, setup, made, 0, 1);
    const auto names = static_cast<int64_t>(optimizer().states.size());
    const bool counts = names > 0 && optimizer().states.front() == "step";
    rank.comm->clear();
    get_optimizer_state_dict(setup.root, made.ref(), kWhole);
    // Of trainable parameters there are five groups; Adagrad has states of frozen ones too.
    const int64_t groups = optimizer().name == "adagrad" ? 9 : 5;
    EXPECT_EQ(std::ssize(rank.comm->records()), 1 + groups * (names - (counts ? 1 : 0)));
  });
}

/// `change(dict)` is refused on both ranks, though only rank 1 has it, with `words`, and neither
/// model nor optimizer has changed.
void expect_states_refused(const OptimizerCase& optimizer,
                           const std::function<void(OptimizerStateDict&)>& change,
                           const std::string& words) {
  run_ranks(2, [&](Rank& rank) {
    Stateful setup = make_stateful(rank);
    set_model_state_dict(setup.root, whole_dict());
    const AnyOptimizer made = optimizer.make(setup.root, 1e-2);
    loss(setup, 0, rank.rank).backward();
    made.step();
    made.zero_grad();
    const ModelStateDict model = get_model_state_dict(setup.root, kWhole);
    OptimizerStateDict states = get_optimizer_state_dict(setup.root, made.ref(), kWhole);
    loss(setup, 1, rank.rank).backward();
    made.step();
    const StateDictOptions copies{.cpu_offload = true};
    const auto [model_before, states_before] = get_state_dict(setup.root, made.ref(), copies);
    if (rank.rank == 1) {
      change(states);
    }
    const std::string said =
        refusal([&] { set_state_dict(setup.root, made.ref(), model, states, kWhole); });
    EXPECT_NE(said.find(words), std::string::npos) << words << " is not in: " << said;
    EXPECT_EQ(said.find("rank 1: ") != std::string::npos, rank.rank == 0) << said;
    expect_equal(get_model_state_dict(setup.root), model_before);
    expect_equal(get_optimizer_state_dict(setup.root, made.ref()), states_before);
  });
}

TEST(MuonStateTest, OptionsAndMomentaGoToAnotherNumberOfRanks) {
  const auto make = [](const FSDPModule& root, double lr) {
    MuonParamGroup group{{}, {.lr = lr, .adjust_lr_fn = MuonRate::kMatchRmsAdamW}};
    for (const LocalShard& shard : root.sharded_parameters()) {
      if (shard.fqn.ends_with("up") || shard.fqn.ends_with("down")) {
        group.params.push_back(shard.fqn);
      }
    }
    return std::make_shared<Muon>(root, std::vector<MuonParamGroup>{group});
  };
  OptimizerStateDict states;
  run_ranks(2, [&](Rank& rank) {
    const Stateful setup = make_stateful(rank);
    set_model_state_dict(setup.root, whole_dict());
    const std::shared_ptr<Muon> muon = make(setup.root, 1e-2);
    loss(setup, 0, rank.rank).backward();
    muon->step();
    OptimizerStateDict whole = get_optimizer_state_dict(setup.root, *muon, kWholeOnRank0);
    if (rank.rank == 0) {
      states = std::move(whole);
    }
  });
  const OptimizerParamGroup& group = states.param_groups.at(0);
  EXPECT_EQ(std::get<std::string>(group.options.at("adjust_lr_fn")), "match_rms_adamw");
  EXPECT_EQ(std::get<int64_t>(group.options.at("ns_steps")), 5);
  EXPECT_EQ(std::get<std::vector<double>>(group.options.at("ns_coefficients")).size(), 3u);
  EXPECT_EQ(keys_of(states.state["toy.block1.down"]), std::vector<std::string>{"momentum_buffer"});
  run_ranks(3, [&](Rank& rank) {
    const Stateful setup = make_stateful(rank);
    const std::shared_ptr<Muon> muon = make(setup.root, 0.5);
    set_optimizer_state_dict(setup.root, *muon, states, kWhole);
    EXPECT_EQ(muon->options().lr, 1e-2);
    expect_equal(get_optimizer_state_dict(setup.root, *muon, kWhole), states);
  });
}

// As PyTorch's: options and buffers are the dict's, and so is a group that has had none.
TEST(SGDStateTest, OneWithoutMomentumTakesThatOfADictAndTheOtherWayAround) {
  using OurSGD = fsdp::SGD;
  const fsdp::SGDOptions with{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, without{.lr = 0.5};
  run_ranks(2, [&](Rank& rank) {
    const auto make_setup = [&rank] {
      const Stateful setup = make_stateful(rank);
      set_model_state_dict(setup.root, whole_dict());
      return setup;
    };
    const auto train = [&rank](const Stateful& setup, OurSGD& optimizer, int64_t step) {
      loss(setup, step, rank.rank).backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    for (const bool gets_momentum : {true, false}) {
      const Stateful setup = make_setup(), again = make_setup();
      OurSGD made(setup.root, gets_momentum ? with : without);
      OurSGD other(again.root, gets_momentum ? without : with);
      train(setup, made, 0);
      train(again, other, 7);
      const auto [model, states] = get_state_dict(setup.root, made, {.cpu_offload = true});
      EXPECT_EQ(set_state_dict(again.root, other, model, states, {}), IncompatibleKeys());
      EXPECT_EQ(other.options().momentum, gets_momentum ? 0.9 : 0.0);
      train(setup, made, 1);
      train(again, other, 1);
      expect_equal(get_model_state_dict(again.root), get_model_state_dict(setup.root));
      expect_equal(get_optimizer_state_dict(again.root, other),
                   get_optimizer_state_dict(setup.root, made));
    }
  });
}

OptimizerCase case_named(const std::string& name) {
  for (const OptimizerCase& each : optimizer_cases()) {
    if (each.name == name) {
      return each;
    }
  }
  throw std::invalid_argument(name);
}

struct Refusal {
  std::string name;
  std::string optimizer;
  std::function<void(OptimizerStateDict&)> change;
  std::string words;
};

class RefusedOptimizerStateTest : public ::testing::TestWithParam<Refusal> {};

INSTANTIATE_TEST_SUITE_P(
    All, RefusedOptimizerStateTest,
    ::testing::Values(
        Refusal{
            "ParameterInNoGroup", "adam",
            [](OptimizerStateDict& dict) { std::erase(dict.param_groups[0].params, "toy.gain"); },
            "no group of the optimizer's dict has parameter(s): \"toy.gain\""},
        Refusal{
            "StateOfNoParameter", "ours",
            [](OptimizerStateDict& dict) { dict.state.insert("stranger", dict.state["toy.gain"]); },
            "the optimizer has no parameter(s): \"stranger\""},
        Refusal{"StateThatIsNotKnown", "momentum",
                [](OptimizerStateDict& dict) {
                  dict.state["toy.gain"].insert("exp_avg", at::zeros({15}));
                },
                "toy.gain: a torch::optim::SGD has no state exp_avg"},
        Refusal{"StateThatIsNeeded", "adamw",
                [](OptimizerStateDict& dict) { dict.state["toy.gain"].erase("max_exp_avg_sq"); },
                "toy.gain: the dict has no max_exp_avg_sq of it"},
        Refusal{"NoStep", "ours",
                [](OptimizerStateDict& dict) { dict.state["toy.gain"].erase("step"); },
                "toy.gain: the dict has no step of it"},
        Refusal{
            "HalfAStep", "rmsprop",
            [](OptimizerStateDict& dict) { dict.state["toy.gain"]["step"] = at::full({}, 1.5); },
            "toy.gain: its step is not one whole number"},
        Refusal{"Shape", "adagrad",
                [](OptimizerStateDict& dict) { dict.state["toy.gain"]["sum"] = at::zeros({14}); },
                "size mismatch for toy.gain.sum: the dict has shape [14], expected [15]"},
        Refusal{"Dtype", "ours",
                [](OptimizerStateDict& dict) {
                  dict.state["toy.gain"]["exp_avg"] = at::zeros({15}, at::kDouble);
                },
                "dtype mismatch for toy.gain.exp_avg: the dict has Double, expected Float"},
        Refusal{"NoData", "adam",
                [](OptimizerStateDict& dict) {
                  dict.state["toy.gain"]["exp_avg"] = at::zeros({15}, at::kFloat).to(at::kMeta);
                },
                "toy.gain.exp_avg: the tensor given is on the meta device and has no data"},
        Refusal{"Groups", "adam",
                [](OptimizerStateDict& dict) {
                  dict.param_groups.push_back(dict.param_groups[0]);
                  dict.param_groups[1].params = {"toy.gain"};
                  std::erase(dict.param_groups[0].params, "toy.gain");
                },
                "group 0 of the optimizer has parameters of several groups of the dict"},
        Refusal{"OptionThatIsNotKnown", "adam",
                [](OptimizerStateDict& dict) { dict.param_groups[0].options["speed"] = 1.0; },
                "group 0 of the torch::optim::Adam: option speed is not known to it"},
        Refusal{"OptionOfPython", "adam",
                [](OptimizerStateDict& dict) { dict.param_groups[0].options["maximize"] = true; },
                "option maximize: LibTorch has only the default of Python"},
        Refusal{"OptionOutOfRange", "momentum",
                [](OptimizerStateDict& dict) { dict.param_groups[0].options["lr"] = -1.0; },
                "option lr: a number that is at least 0 expected, got -1"},
        Refusal{"OptionOfAnotherType", "groups",
                [](OptimizerStateDict& dict) { dict.param_groups[1].options["betas"] = 0.9; },
                "group 1 of the torch::optim::AdamW: option betas: two numbers expected"}),
    [](const auto& info) { return info.param.name; });

TEST_P(RefusedOptimizerStateTest, NothingOfItIsLoaded) {
  expect_states_refused(case_named(GetParam().optimizer), GetParam().change, GetParam().words);
}

TEST(OptimizerStateDictTest, WithoutStrictWhatIsNotThereStays) {
  for (const char* name : {"ours", "adam", "adagrad"}) {
    run_ranks(2, [name](Rank& rank) {
      Stateful setup = make_stateful(rank);
      set_model_state_dict(setup.root, whole_dict());
      const AnyOptimizer made = case_named(name).make(setup.root, 1e-2);
      loss(setup, 0, rank.rank).backward();
      made.step();
      const StateDictOptions copies{.cpu_offload = true};
      OptimizerStateDict dict = get_optimizer_state_dict(setup.root, made.ref(), copies);
      made.step();
      const OptimizerStateDict later = get_optimizer_state_dict(setup.root, made.ref(), copies);
      std::erase(dict.param_groups[0].params, "toy.gain");  // stays
      dict.state.erase("norm.weight");                      // is as if it had never been updated
      dict.state.insert("stranger", dict.state["toy.gain"]);
      dict.param_groups[0].options["speed"] = 1.0;
      set_optimizer_state_dict(setup.root, made.ref(), dict, {.strict = false});
      const OptimizerStateDict now = get_optimizer_state_dict(setup.root, made.ref(), copies);
      for (const auto& state : now.state["toy.gain"]) {
        expect_equal(state.value(), later.state["toy.gain"][state.key()], state.key());
      }
      for (const auto& state : now.state["toy.embedding"]) {
        expect_equal(state.value(), dict.state["toy.embedding"][state.key()], state.key());
      }
      if (std::string(name) == "adagrad") {  // whose state is there before the first step
        EXPECT_EQ(std::get<at::Tensor>(now.state["norm.weight"]["step"]).item<float>(), 0);
      } else {
        EXPECT_FALSE(now.state.contains("norm.weight"));
      }
      made.step();
    });
  }
}

TEST(OptimizerStateDictTest, RanksThatHaveDoneDifferentStepsAreToldAndMendedByLoading) {
  run_ranks(2, [](Rank& rank) {
    Stateful setup = make_stateful(rank);
    set_model_state_dict(setup.root, whole_dict());
    AdamW optimizer(setup.root, {});
    loss(setup, 0, rank.rank).backward();
    optimizer.step();
    const OptimizerStateDict dict = get_optimizer_state_dict(setup.root, optimizer, kWhole);
    optimizer.set_parameter_steps(
        std::vector<int64_t>(setup.root.parameters().size(), 1 + rank.rank));
    const std::string said =
        refusal([&] { get_optimizer_state_dict(setup.root, optimizer, kWhole); });
    EXPECT_NE(said.find("ranks 0 and 1 differ"), std::string::npos) << said;
    set_optimizer_state_dict(setup.root, optimizer, dict);
    expect_equal(get_optimizer_state_dict(setup.root, optimizer, kWhole), dict);
  });
}

}  // namespace
}  // namespace fsdp::testing
