#include "formats/checkpoint/blob_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun::checkpoint {
namespace {

constexpr int64_t kFileBytes = 3 << 20;

class BlobSourceTest : public testing::Test {
 protected:
  BlobSourceTest() {
    for (char& byte : content_) {
      byte = static_cast<char>(random_());
    }
    std::ofstream(dir_ / "file") << content_;
  }

  int64_t Below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(std::max<int64_t>(end, 1)));
  }

  /// Some parts of [begin, end), from single bytes to all of it.
  std::vector<WantedBytes> SomeOf(int64_t begin, int64_t end, char* out) {
    std::vector<WantedBytes> wanted;
    const int64_t longest = int64_t{1} << (3 + Below(19));
    for (int64_t at = begin + Below(longest); at < end; at += Below(longest)) {
      const int64_t count = std::min(1 + Below(longest), end - at);
      wanted.push_back({at, count, out});
      out += count;
      at += count;
    }
    return wanted;
  }

  const TemporaryDirectory dir_;
  std::mt19937_64 random_{11};
  std::string content_ = std::string(kFileBytes, '\0');
};

TEST_F(BlobSourceTest, WantedBytesComeWhereTheyAreWantedAndAllAreSeenInOrder) {
  const InputFile file(dir_ / "file");
  std::string out(kFileBytes, '\0');
  std::string scratch;
  for (int i = 0; i < 60; ++i) {
    const int64_t offset = Below(1000);
    const int64_t length = i < 20 ? Below(100'000) : 100'000 + Below(kFileBytes - 101'000);
    const BlobSource source(file, {"file", offset, length});
    ASSERT_EQ(source.size(), length);
    const int64_t begin = Below(length);
    const int64_t end = begin + Below(length - begin + 1);
    const std::vector<WantedBytes> wanted = SomeOf(begin, end, out.data());
    for (const bool is_through : {true, false}) {
      std::fill(out.begin(), out.end(), '\0');
      if (is_through) {
        std::string seen;
        source.ReadThrough(begin, end, wanted, scratch,
                           [&](const char* data, size_t count) { seen.append(data, count); });
        ASSERT_TRUE(seen == content_.substr(static_cast<size_t>(offset + begin),
                                            static_cast<size_t>(end - begin)));
      } else {
        source.ReadParts(wanted, scratch);
      }
      for (const WantedBytes& bytes : wanted) {
        ASSERT_TRUE(std::equal(bytes.out, bytes.out + bytes.byte_count,
                               content_.data() + offset + bytes.begin));
      }
    }
  }
}

TEST_F(BlobSourceTest, SmallReadsAnywhere) {
  const InputFile file(dir_ / "file");
  for (const int64_t length :
       {int64_t{0}, int64_t{1}, int64_t{65536}, int64_t{65537}, kFileBytes}) {
    const BlobSource source(file, {"file", 0, length});
    for (const int64_t offset :
         {int64_t{0}, int64_t{4090}, length / 2, length - 4100, length - 9}) {
      const int64_t count = std::min<int64_t>(length - std::max<int64_t>(offset, 0), 9);
      if (offset >= 0 && count >= 0) {
        std::string out(static_cast<size_t>(count), '\0');
        source.read(offset, out.data(), count);
        EXPECT_TRUE(out ==
                    content_.substr(static_cast<size_t>(offset), static_cast<size_t>(count)));
      }
    }
  }
}

TEST_F(BlobSourceTest, TruncatedFileIsNamed) {
  const InputFile file(dir_ / "file");
  for (const int64_t length : {100, 100'000}) {
    EXPECT_THAT(MessageOf<CheckpointError>([&] {
                  const BlobSource source(file, {"file", kFileBytes - 50, length});
                }),
                testing::AllOf(testing::HasSubstr(dir_ / "file"), testing::HasSubstr("truncated")));
  }
}

}  // namespace
}  // namespace fsdprun::checkpoint
