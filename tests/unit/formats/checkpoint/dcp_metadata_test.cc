#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DcpMetadata Example() {
  DcpMetadata metadata;
  metadata.tensors["model.w"] = {"bfloat16",
                                 {5, 3},
                                 {{{{0, 0}, {1, 2}}, {"__0_0.distcp", 0, 100}},
                                  {{{0, 2}, {1, 1}}, {"__1_0.distcp", 0, 100}},
                                  {{{1, 0}, {4, 3}}, {"__1_0.distcp", 100, int64_t{1} << 40}}}};
  metadata.tensors["optim.state.w.step"] = {"float32", {}, {{{{}, {}}, {"__0_0.distcp", 100, 9}}}};
  metadata.objects["train.state"] = {"__0_0.distcp", 109, 7};
  metadata.paths["model.w"] = PathOfKey("model.w");
  metadata.paths["list.0.x"] = {"list", int64_t{0}, "x"};
  return metadata;
}

std::string RefusalOf(const DcpMetadata& metadata) {
  return MessageOf<CheckpointError>(
      [&] { DecodeDcpMetadata(EncodeDcpMetadata(metadata), ".metadata"); });
}

TEST(DcpMetadataTest, ComesBackAsItWas) {
  EXPECT_EQ(DecodeDcpMetadata(EncodeDcpMetadata(Example()), "it"), Example());
}

TEST(DcpMetadataTest, EmptyPiecesNeedNoBlob) {
  DcpMetadata metadata = Example();
  metadata.tensors["none"] = {"float32", {0, 4}, {{{{0, 0}, {0, 4}}, {}}}};
  EXPECT_EQ(DecodeDcpMetadata(EncodeDcpMetadata(metadata), "it"), metadata);
  // Python gives an empty shard the offset at which the next one begins, and stores one entry.
  DcpMetadata shared = Example();
  shared.tensors["model.w"].chunks.push_back({{{1, 0}, {0, 3}}, {}});
  EXPECT_EQ(DecodeDcpMetadata(EncodeDcpMetadata(shared), "it"), shared);
}

TEST(DcpMetadataTest, PiecesSideBySideAreRead) {
  // Comparing each with each would exceed what is spent on a file of this size.
  DcpMetadata metadata;
  StoredTensor& tensor = metadata.tensors["w"];
  constexpr int64_t kPieces = 6000;
  tensor = {"float32", {2, kPieces}, {}};
  for (int64_t i = 0; i < kPieces; ++i) {
    tensor.chunks.push_back({{{0, i}, {2, 1}}, {"f", i, 8}});
  }
  metadata.paths["w"] = PathOfKey("w");
  EXPECT_EQ(DecodeDcpMetadata(EncodeDcpMetadata(metadata), "it"), metadata);
  tensor.chunks[1].box = {{1, 0}, {1, 2}};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("overlapping pieces of w"));
}

TEST(DcpMetadataTest, BlobsHoldTheirElements) {
  DcpMetadata metadata;
  StoredTensor& tensor = metadata.tensors["w"];
  tensor = {"float32", {int64_t{1} << 56}, {{{{0}, {int64_t{1} << 56}}, {"f", 0, 100}}}};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("100 bytes in f for a piece of w"));
  tensor = {"float8_e5m2", {101}, {{{{0}, {101}}, {"f", 0, 100}}}};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("101 elements of float8_e5m2"));
  tensor = {"float64", {4, 3}, {{{{0, 0}, {4, 3}}, {"f", 0, 96}}}};
  metadata.paths["w"] = PathOfKey("w");
  EXPECT_EQ(DecodeDcpMetadata(EncodeDcpMetadata(metadata), "it"), metadata);
}

TEST(DcpMetadataTest, DtypesAreTorchs) {
  std::string bytes = EncodeDcpMetadata(Example());
  const std::string global = "ctorch\nbfloat16\n";
  const std::string other = "ccollections\nOrderedDict\n";
  bytes.replace(bytes.find(global), global.size(), other);
  EXPECT_THAT(MessageOf<CheckpointError>([&] { DecodeDcpMetadata(bytes, "it"); }),
              HasSubstr("has no dtype for model.w"));
}

TEST(DcpMetadataTest, EveryTruncationIsRefused) {
  const std::string bytes = EncodeDcpMetadata(Example());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(DecodeDcpMetadata(bytes.substr(0, length), "it"), CheckpointError) << length;
  }
}

TEST(DcpMetadataTest, MutatedBytesAreReadOrRefusedButNeverCrash) {
  const std::string good = EncodeDcpMetadata(Example());
  std::mt19937_64 random(5);
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = good;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    try {
      DecodeDcpMetadata(bytes, "it");
    } catch (const CheckpointError&) {
    }
  }
}

TEST(DcpMetadataTest, ErrorsAreOneLineWhateverTheFileContains) {
  DcpMetadata metadata = Example();
  metadata.objects["a\n\x1b[2Jb"] = {"..", 0, 1};
  const std::string refusal = RefusalOf(metadata);
  EXPECT_THAT(refusal, HasSubstr("a??[2Jb"));
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
}

TEST(DcpMetadataTest, PathsOutsideAreRefused) {
  for (const std::string file : {"../x", "/etc/passwd", "a/b", "..", ".", ""}) {
    DcpMetadata metadata = Example();
    metadata.objects["train.state"].file = file;
    EXPECT_THAT(RefusalOf(metadata), HasSubstr("train.state")) << file;
  }
  DcpMetadata metadata = Example();
  metadata.objects["train.state"].file = std::string("a\0b", 3);
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("no plain file"));
}

TEST(DcpMetadataTest, ImpossiblePlacesAreRefused) {
  DcpMetadata metadata = Example();
  metadata.objects["train.state"].offset = INT64_MAX - 3;
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("beyond any file"));
  metadata = Example();
  metadata.objects["train.state"].length = -1;
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("negative"));
}

TEST(DcpMetadataTest, PiecesMustTileTheTensor) {
  DcpMetadata metadata = Example();
  metadata.tensors["model.w"].chunks.pop_back();
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("3 of the 15"));
  metadata = Example();
  metadata.tensors["model.w"].chunks[0].box.sizes = {1, 3};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("more pieces"));
  metadata = Example();
  metadata.tensors["model.w"].chunks[2].box = {{2, 0}, {4, 3}};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("outside"));
  metadata = Example();
  metadata.tensors["model.w"].shape = {6, 3};
  metadata.tensors["model.w"].chunks.push_back({{{1, 0}, {1, 3}}, {"f", 0, 1}});
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("twice"));
  metadata.tensors["model.w"].chunks.back().box = {{2, 0}, {1, 3}};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("overlap"));
}

TEST(DcpMetadataTest, OverflowingShapesAreRefused) {
  DcpMetadata metadata = Example();
  metadata.tensors["model.w"].shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("impossible size"));
}

TEST(DcpMetadataTest, LongNamesAndPathsAreRefused) {
  DcpMetadata metadata = Example();
  metadata.objects[std::string(5000, 'k')] = {"f", 0, 1};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("over the bound of 4096"));
  metadata = Example();
  metadata.paths["train.state"] = std::vector<PathPart>(65, PathPart(int64_t{0}));
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("more than 64 parts"));
}

TEST(DcpMetadataTest, KeysNestAsPythonExpects) {
  EXPECT_THAT(PathOfKey("model.layers.0.weight"),
              ElementsAre(PathPart("model"), PathPart("layers.0.weight")));
  EXPECT_THAT(PathOfKey("optim.state.layers.0.weight.exp_avg"),
              ElementsAre(PathPart("optim"), PathPart("state"), PathPart("layers.0.weight"),
                          PathPart("exp_avg")));
  EXPECT_THAT(PathOfKey("optim.param_groups"),
              ElementsAre(PathPart("optim"), PathPart("param_groups")));
}

}  // namespace
}  // namespace fsdprun::checkpoint
