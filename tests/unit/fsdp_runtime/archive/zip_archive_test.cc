#include "fsdp_runtime/archive/zip_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "fsdp_runtime/archive/error.h"

namespace fsdp::archive {
namespace {

using ::testing::HasSubstr;

class TextSource : public ByteSource {
 public:
  explicit TextSource(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    ASSERT_LE(offset + byte_count, size());
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(byte_count));
  }

 private:
  const std::string bytes_;
};

std::string archive_of_two() {
  ZipWriter zip;
  zip.add("archive/first", "content of the first");
  zip.add("archive/second", "content of the second");
  return zip.finish();
}

std::string read_first(const std::string& bytes) {
  const TextSource source(bytes);
  const ZipRecord record = read_zip(source, "it").at("first");
  std::string content(static_cast<size_t>(record.byte_count), '\0');
  read_record(source, record, content.data(), "it");
  return content;
}

std::string zip_refusal(const std::string& bytes) {
  try {
    read_first(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Crc32Test, IsThatOfZipHoweverTheBytesComeInPieces) {
  EXPECT_EQ(update_crc32(0, "123456789", 9), 0xcbf43926U);
  const std::string bytes(100'000, 'x');
  const uint32_t whole = update_crc32(0, bytes.data(), bytes.size());
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, bytes.size()}) {
    const uint32_t first = update_crc32(0, bytes.data(), cut);
    EXPECT_EQ(update_crc32(first, bytes.data() + cut, bytes.size() - cut), whole);
  }
}

TEST(ZipArchiveTest, ARecordComesBack) {
  EXPECT_EQ(read_first(archive_of_two()), "content of the first");
}

TEST(ZipArchiveTest, AChangedBitIsNoticed) {
  const std::string good = archive_of_two();
  const size_t begin = good.find("content of the first");
  for (size_t bit = 0; bit < 8 * std::strlen("content of the first"); ++bit) {
    std::string bad = good;
    bad[begin + bit / 8] = static_cast<char>(bad[begin + bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THAT(zip_refusal(bad), HasSubstr("CRC-32 does not match")) << bit;
  }
}

TEST(ZipArchiveTest, WithoutAChecksumThereIsNothingToCompare) {
  std::string bytes = archive_of_two();
  bytes[bytes.find("content of the first")] = 'C';
  bytes.replace(bytes.find("PK\x01\x02") + 16, 4, 4, '\0');
  EXPECT_EQ(read_first(bytes), "Content of the first");
}

// An archive whose directory names one large record a thousand times would else be a thousand times
// as large in memory.
TEST(ZipArchiveTest, RecordsThatOverlapAreRefused) {
  std::string bytes = archive_of_two();
  const size_t first = bytes.find("PK\x01\x02");
  const size_t second = bytes.find("PK\x01\x02", first + 1);
  bytes.replace(second + 42, 4, bytes, first + 42, 4);
  EXPECT_THAT(zip_refusal(bytes), HasSubstr("overlap"));
}

}  // namespace
}  // namespace fsdp::archive
