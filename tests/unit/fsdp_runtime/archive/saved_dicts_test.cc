#include "fsdp_runtime/archive/saved_dicts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/pickle_writer.h"

namespace fsdp::archive {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TensorText {
  std::string function = "_rebuild_tensor_v2";
  std::string storage = "FloatStorage";
  int64_t offset = 0;
  std::vector<int64_t> sizes = {2, 3};
  std::vector<int64_t> strides = {3, 1};
  bool has_flags = false;
};

void write_integers(PickleWriter& out, const std::vector<int64_t>& values) {
  out.mark();
  for (const int64_t value : values) {
    out.integer(value);
  }
  out.tuple();
}

/// As torch.save does.
void write_tensor(PickleWriter& out, const TensorText& tensor = {}) {
  const bool is_newer = tensor.function == "_rebuild_tensor_v3";
  out.global("torch._utils", tensor.function);
  out.mark();
  out.mark();
  out.string("storage");
  out.global(is_newer ? "torch.storage" : "torch", is_newer ? "UntypedStorage" : tensor.storage);
  out.string("7");
  out.string("cpu");
  out.integer(6);
  out.tuple();
  out.persistent_id();
  out.integer(tensor.offset);
  write_integers(out, tensor.sizes);
  write_integers(out, tensor.strides);
  out.boolean(false);
  out.global("collections", "OrderedDict");
  out.empty_tuple();
  out.reduce();
  if (is_newer) {
    out.global("torch", tensor.storage);
  }
  if (tensor.has_flags) {
    out.empty_dict();
    out.mark();
    out.string("conj");
    out.boolean(true);
    out.set_items();
  }
  out.tuple();
  out.reduce();
}

std::string pickle_of(const std::function<void(PickleWriter&)>& write) {
  PickleWriter out;
  write(out);
  return out.finish();
}

/// {"w": what `write` writes}.
std::string model_of(const std::function<void(PickleWriter&)>& write) {
  return pickle_of([&](PickleWriter& out) {
    out.empty_dict();
    out.mark();
    out.string("w");
    write(out);
    out.set_items();
  });
}

std::string model_of(const TensorText& tensor) {
  return model_of([&](PickleWriter& out) { write_tensor(out, tensor); });
}

template <class Read>
std::string refusal_of(Read read) {
  try {
    read();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string model_refusal(const std::string& pickle) {
  return refusal_of([&] { read_saved_model(pickle, "model.pt"); });
}

std::string optimizer_refusal(const std::string& pickle) {
  return refusal_of([&] { read_saved_optimizer(pickle, "optimizer.pt"); });
}

TEST(SavedDictsTest, TensorsAreDescribed) {
  const SavedModel model = read_saved_model(
      model_of({.storage = "BFloat16Storage", .offset = 5, .sizes = {3, 2}, .strides = {1, 3}}),
      "model.pt");
  ASSERT_EQ(model.size(), 1U);
  EXPECT_EQ(model[0].first, "w");
  EXPECT_EQ(model[0].second.type->name, "bfloat16");
  EXPECT_EQ(model[0].second.record, "data/7");
  EXPECT_THAT(model[0].second.sizes, ElementsAre(3, 2));
  EXPECT_THAT(model[0].second.strides, ElementsAre(1, 3));
  EXPECT_EQ(model[0].second.reach(), 5 + 6);
}

TEST(SavedDictsTest, TypesWithoutAStorageOfTheirOwnAreRead) {
  const SavedModel model = read_saved_model(
      model_of({.function = "_rebuild_tensor_v3", .storage = "float8_e4m3fn"}), "model.pt");
  EXPECT_EQ(model.at(0).second.type->bytes, 1);
  EXPECT_EQ(model.at(0).second.type->name, "float8_e4m3fn");
}

TEST(SavedDictsTest, AParameterIsItsTensor) {
  const std::string pickle = model_of([](PickleWriter& out) {
    out.global("torch._utils", "_rebuild_parameter");
    out.mark();
    write_tensor(out);
    out.boolean(true);
    out.empty_dict();
    out.tuple();
    out.reduce();
  });
  EXPECT_EQ(read_saved_model(pickle, "it"), read_saved_model(model_of(TensorText()), "it"));
}

TEST(SavedDictsTest, TensorsThatCannotBeAreRefused) {
  const auto expect_refused = [](const TensorText& tensor, const std::string& words) {
    EXPECT_THAT(model_refusal(model_of(tensor)), HasSubstr(words));
  };
  expect_refused({.function = "_rebuild_sparse_tensor"}, "torch._utils._rebuild_sparse_tensor");
  expect_refused({.storage = "QInt8Storage"}, "torch.QInt8Storage");
  expect_refused({.offset = -1}, "model.pt: \"w\" has a damaged tensor description");
  expect_refused({.sizes = {2, -3}}, "damaged tensor description");
  expect_refused({.sizes = {2}}, "damaged tensor description");
  expect_refused({.sizes = {int64_t{1} << 40, int64_t{1} << 40}, .strides = {0, 0}},
                 "damaged tensor description");
  expect_refused({.sizes = {2, 3}, .strides = {int64_t{1} << 62, 1}}, "damaged tensor description");
  expect_refused({.sizes = std::vector<int64_t>(65, 1), .strides = std::vector<int64_t>(65, 1)},
                 "damaged tensor description");
  expect_refused({.has_flags = true}, "resolve_conj");
}

TEST(SavedDictsTest, ATensorMustLieWithinItsRecord) {
  const SavedTensor tensor =
      read_saved_model(model_of({.offset = 4, .strides = {3, 1}}), "it").at(0).second;
  EXPECT_EQ(refusal_of([&] { check_within(tensor, 40, "w"); }), "");
  EXPECT_THAT(refusal_of([&] { check_within(tensor, 39, "w"); }),
              HasSubstr("w does not lie within data/7, which has 39 bytes"));
  const SavedTensor empty =
      read_saved_model(model_of({.offset = 4, .sizes = {0, 3}}), "it").at(0).second;
  EXPECT_EQ(refusal_of([&] { check_within(empty, 16, "w"); }), "");
  EXPECT_NE(refusal_of([&] { check_within(empty, 15, "w"); }), "");
}

TEST(SavedDictsTest, WhatIsNoDictOfTensorsIsNamed) {
  EXPECT_THAT(model_refusal(pickle_of([](PickleWriter& out) { out.empty_list(); })),
              HasSubstr("model.pt: its object is a list, a dict expected"));
  EXPECT_THAT(model_refusal(model_of([](PickleWriter& out) { out.empty_dict(); })),
              HasSubstr("its \"w\" is a dict, a tensor expected"));
}

TEST(SavedDictsTest, AKeyThatIsThereTwiceIsRefused) {
  const std::string pickle = pickle_of([](PickleWriter& out) {
    out.empty_dict();
    out.mark();
    for (int i = 0; i < 2; ++i) {
      out.string("w");
      write_tensor(out);
    }
    out.set_items();
  });
  EXPECT_THAT(model_refusal(pickle), HasSubstr("has the key \"w\" twice"));
}

std::string optimizer_of(const std::function<void(PickleWriter&)>& write_groups) {
  return pickle_of([&](PickleWriter& out) {
    out.empty_dict();
    out.mark();
    out.string("state");
    out.empty_dict();
    out.mark();
    out.string("weight");
    out.empty_dict();
    out.mark();
    out.string("step");
    out.integer(3);
    out.string("exp_avg");
    write_tensor(out);
    out.string("max_exp_avg_sq");
    out.none();
    out.set_items();
    out.set_items();
    out.string("param_groups");
    write_groups(out);
    out.set_items();
  });
}

void write_group(PickleWriter& out, const std::function<void(PickleWriter&)>& write_params) {
  out.empty_dict();
  out.mark();
  out.string("lr");
  out.real(0.5);
  out.string("betas");
  out.mark();
  out.real(0.9);
  out.integer(1);
  out.tuple();
  out.string("fused");
  out.none();
  out.string("params");
  write_params(out);
  out.set_items();
}

void write_names(PickleWriter& out) {
  out.empty_list();
  out.mark();
  out.string("weight");
  out.appends();
}

TEST(SavedDictsTest, OptimizersAreReadWithStatesAndOptions) {
  const SavedOptimizer optimizer = read_saved_optimizer(optimizer_of([](PickleWriter& out) {
                                                          out.empty_list();
                                                          out.mark();
                                                          write_group(out, write_names);
                                                          out.appends();
                                                        }),
                                                        "it");
  ASSERT_EQ(optimizer.state.size(), 1U);
  const auto& [name, states] = optimizer.state[0];
  EXPECT_EQ(name, "weight");
  ASSERT_EQ(states.size(), 3U);
  EXPECT_EQ(std::get<double>(states[0].second), 3);
  EXPECT_EQ(std::get<SavedTensor>(states[1].second).record, "data/7");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(states[2].second));
  ASSERT_EQ(optimizer.groups.size(), 1U);
  EXPECT_THAT(optimizer.groups[0].params, ElementsAre("weight"));
  EXPECT_EQ(std::get<double>(optimizer.groups[0].options.at("lr")), 0.5);
  EXPECT_THAT(std::get<std::vector<double>>(optimizer.groups[0].options.at("betas")),
              ElementsAre(0.9, 1.0));
}

TEST(SavedDictsTest, NumbersForParametersAreExplained) {
  const std::string by_number = pickle_of([](PickleWriter& out) {
    out.empty_dict();
    out.mark();
    out.string("state");
    out.empty_dict();
    out.mark();
    out.integer(0);
    out.empty_dict();
    out.set_items();
    out.set_items();
  });
  EXPECT_THAT(optimizer_refusal(by_number), HasSubstr("get_optimizer_state_dict"));
  const std::string in_group = optimizer_of([](PickleWriter& out) {
    out.empty_list();
    out.mark();
    write_group(out, [](PickleWriter& params) {
      params.empty_list();
      params.mark();
      params.integer(0);
      params.appends();
    });
    out.appends();
  });
  EXPECT_THAT(optimizer_refusal(in_group), HasSubstr("get_optimizer_state_dict"));
  EXPECT_THAT(optimizer_refusal(model_of(TensorText())), HasSubstr("no \"state\""));
  EXPECT_THAT(optimizer_refusal(optimizer_of([](PickleWriter& out) { out.empty_dict(); })),
              HasSubstr("\"param_groups\" is a dict, a list expected"));
}

// One group with a thousand names, referred to a hundred thousand times: 300 KB that would be
// gigabytes.
TEST(SavedDictsTest, WhatGrowsByReferencesIsRefused) {
  const std::string pickle = optimizer_of([](PickleWriter& out) {
    out.empty_list();
    out.mark();
    write_group(out, [](PickleWriter& params) {
      params.empty_list();
      params.mark();
      for (int i = 0; i < 1000; ++i) {
        params.string("name" + std::to_string(i));
      }
      params.appends();
    });
    out.appends();
  });
  // BINPUT after the group, before it is appended; then BINGET and APPEND again and again.
  const size_t end = pickle.rfind("ueu.");
  ASSERT_NE(end, std::string::npos);
  std::string again =
      "u"
      "q" +
      std::string(1, '\0');
  for (int i = 0; i < 100000; ++i) {
    again += "h" + std::string(1, '\0');
  }
  const std::string grown = pickle.substr(0, end) + again + pickle.substr(end + 1);
  EXPECT_THAT(optimizer_refusal(grown), HasSubstr("refers to the same objects too often"));
}

}  // namespace
}  // namespace fsdp::archive
