#include "formats/torch_file/torch_file_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "formats/checkpoint/file_system.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/saved_dicts.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using fsdp::archive::ZipRecord;
using testing::HasSubstr;

class FileBytes : public fsdp::archive::ByteSource {
 public:
  explicit FileBytes(const std::string& path) : file_(path) {}
  int64_t size() const override { return file_.size(); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    file_.Read(offset, out, byte_count);
  }

 private:
  checkpoint::InputFile file_;
};

const std::vector<TorchFileTensor>& Tensors() {
  static const std::vector<TorchFileTensor> tensors = {
      {"a", "float32", {2, 3}}, {"empty", "int64", {0}}, {"scalar", "bfloat16", {}}};
  return tensors;
}

/// The bytes of tensor `index`.
std::string Elements(size_t index) {
  return index == 0 ? std::string(24, 'a') : index == 1 ? std::string() : std::string("xy");
}

void Write(const TorchFileLayout& layout, const std::string& path) {
  OutputFile file(path, layout.file_bytes, Existing::kRefuse);
  WriteTorchFile(
      layout,
      [](size_t index, const WritePiece& write) {
        const std::string bytes = Elements(index);
        for (const char byte : bytes) {
          write(&byte, 1);
        }
      },
      file);
  file.Publish();
}

TEST(TorchFileWriterTest, WhatCannotBeWrittenIsRefused) {
  EXPECT_THAT(MessageOf<Error>([] {
                LayOutTorchFile({{"a", "float8_e5m2", {1}}});
              }),
              HasSubstr("float8_e5m2"));
  EXPECT_THAT(MessageOf<Error>([] {
                LayOutTorchFile({{"a", "bool", {}}, {"a", "bool", {}}});
              }),
              HasSubstr("twice"));
}

TEST(TorchFileWriterTest, TensorsOfAnotherSizeAreRefused) {
  const TemporaryDirectory folder;
  const TorchFileLayout layout = LayOutTorchFile(Tensors());
  OutputFile file(folder / "a.pt", layout.file_bytes, Existing::kRefuse);
  EXPECT_THAT(MessageOf<Error>([&] {
                WriteTorchFile(
                    layout, [](size_t, const WritePiece&) {}, file);
              }),
              HasSubstr("0 bytes instead of 24"));
}

/// With Zip64 for all records, for places alone, and without.
class TorchFileLimitTest : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Limits, TorchFileLimitTest, testing::Values(0, 23, 500, kZip32Max));

TEST_P(TorchFileLimitTest, TheReaderFindsAllRecords) {
  const TemporaryDirectory folder;
  Write(LayOutTorchFile(Tensors(), GetParam()), folder / "a.pt");
  const FileBytes source(folder / "a.pt");
  const std::map<std::string, ZipRecord> records = read_zip(source, "a.pt");
  for (const auto& [name, record] : records) {
    check_crc(source, record, name);
  }
  EXPECT_NE(records.at("data/0").crc32, 0U);
  std::string pickle(static_cast<size_t>(records.at("data.pkl").byte_count), '\0');
  read_record(source, records.at("data.pkl"), pickle.data(), "data.pkl");
  const fsdp::archive::SavedModel model = fsdp::archive::read_saved_model(pickle, "a.pt");
  ASSERT_EQ(model.size(), Tensors().size());
  for (size_t i = 0; i < model.size(); ++i) {
    EXPECT_EQ(model[i].first, Tensors()[i].name);
    EXPECT_EQ(model[i].second.type->name, Tensors()[i].dtype);
    EXPECT_EQ(model[i].second.sizes, Tensors()[i].shape);
    const ZipRecord& record = records.at(model[i].second.record);
    EXPECT_EQ(record.data_offset % 64, 0);
    std::string bytes(static_cast<size_t>(record.byte_count), '\0');
    source.read(record.data_offset, bytes.data(), record.byte_count);
    EXPECT_EQ(bytes, Elements(i));
  }
}

}  // namespace
}  // namespace fsdprun
