#include "agent/process/error_file_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fsdprun {
namespace {

class ErrorFileReaderTest : public testing::Test {
 protected:
  ErrorFileReaderTest()
      : path_(testing::TempDir() + "error_reader_" + std::to_string(::getpid())) {}
  ~ErrorFileReaderTest() override { std::filesystem::remove(path_); }
  ErrorFileResult Read(const std::string& text) {
    std::ofstream(path_, std::ios::trunc | std::ios::binary) << text;
    return ReadErrorFile(path_);
  }
  const std::string path_;
};

TEST_F(ErrorFileReaderTest, ReadsTheNestedFormat) {
  const auto result = Read(
      R"({"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "frames", "timestamp": "1700000000"}}})");
  ASSERT_TRUE(result.error.has_value()) << result.problem;
  EXPECT_EQ(result.error->message, "RuntimeError: x");
  EXPECT_EQ(result.error->stack, "frames");
  EXPECT_EQ(result.error->timestamp_s, 1'700'000'000);
}

TEST_F(ErrorFileReaderTest, ReadsThePlainFormatsAndMissingExtras) {
  for (const char* timestamp : {"10", "\"10\"", "10.5"}) {
    const auto plain = Read(std::string(R"({"message":"hello","timestamp":)") + timestamp + "}");
    ASSERT_TRUE(plain.error.has_value());
    EXPECT_EQ(plain.error->message, "hello");
    EXPECT_EQ(plain.error->stack, "hello");
    EXPECT_EQ(plain.error->timestamp_s, 10);
  }
  const auto bare = Read(R"({"message":{"message":"x"}})");
  ASSERT_TRUE(bare.error.has_value());
  EXPECT_FALSE(bare.error->timestamp_s.has_value());
}

TEST_F(ErrorFileReaderTest, AgeIsThatOfTheLastWriteAndNeverNegative) {
  const auto age_if_written = [this](std::chrono::seconds ago) {
    Read(R"({"message": "hello"})");
    std::filesystem::last_write_time(path_, std::filesystem::file_time_type::clock::now() - ago);
    return ReadErrorFile(path_).error.value().age;
  };
  EXPECT_GE(age_if_written(std::chrono::seconds(100)), std::chrono::seconds(100));
  EXPECT_EQ(age_if_written(std::chrono::seconds(-100)), std::chrono::seconds(0));
}

TEST_F(ErrorFileReaderTest, BrokenFilesGiveAReason) {
  EXPECT_THAT(Read("").problem, testing::HasSubstr("empty"));
  EXPECT_THAT(Read(R"({"message": {"mess)").problem, testing::HasSubstr("not valid JSON"));
  for (const char* text : {"{}", "[]", "3", "null", R"({"message":5})", R"({"message":{}})"}) {
    EXPECT_THAT(Read(text).problem, testing::HasSubstr("no message")) << text;
  }
  EXPECT_THAT(Read(std::string(kMaxErrorFileBytes + 1, ' ')).problem,
              testing::HasSubstr("too large"));
  // So deep that a parser that calls itself for each level would end the process.
  EXPECT_THAT(Read(std::string(200'000, '[')).problem, testing::HasSubstr("not valid JSON"));
}

TEST_F(ErrorFileReaderTest, MissingFilesFoldersAndPipesGiveAReason) {
  EXPECT_EQ(ReadErrorFile(path_).problem, kErrorFileNotWritten);
  EXPECT_EQ(ReadErrorFile("/dev/null/no folder").problem, kErrorFileNotWritten);
  EXPECT_EQ(ReadErrorFile("").problem, "no error file was requested");
  EXPECT_THAT(ReadErrorFile("/tmp").problem, testing::HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(ReadErrorFile(path_).problem, testing::HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace fsdprun
