#include "worker/tokenize/byte_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <future>
#include <string>

#include "formats/json/strict_json.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/tokenize/compressed.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;

std::string ContentOf(const std::string& path, size_t capacity = 1000) {
  const auto stream = OpenByteStream(path);
  std::string content;
  std::string part(capacity, '\0');
  while (const size_t count = stream->Read(part.data(), part.size())) {
    content.append(part, 0, count);
  }
  EXPECT_EQ(stream->file_bytes_read(), FileBytes(path));
  return content;
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST(ByteStreamTest, WhatIsNotThereIsNamed) {
  const TemporaryDirectory folder;
  EXPECT_THAT(MessageOf<ConfigError>([&] { OpenByteStream(folder / "none"); }),
              AllOf(HasSubstr(folder / "none"), HasSubstr("No such file")));
  EXPECT_THAT(MessageOf<ConfigError>([&] { FileBytes(folder / "none"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(MessageOf<ConfigError>([&] { FileBytes(folder.path()); }),
              HasSubstr("it is a directory"));
  EXPECT_EQ(FileBytes("/dev/null"), 0);
}

TEST(ByteStreamTest, WhatIsNotCompressedIsRefused) {
  const TemporaryDirectory folder(MemoryDirectory());
  for (const char* name : {"a.gz", "a.zst"}) {
    Write(folder / name, "plain text");
    EXPECT_THAT(MessageOf<ConfigError>([&] { ContentOf(folder / name); }),
                AllOf(HasSubstr(folder / name), HasSubstr("or damaged"), HasSubstr("at byte")));
  }
}

TEST(ByteStreamTest, AnEndThatComesEarlyIsAnErrorWhereverItIs) {
  const TemporaryDirectory folder(MemoryDirectory());
  const std::string text(3000, 'x');
  for (const auto& [name, whole] :
       {std::pair("a.gz", Gzipped(text)), std::pair("a.zst", Zstandard(text))}) {
    for (size_t size = 1; size < whole.size(); ++size) {
      Write(folder / name, whole.substr(0, size));
      EXPECT_THAT(MessageOf<ConfigError>([path = folder / name] { ContentOf(path); }),
                  HasSubstr("it ends early at byte " + std::to_string(size)));
    }
  }
}

TEST(ByteStreamTest, DamageIsFound) {
  const TemporaryDirectory folder(MemoryDirectory());
  std::string bytes = Gzipped(std::string(3000, 'x'));
  bytes[bytes.size() - 6] ^= 1;  // of the checksum
  Write(folder / "a.gz", bytes);
  EXPECT_THAT(MessageOf<ConfigError>([&] { ContentOf(folder / "a.gz"); }),
              HasSubstr("incorrect data check"));
  Write(folder / "b.gz", Gzipped("text") + "rest");
  EXPECT_THAT(MessageOf<ConfigError>([&] { ContentOf(folder / "b.gz"); }), HasSubstr("or damaged"));
}

TEST(ByteStreamTest, APipeIsAwaitedUntilSomebodyWritesIntoIt) {
  const TemporaryDirectory folder(MemoryDirectory());
  const std::string path = folder / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::future<std::string> content = std::async(std::launch::async, [&] {
    std::string part(8, '\0');
    part.resize(OpenByteStream(path)->Read(part.data(), part.size()));
    return part;
  });
  // Longer than a stream waits at a time.
  EXPECT_EQ(content.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  std::ofstream(path) << "text";
  EXPECT_EQ(content.get(), "text");
}

TEST(ByteStreamTest, ContentIsWhatWasCompressed) {
  const TemporaryDirectory folder(MemoryDirectory());
  std::string text;
  for (int64_t i = 0; i < 100'000; ++i) {
    text += std::to_string(i * i % 1009) + " ";
  }
  Write(folder / "a.txt", text);
  Write(folder / "a.gz", Gzipped(text) + Gzipped("second"));
  Write(folder / "a.zst", Zstandard(text) + Zstandard("second"));
  Write(folder / "empty.gz", "");
  for (const size_t capacity : {1UL, 777UL, 1UL << 20}) {
    EXPECT_EQ(ContentOf(folder / "a.txt", capacity), text);
    EXPECT_EQ(ContentOf(folder / "a.gz", capacity), text + "second");
    EXPECT_EQ(ContentOf(folder / "a.zst", capacity), text + "second");
  }
  EXPECT_EQ(ContentOf(folder / "empty.gz"), "");
}

}  // namespace
}  // namespace fsdprun::worker
