#include "formats/safetensors/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "formats/files/output_file.h"
#include "formats/safetensors/safetensors.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(SafetensorsWriterTest, ImpossibleTensorsAreRefused) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const SafetensorsItem& item :
       {SafetensorsItem{"t", "float32", {1}}, SafetensorsItem{"t", "F32", {-1}},
        SafetensorsItem{"t", "F32", {most, 2}}, SafetensorsItem{"t", "F4", {1}},
        SafetensorsItem{"__metadata__", "F32", {1}}, SafetensorsItem{"\xff", "F32", {1}}}) {
    EXPECT_THAT(MessageOf<Error>([&] { LayOutSafetensors({item}); }), HasSubstr("cannot write"));
  }
  EXPECT_THAT(MessageOf<Error>([&] {
                LayOutSafetensors({{"t", "U8", {}}, {"t", "U8", {}}});
              }),
              HasSubstr("twice"));
}

TEST(SafetensorsWriterTest, TheReaderFindsEverythingAligned) {
  const std::vector<SafetensorsItem> items = {{"byte", "U8", {3}},
                                              {"\"quoted\"", "F64", {2, 1}},
                                              {"empty", "F32", {0, 4}},
                                              {"scalar", "BF16", {}}};
  const SafetensorsLayout layout = LayOutSafetensors(items);
  EXPECT_EQ(layout.head.size() % 8, 0U);
  const TemporaryDirectory folder;
  OutputFile file(folder / "model.safetensors", layout.file_bytes, Existing::kRefuse);
  file.Write(0, layout.head);
  file.Write(layout.begins[0], "abc");
  file.Publish();
  const SafetensorsFile read(folder / "model.safetensors");
  EXPECT_EQ(read.header().metadata.at("format"), "pt");
  ASSERT_EQ(read.header().tensors.size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const SafetensorsEntry& entry = read.header().tensors.at(items[i].name);
    EXPECT_EQ(entry.begin, layout.begins[i]);
    EXPECT_EQ(entry.shape, items[i].shape);
    EXPECT_EQ(entry.begin * 8 % SafetensorsDtypeBits(entry.dtype), 0);
  }
  std::string bytes(3, '\0');
  read.Read(layout.begins[0], 3, bytes.data());
  EXPECT_EQ(bytes, "abc");
}

TEST(SafetensorsWriterTest, ShardsAreFilledInOrder) {
  const std::vector<SafetensorsItem> items = {
      {"a", "U8", {4}}, {"b", "U8", {6}}, {"c", "U8", {1}}, {"d", "U8", {30}}, {"e", "U8", {1}}};
  EXPECT_THAT(DivideIntoShards(items, 10),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(DivideIntoShards({}, 10), ElementsAre(ElementsAre()));
  EXPECT_EQ(ShardFileName(0, 1), "model.safetensors");
  EXPECT_EQ(ShardFileName(1, 4), "model-00002-of-00004.safetensors");
  const Json index = Json::parse(ShardIndex(items, DivideIntoShards(items, 10)));
  EXPECT_EQ(index.at("metadata").at("total_size"), 42);
  EXPECT_EQ(index.at("weight_map").at("d"), "model-00003-of-00004.safetensors");
}

TEST(SafetensorsWriterTest, NamesOfModelFiles) {
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(IsModelFileName(name)) << name;
  }
  for (const char* name : {"my.safetensors", "model-00001-of-00002.safetensors.bak", "config.json",
                           "model-of.safetensors", ""}) {
    EXPECT_FALSE(IsModelFileName(name)) << name;
  }
}

}  // namespace
}  // namespace fsdprun
