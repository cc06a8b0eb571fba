#include "worker/weights/load_weights.h"
#include "fsdp_runtime/plan/box.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/json/strict_json.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/write_checkpoint.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun::worker {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

const char* NameOfDtype(at::ScalarType dtype) {
  return dtype == at::kFloat      ? "F32"
         : dtype == at::kBFloat16 ? "BF16"
         : dtype == at::kHalf     ? "F16"
                                  : "I64";
}

class LoadWeightsTest : public testing::Test {
 protected:
  LoadWeightsTest() {
    std::filesystem::create_directories(folder_);
    tensors_["model.embed_tokens.weight"] = Counting({7, 4}, 1);
    tensors_["model.layers.0.weight"] = Counting({3, 5}, 100);
    tensors_["model.norm.weight"] = Counting({5}, 200);
  }
  ~LoadWeightsTest() override { RemoveFolder(folder_); }

  /// Distinct small whole numbers, exact in every dtype.
  static at::Tensor Counting(const std::vector<int64_t>& shape, int64_t first) {
    const int64_t count = c10::multiply_integers(shape);
    return at::arange(first, first + count, at::TensorOptions(at::kFloat)).view(shape);
  }

  void Write(const Tensors& tensors, const std::string& name = "model.safetensors") {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::string data;
    for (const auto& [fqn, tensor] : tensors) {
      const size_t begin = data.size();
      data.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      header[fqn] = {{"dtype", NameOfDtype(tensor.scalar_type())},
                     {"shape", tensor.sizes().vec()},
                     {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream out(folder_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
  }

  /// The slices of one of `world` ranks: flat ranges that ignore rows, as FSDP's may.
  std::vector<fsdp::LocalShard> Shards(int64_t rank, int64_t world,
                                       at::ScalarType dtype = at::kFloat) {
    std::vector<fsdp::LocalShard> slices;
    for (const auto& [fqn, tensor] : tensors_) {
      const int64_t begin = tensor.numel() * rank / world;
      const int64_t end = tensor.numel() * (rank + 1) / world;
      const std::vector<int64_t> shape = tensor.sizes().vec();
      slices.push_back({{fqn, shape, fsdp::plan::flat_range_to_boxes(shape, begin, end), {}},
                        at::full({end - begin}, -1.0, dtype)});
    }
    return slices;
  }

  static WeightNames Names(bool has_tied_head = false) {
    return {"model.",
            "model.embed_tokens.weight",
            has_tied_head ? "lm_head.weight" : "",
            {".rotary_emb.inv_freq", ".attn.bias"}};
  }

  std::string Refusal(bool has_tied_head = false) {
    try {
      LoadWeights(folder_.string(), Shards(0, 2), Names(has_tied_head));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  void ExpectLoaded(const std::vector<fsdp::LocalShard>& slices) {
    for (const fsdp::LocalShard& slice : slices) {
      fsdp::LocalShard expected = slice;
      expected.local = at::empty(slice.local.sizes());
      fsdp::copy_part_of(tensors_.at(slice.fqn), expected);
      EXPECT_TRUE(slice.local.to(at::kFloat).equal(expected.local)) << slice.fqn;
    }
  }

  Tensors tensors_;
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("load_weights_" + std::to_string(getpid()));
};

TEST_F(LoadWeightsTest, EveryRankGetsItsRangeInEveryStoredAndShardDtype) {
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Tensors converted;
    for (const auto& [fqn, tensor] : tensors_) {
      converted[fqn] = tensor.to(stored);
    }
    Write(converted);
    for (const at::ScalarType shard : {at::kFloat, at::kBFloat16}) {
      for (const int64_t world : {1, 2, 3, 8}) {
        for (int64_t rank = 0; rank < world; ++rank) {
          const auto slices = Shards(rank, world, shard);
          LoadWeights(folder_.string(), slices, Names());
          ExpectLoaded(slices);
        }
      }
    }
  }
}

TEST_F(LoadWeightsTest, CheckpointIsReadLikeAFolderOfAModelAndDamageIsNamed) {
  Write(tensors_);
  const std::string path = (folder_ / "step-3").string();
  CheckpointToWrite checkpoint;
  for (const auto& [name, tensor] : tensors_) {
    checkpoint.tensors.push_back({"model." + name, name});
  }
  checkpoint.tensors.push_back({"optim.state.exp_avg", "model.norm.weight"});
  const auto source = OpenTensors(folder_.string());
  WriteCheckpoint(*source, checkpoint, path, Existing::kRefuse);
  for (const int64_t rank : {0, 1, 2}) {
    const auto slices = Shards(rank, 3);
    LoadWeights(path, slices, Names());
    ExpectLoaded(slices);
  }
  const std::filesystem::path file = std::filesystem::path(path) / "__0_0.distcp";
  std::fstream data(file, std::ios::in | std::ios::out | std::ios::binary);
  const float one = 100;  // the first of model.layers.0.weight
  std::string bytes(std::filesystem::file_size(file), '\0');
  data.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&one), sizeof one));
  ASSERT_NE(at, std::string::npos);
  data.seekp(static_cast<std::streamoff>(at) + 2) << '\x07';
  data.close();
  try {
    LoadWeights(path, Shards(0, 1), Names());
    FAIL();
  } catch (const ConfigError& error) {  // a restart would find it again
    EXPECT_NE(std::string(error.what()).find("__0_0.distcp"), std::string::npos) << error.what();
  }
}

TEST_F(LoadWeightsTest, WhatHoldsNoWeightsIsNamed) {
  EXPECT_EQ(Refusal(), "model.weights: cannot read " + folder_.string() +
                           ": it has neither .metadata, nor model.safetensors, nor "
                           "model.safetensors.index.json, so it is no complete checkpoint");
}

TEST_F(LoadWeightsTest, ColumnsOfAMatrixAreRead) {
  Write(tensors_);
  for (fsdp::LocalShard& slice : Shards(0, 1)) {
    const int64_t rows = slice.global_shape[0];
    const int64_t columns = slice.global_shape.back();
    if (slice.global_shape.size() == 2) {
      slice.boxes = {{{0, columns / 2}, {rows, columns - columns / 2}}, {{1, 0}, {1, columns / 2}}};
    }
    slice.local = at::full({fsdp::plan::total_numel(slice.boxes)}, -1.0);
    std::vector<fsdp::LocalShard> all = Shards(0, 1);
    for (fsdp::LocalShard& other : all) {
      if (other.fqn == slice.fqn) {
        other = slice;
      }
    }
    LoadWeights(folder_.string(), all, Names());
    ExpectLoaded(all);
  }
}

TEST_F(LoadWeightsTest, ShardsThatAreViewsOfOneFlatTensorAreFilledInPlace) {
  Write(tensors_);
  auto slices = Shards(1, 3);
  int64_t total = 1;
  for (const fsdp::LocalShard& slice : slices) {
    total += slice.local.numel();
  }
  const at::Tensor flat = at::full({total}, -7.0);
  int64_t at = 0;
  for (fsdp::LocalShard& slice : slices) {
    slice.local = flat.slice(0, at, at + slice.local.numel());
    at += slice.local.numel();
  }
  LoadWeights(folder_.string(), slices, Names());
  ExpectLoaded(slices);
  EXPECT_EQ(flat[total - 1].item<float>(), -7);
}

TEST_F(LoadWeightsTest, MissingAndSuperfluousTensorsAreNamed) {
  Tensors given = tensors_;
  given.erase("model.norm.weight");
  Write(given);
  EXPECT_EQ(Refusal(),
            "weights " + folder_.string() + " lack tensors of the model: model.norm.weight");
  given = tensors_;
  for (int i = 0; i < 7; ++i) {
    given["extra." + std::to_string(i)] = Counting({1}, 0);
  }
  given["model.layers.0.self_attn.rotary_emb.inv_freq"] = Counting({2}, 0);
  given["layers.0.attn.bias"] = Counting({1, 1, 2, 2}, 0);
  Write(given);
  EXPECT_EQ(Refusal(), "weights " + folder_.string() +
                           " hold tensors that the model lacks: extra.0, extra.1, extra.2, "
                           "extra.3, extra.4 and 2 more");
}

TEST_F(LoadWeightsTest, WrongShapeAndDtypeAreNamedBeforeAnythingIsRead) {
  Tensors given = tensors_;
  given["model.layers.0.weight"] = Counting({5, 3}, 0);
  Write(given);
  EXPECT_EQ(Refusal(), "weights " + folder_.string() +
                           ": tensor model.layers.0.weight has shape [5, 3], the model expects "
                           "[3, 5]");
  given = tensors_;
  given["model.norm.weight"] = Counting({5}, 0).to(at::kLong);
  Write(given);
  const auto slices = Shards(0, 1);
  EXPECT_THROW(LoadWeights(folder_.string(), slices, Names()), ConfigError);
  EXPECT_EQ(Refusal(),
            "tensor model.norm.weight has dtype int64: expected float32, bfloat16 or float16");
  EXPECT_EQ(slices[0].local.min().item<float>(), -1);
  EXPECT_EQ(slices[0].local.max().item<float>(), -1);
}

TEST_F(LoadWeightsTest, TiedHeadMayBeStoredIfItIsTheEmbedding) {
  Tensors given = tensors_;
  given["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  Write(given);
  EXPECT_EQ(Refusal(/*has_tied_head=*/true), "accepted");
  EXPECT_NE(Refusal(/*has_tied_head=*/false).find("lacks: lm_head.weight"), std::string::npos);
  given["lm_head.weight"] = tensors_["model.embed_tokens.weight"] + 1;
  Write(given);
  EXPECT_NE(Refusal(/*has_tied_head=*/true).find("tie_word_embeddings"), std::string::npos);
}

TEST_F(LoadWeightsTest, PrefixOfTheBodyMayBeLeftOut) {
  Tensors given;
  for (const auto& [fqn, tensor] : tensors_) {
    given[fqn.substr(std::string("model.").size())] = tensor;
  }
  Write(given);
  const auto slices = Shards(1, 2);
  LoadWeights(folder_.string(), slices, Names());
  ExpectLoaded(slices);
  given["lm_head.weight"] = tensors_["model.embed_tokens.weight"] + 1;
  Write(given);
  EXPECT_NE(Refusal(/*has_tied_head=*/true).find("lm_head.weight differs from embed_tokens.weight"),
            std::string::npos);
  given.erase("lm_head.weight");
  given["norm.weight"] = Counting({6}, 0);
  Write(given);
  EXPECT_NE(Refusal().find("tensor norm.weight has shape [6], the model expects [5]"),
            std::string::npos);
}

TEST_F(LoadWeightsTest, TensorUnderBothNamesIsRefused) {
  Tensors given = tensors_;
  given["norm.weight"] = Counting({5}, 0);
  Write(given);
  EXPECT_NE(Refusal().find("hold tensors that the model lacks: norm.weight"), std::string::npos);
}

}  // namespace
}  // namespace fsdprun::worker
