#include "formats/tensors/write_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint_reader.h"
#include "formats/checkpoint/torch_blob.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/open_tensors.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::HasSubstr;

/// Tensors whose element i is i, plus `shift` for element `shifted`.
class CountingTensors : public TensorSource {
 public:
  CountingTensors() {
    tensors_["large"] = {"float32", {5000, 4000}, 1, {}};  // 80 MB: several pieces
    tensors_["scalar"] = {"float32", {}, 1, {}};
    tensors_["empty"] = {"float32", {0, 3}, 1, {}};
    tensors_["strange"] = {"float8_e5m2", {4}, 1, {}};
  }
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override {
    (void)name;
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] =
          static_cast<float>(begin + i) + (begin + i == shifted ? shift : 0);
    }
    std::memcpy(out, values.data(), values.size() * sizeof(float));
  }
  int64_t shifted = -1;
  float shift = 0;
};

CheckpointToWrite Output() {
  CheckpointToWrite output;
  output.tensors = {{"model.l", "large"}, {"model.s", "scalar"}, {"model.e", "empty"}};
  output.objects = {{"train.state", checkpoint::PackObject({{"step", 4}})}};
  output.step = 4;
  return output;
}

TEST(WriteCheckpointTest, WhatCannotBeWrittenIsRefused) {
  const TemporaryDirectory folder;
  CountingTensors source;
  CheckpointToWrite output = Output();
  output.tensors.push_back({"model.s", "large"});
  const auto write = [&] { WriteCheckpoint(source, output, folder / "out", Existing::kRefuse); };
  EXPECT_THAT(MessageOf<Error>(write), HasSubstr("model.s is taken"));
  output.tensors.back() = {"model.x", "strange"};
  EXPECT_THAT(MessageOf<Error>(write), HasSubstr("float8_e5m2"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(WriteCheckpointTest, IsReadBackWithEveryElement) {
  const TemporaryDirectory folder;
  CountingTensors source;
  WriteCheckpoint(source, Output(), folder / "out", Existing::kRefuse);
  EXPECT_EQ(LayoutOf(folder / "out"), TensorLayout::kDcp);
  CheckpointTensors read(folder / "out");
  EXPECT_GT(read.tensors().at("model.l").pieces, 1);
  EXPECT_EQ(read.tensors().at("model.e").shape, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(CompareTensors(read, "model.l", source, "large").different, 0);
  EXPECT_EQ(CompareTensors(read, "model.s", source, "scalar").different, 0);
  source.shifted = 19'999'999;
  source.shift = 16;
  const ValueDifference difference = CompareTensors(read, "model.l", source, "large");
  EXPECT_EQ(difference.different, 1);
  EXPECT_EQ(difference.max_difference, 16);
  checkpoint::CheckpointReader reader(read.opened(), /*verify_blobs=*/true);
  EXPECT_EQ(reader.ReadObject("train.state"), nlohmann::json({{"step", 4}}));
  for (const auto& [name, file] : read.opened().manifest->files) {
    checkpoint::VerifyFile(folder / "out", name, file);
  }
}

TEST(OpenTensorsTest, SaysWhatIsMissing) {
  const TemporaryDirectory folder;
  EXPECT_THAT(MessageOf<Error>([&] { OpenTensors(folder.path()); }),
              HasSubstr("neither .metadata"));
  EXPECT_THAT(MessageOf<Error>([&] { OpenTensors(folder / "none"); }), HasSubstr("no such"));
  CountingTensors source;
  WriteCheckpoint(source, Output(), folder / "step-4", Existing::kRefuse);
  EXPECT_THAT(MessageOf<Error>([&] { OpenTensors(folder.path()); }), HasSubstr("step-4"));
}

}  // namespace
}  // namespace fsdprun
