#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/save_plan.h"
#include "formats/checkpoint/torch_blob.h"
#include "fsdp_runtime/plan/box.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MemorySource : public fsdp::archive::ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    ASSERT_LE(offset + byte_count, size());
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(byte_count));
  }

 private:
  std::string bytes_;
};

std::string TensorBlobOf(const std::vector<int64_t>& sizes, const std::string& data) {
  const BlobFrame frame =
      FrameTensor(DType::kInt16, sizes, fsdp::archive::update_crc32(0, data.data(), data.size()));
  return frame.prefix + data + frame.suffix;
}

// The one is computed with the widest instructions of the machine, the other with those of all.
TEST(StreamHashTest, PiecesHaveTheHashOfTheWhole) {
  std::mt19937_64 random(7);
  std::string bytes(100'000, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random());
  }
  for (const size_t length : {0, 1, 16, 200, 240, 241, 256, 1024, 4097, 100'000}) {
    StreamHash hash;
    for (size_t at = 0; at < length;) {
      const size_t count = std::min<size_t>(length - at, 1 + random() % 3000);
      hash.Add(bytes.data() + at, count);
      at += count;
    }
    EXPECT_EQ(hash.Digest(), HashBytes(bytes.substr(0, length))) << length;
  }
}

TEST(TorchBlobTest, TensorComesBack) {
  const std::string data = "abcdefghijkl";
  const std::string bytes = TensorBlobOf({2, 3}, data);
  const TensorBlob blob = ReadTensorFrame(MemorySource(bytes), "it");
  EXPECT_EQ(blob.dtype, DType::kInt16);
  EXPECT_EQ(blob.sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(blob.data_offset % 64, 0);
  EXPECT_EQ(bytes.substr(static_cast<size_t>(blob.data_offset), data.size()), data);
}

TEST(TorchBlobTest, EveryTruncationIsRefused) {
  const std::string bytes = TensorBlobOf({2, 3}, "abcdefghijkl");
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(ReadTensorFrame(MemorySource(bytes.substr(0, length)), "it"), CheckpointError);
  }
}

TEST(TorchBlobTest, CompressedRecordIsRefused) {
  std::string bytes = TensorBlobOf({2, 3}, "abcdefghijkl");
  const size_t entry = bytes.find("PK\x01\x02");
  bytes[entry + 10] = 8;  // DEFLATE
  EXPECT_THAT(MessageOf<CheckpointError>([&] { ReadTensorFrame(MemorySource(bytes), "model.w"); }),
              HasSubstr("compressed"));
}

TEST(TorchBlobTest, ObjectsComeBackExactly) {
  const json value = {{"step", 3},
                      {"seed", std::numeric_limits<uint64_t>::max()},
                      {"lowest", std::numeric_limits<int64_t>::min()},
                      {"lr", 0.1},
                      {"tiny", 5e-324},
                      {"none", nullptr},
                      {"flag", true},
                      {"nested", {{"list", {1, "two", 3.5, json::array()}}}}};
  EXPECT_EQ(UnpackObject(MemorySource(PackObject(value)), "it"), value);
}

TEST(TorchBlobTest, NotANumberIsRefused) {
  EXPECT_THROW(PackObject(json(std::numeric_limits<double>::quiet_NaN())), CheckpointError);
}

TEST(TorchBlobTest, MutatedBlobsAreReadOrRefusedButNeverCrash) {
  const std::string tensor = TensorBlobOf({2, 3}, "abcdefghijkl");
  const std::string object = PackObject({{"a", {1, 2.5, "x"}}, {"b", nullptr}});
  std::mt19937_64 random(7);
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = i % 2 == 0 ? tensor : object;
    for (uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    try {
      if (i % 2 == 0) {
        ReadTensorFrame(MemorySource(bytes), "it");
      } else {
        UnpackObject(MemorySource(bytes), "it");
      }
    } catch (const CheckpointError&) {
    }
  }
}

TEST(ManifestTest, ComesBackAndEveryFlipIsHarmlessOrRefused) {
  Manifest manifest;
  manifest.step = 7;
  manifest.sequence = 3;
  manifest.job_id = "job \"x\"";
  manifest.files["__0_0.distcp"] = {100, "0123456789abcdef", {{"model.w", 0, 100, "fedc"}}};
  const std::string text = EncodeManifest(manifest);
  EXPECT_EQ(DecodeManifest(text, "it"), manifest);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    try {
      EXPECT_EQ(DecodeManifest(flipped, "it"), manifest) << bit;
    } catch (const CheckpointError&) {
    }
  }
}

SliceInfo Slice(int64_t begin, int64_t end, const std::string& key = "model.w") {
  return {key, DType::kFloat32, {5, 3}, fsdp::plan::flat_range_to_boxes({5, 3}, begin, end)};
}

SliceInfo Columns(int64_t begin, int64_t count) {
  return {"model.w", DType::kFloat32, {5, 3}, {{{0, begin}, {5, count}}}};
}

std::string PlanRefusal(const std::vector<std::vector<SliceInfo>>& ranks) {
  return MessageOf<CheckpointError>([&] { PlanSave(ranks, 1 << 30); });
}

TEST(SavePlanTest, EveryElementIsWrittenOnce) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    const size_t world_size = 1 + random() % 5;
    std::vector<std::vector<SliceInfo>> ranks(2 * world_size);
    int64_t begin = 0;
    for (size_t rank = 0; rank < world_size; ++rank) {
      const int64_t left = 15 - begin;
      const int64_t end =
          rank + 1 == world_size ? 15 : begin + static_cast<int64_t>(random()) % (left + 1);
      const int64_t last = std::max(begin, end);
      ranks[rank] = {Slice(begin, last)};
      ranks[world_size + rank] = {Slice(begin, last)};  // replicas
      begin = last;
    }
    std::vector<int> writers(15, 0);
    const auto plan = PlanSave(ranks, 4 * static_cast<int64_t>(1 + random() % 16));
    for (size_t rank = 0; rank < plan.size(); ++rank) {
      EXPECT_TRUE(rank < world_size || plan[rank].empty()) << "a replica writes";
      for (const PlannedChunk& chunk : plan[rank]) {
        const int64_t first = fsdp::plan::flat_begin_of({5, 3}, chunk.box);
        for (int64_t i = first; i < first + fsdp::plan::numel_of(chunk.box); ++i) {
          ++writers[static_cast<size_t>(i)];
        }
      }
    }
    EXPECT_THAT(writers, ::testing::Each(1));
  }
}

TEST(SavePlanTest, LargePiecesAreCut) {
  const auto plan = PlanSave({{Slice(0, 15)}}, 24);
  ASSERT_EQ(plan.size(), 1u);
  int64_t planned = 0;
  for (const PlannedChunk& chunk : plan[0]) {
    EXPECT_LE(fsdp::plan::numel_of(chunk.box), 6);
    EXPECT_EQ(chunk.begin, planned);
    planned += fsdp::plan::numel_of(chunk.box);
  }
  EXPECT_EQ(planned, 15);
}

TEST(SavePlanTest, DisagreementIsRefusedByName) {
  EXPECT_THAT(PlanRefusal({{Slice(0, 7)}, {Slice(8, 15)}}), HasSubstr("model.w"));
  EXPECT_THAT(PlanRefusal({{Slice(0, 8)}, {Slice(7, 15)}}), HasSubstr("overlap"));
  EXPECT_THAT(PlanRefusal({{Slice(0, 7)}, {}}), HasSubstr("no rank holds 8 of its 15 elements"));
  EXPECT_THAT(PlanRefusal({{Columns(0, 4)}}), HasSubstr("[0:5, 0:4] of a tensor of [0:5, 0:3]"));
  EXPECT_THAT(PlanRefusal({{Columns(0, 2)}, {Columns(1, 2)}}), HasSubstr("of rank 1 overlap"));
  EXPECT_THAT(PlanRefusal({{Slice(0, 15), Slice(0, 15)}}), HasSubstr("overlap"));
  SliceInfo other = Slice(7, 15);
  other.shape = {15};
  other.boxes = {};
  EXPECT_THAT(PlanRefusal({{Slice(0, 7)}, {other}}), HasSubstr("rank 1 has another shape"));
  SliceInfo odd = Columns(0, 3);
  odd.boxes[0].offsets.pop_back();
  EXPECT_THAT(PlanRefusal({{Columns(0, 3)}, {odd}}),
              AllOf(HasSubstr("model.w: rank 1"), HasSubstr("[1 offsets, 2 sizes]")));
}

// As tensor parallelism divides a matrix, with a copy of each part on another rank.
TEST(SavePlanTest, ColumnsAreWrittenByTheLowestRankThatHoldsThem) {
  const auto plan =
      PlanSave({{Columns(0, 2)}, {Columns(2, 1)}, {Columns(0, 2)}, {Columns(2, 1)}}, 24);
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_TRUE(plan[2].empty() && plan[3].empty());
  int64_t planned = 0;
  for (const PlannedChunk& chunk : plan[0]) {
    EXPECT_EQ(chunk.begin, planned);
    planned += fsdp::plan::numel_of(chunk.box);
  }
  EXPECT_EQ(planned, 10);
  ASSERT_EQ(plan[1].size(), 1u);
  EXPECT_EQ(plan[1][0].box, (fsdp::Box{{0, 2}, {5, 1}}));
}

// One row of many columns, or one column of many rows. What is shown is that they are accepted, and
// that an overlap among them is found; not how long it takes.
TEST(SavePlanTest, ManyPartsSideBySideAreCheckedInOnePass) {
  constexpr int64_t kParts = 20'000;
  for (const bool is_row : {true, false}) {
    const std::vector<int64_t> shape =
        is_row ? std::vector<int64_t>{1, kParts} : std::vector<int64_t>{kParts, 1};
    std::vector<std::vector<SliceInfo>> ranks;
    for (int64_t part = 0; part < kParts; ++part) {
      const std::vector<int64_t> offsets =
          is_row ? std::vector<int64_t>{0, part} : std::vector<int64_t>{part, 0};
      ranks.push_back({{"w", DType::kFloat32, shape, {{offsets, {1, 1}}}}});
    }
    EXPECT_EQ(PlanSave(ranks, 1 << 30).back().size(), 1u);
    ranks.back()[0].boxes = {{{0, 0}, {1, 1}}, ranks.back()[0].boxes[0]};
    EXPECT_THAT(PlanRefusal(ranks), HasSubstr("of rank 19999 overlap"));
  }
}

TEST(SavePlanTest, SlicesSurviveTheExchange) {
  const std::vector<SliceInfo> slices = {Slice(0, 7), {"a", DType::kBool, {}, {fsdp::Box{}}}};
  const std::vector<SliceInfo> back = DecodeSlices(EncodeSlices(slices));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1].dtype, DType::kBool);
  EXPECT_EQ(back[0].shape, slices[0].shape);
  EXPECT_EQ(back[0].boxes, slices[0].boxes);
  EXPECT_EQ(back[1].boxes, slices[1].boxes);
}

// A request to stop comes as a signal, and some file systems let it end their calls.
TEST(FileSystemTest, CallThatASignalInterruptsIsMadeAgain) {
  const TemporaryDirectory dir;
  FileSystem file_system;
  {
    const PathFault fault(PathFault::kOpen, "interrupted", EINTR, /*times=*/2);
    file_system.WriteFile(dir / "interrupted", "all of it");
  }
  const PathFault fault(PathFault::kOpen, "interrupted", EINTR, /*times=*/1);
  EXPECT_EQ(ReadWholeFile(dir / "interrupted", 100), "all of it");
}

}  // namespace
}  // namespace fsdprun::checkpoint
