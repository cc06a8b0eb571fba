#pragma once

// A model that has everything a state dict must know: tied and frozen parameters, buffers in the
// root and in a module that is no unit, parameters that no step uses, a module with two names.

#include <fsdp/optim.h>
#include <fsdp/state_dict.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {

inline constexpr StateDictOptions kWhole{.full_state_dict = true};
inline constexpr StateDictOptions kWholeOnRank0{.full_state_dict = true, .cpu_offload = true};
inline constexpr StateDictOptions kFromRank0{.full_state_dict = true, .broadcast_from_rank0 = true};

struct ScaledNorm : torch::nn::Module {
  ScaledNorm() {
    // Registered before the parameter, and behind it in a state dict.
    shift = register_buffer("shift", at::full({15}, 0.25));
    weight = register_parameter("weight", at::zeros({15}));
  }
  at::Tensor shift, weight;
};

struct StatefulModel : torch::nn::Module {
  explicit StatefulModel(bool unmaterialized = false)
      : toy(std::make_shared<ToyModel>([&] {
          ToyConfig config;
          config.unmaterialized = unmaterialized;
          config.frozen_first_weight = true;
          return config;
        }())) {
    norm = std::make_shared<ScaledNorm>();
    register_module("toy", toy.ptr());
    register_module("norm", norm);
    register_module("norm_again", norm);
    count = register_buffer("count", at::full({}, 7, at::kLong));
    anchor = register_parameter("anchor", at::zeros({7, 5}), /*requires_grad=*/false);
  }

  at::Tensor forward(at::Tensor tokens) {
    return toy(tokens) * (norm->weight.sum() + norm->shift.sum()) + anchor.sum();
  }

  Unit<ToyModel> toy;
  std::shared_ptr<ScaledNorm> norm;
  at::Tensor count, anchor;
};

/// As Python's Module.state_dict() has them.
inline std::vector<std::string> names_of_stateful_model(bool with_frozen = true) {
  std::vector<std::string> names = {"anchor", "count", "toy.embedding", "toy.gain", "toy.head"};
  for (const char* block : {"toy.block0.", "toy.block1.", "toy.block2."}) {
    for (const char* name : {"up", "bias", "down", "spare"}) {
      names.push_back(std::string(block) + name);
    }
  }
  names.insert(names.end(), {"norm.weight", "norm.shift", "norm_again.weight", "norm_again.shift"});
  if (!with_frozen) {
    std::erase_if(names, [](const std::string& name) {
      return name == "anchor" || name.find(".up") != std::string::npos;
    });
  }
  return names;
}

struct Stateful {
  Unit<StatefulModel> model;
  FSDPModule root;
};

/// `replicas` > 1: hybrid sharding.
inline Stateful make_stateful(const Rank& rank, FullyShardOptions options = {},
                              int64_t replicas = 1, bool unmaterialized = false) {
  options.mesh = replicas > 1 ? mesh_of(rank.comm, replicas) : rank.mesh;
  Stateful setup{Unit<StatefulModel>(std::make_shared<StatefulModel>(unmaterialized)), {}};
  for (const Unit<ToyBlock>& block : setup.model->toy->blocks) {
    fully_shard(block.ptr(), options);
  }
  fully_shard(setup.model->toy.ptr(), options);
  setup.root = fully_shard(setup.model.ptr(), options);
  return setup;
}

inline at::Tensor loss(const Stateful& setup, int64_t step, int64_t rank) {
  const at::Tensor tokens = tokens_of(setup.model->toy->config, step, rank);
  return loss_of(setup.model(tokens), tokens);
}

/// A value for each name that depends on it alone; tied ones have that of their first name.
inline at::Tensor value_of(std::string name, at::IntArrayRef shape) {
  name = name == "toy.head" ? "toy.embedding" : name;
  if (name.rfind("norm_again.", 0) == 0) {
    name.replace(0, 11, "norm.");
  }
  if (name == "count") {
    return at::full({}, 41, at::kLong);
  }
  at::Tensor full = at::empty(shape);
  initialise(name, full);
  return full;
}

/// What such a model has in all, with the values of value_of().
inline ModelStateDict whole_dict() {
  const StatefulModel plain;
  std::map<std::string, at::Tensor> shapes;
  for (const auto& param : plain.named_parameters()) {
    shapes[param.key()] = param.value();
  }
  for (const auto& buffer : plain.named_buffers()) {
    shapes[buffer.key()] = buffer.value();
  }
  ModelStateDict dict;
  for (const std::string& name : names_of_stateful_model()) {
    std::string first = name == "toy.head" ? "toy.embedding" : name;
    first = first.rfind("norm_again.", 0) == 0 ? "norm." + first.substr(11) : first;
    dict.insert(name, value_of(name, shapes.at(first).sizes()));
  }
  return dict;
}

template <class Dict>
std::vector<std::string> keys_of(const Dict& dict) {
  std::vector<std::string> keys;
  for (const auto& entry : dict) {
    keys.push_back(entry.key());
  }
  return keys;
}

/// Bit by bit, shards as such.
inline void expect_equal(const StateValue& found, const StateValue& expected,
                         const std::string& key) {
  ASSERT_EQ(found.index(), expected.index()) << key;
  if (const auto* shard = std::get_if<LocalShard>(&found)) {
    const auto& other = std::get<LocalShard>(expected);
    EXPECT_EQ(shard->boxes, other.boxes) << key;
    EXPECT_EQ(shard->global_shape, other.global_shape) << key;
    EXPECT_TRUE(at::equal(shard->local, other.local)) << key;
    return;
  }
  const auto& tensor = std::get<at::Tensor>(found);
  const auto& other = std::get<at::Tensor>(expected);
  ASSERT_EQ(tensor.scalar_type(), other.scalar_type()) << key;
  EXPECT_TRUE(at::equal(tensor, other)) << key;
}

inline void expect_equal(const ModelStateDict& found, const ModelStateDict& expected) {
  ASSERT_EQ(keys_of(found), keys_of(expected));
  for (const auto& entry : found) {
    expect_equal(entry.value(), expected[entry.key()], entry.key());
  }
}

inline void expect_equal(const OptimizerStateDict& found, const OptimizerStateDict& expected) {
  EXPECT_EQ(found.param_groups, expected.param_groups);
  ASSERT_EQ(keys_of(found.state), keys_of(expected.state));
  for (const auto& entry : found.state) {
    ASSERT_EQ(keys_of(entry.value()), keys_of(expected.state[entry.key()])) << entry.key();
    for (const auto& state : entry.value()) {
      expect_equal(state.value(), expected.state[entry.key()][state.key()],
                   entry.key() + "." + state.key());
    }
  }
}

/// Another memory with the same values.
inline ModelStateDict copy_of(const ModelStateDict& dict) {
  ModelStateDict copy;
  for (const auto& entry : dict) {
    StateValue value = entry.value();
    if (auto* shard = std::get_if<LocalShard>(&value)) {
      shard->local = shard->local.clone();
    } else {
      value = std::get<at::Tensor>(value).clone();
    }
    copy.insert(entry.key(), std::move(value));
  }
  return copy;
}

/// The dict with another value under a name, or without it if that is undefined.
inline ModelStateDict with(const ModelStateDict& dict, const std::string& key, StateValue value) {
  ModelStateDict changed = dict;
  const auto* whole = std::get_if<at::Tensor>(&value);
  if (whole != nullptr && !whole->defined()) {
    changed.erase(key);
  } else if (changed.contains(key)) {
    changed[key] = std::move(value);
  } else {
    changed.insert(key, std::move(value));
  }
  return changed;
}

}  // namespace fsdp::testing
