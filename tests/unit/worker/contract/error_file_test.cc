#include "worker/contract/error_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun::worker {
namespace {

class ErrorFileTest : public testing::Test {
 protected:
  ErrorFileTest() : folder_(testing::TempDir() + "error_file_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ErrorFileTest() override { RemoveFolder(folder_); }
  const std::string folder_;
};

TEST_F(ErrorFileTest, WritesTorchelasticsSchemaAndLeavesNoTemporary) {
  const std::string path = folder_ + "/error.json";
  EXPECT_EQ(WriteErrorFile(path, "RuntimeError", "bad \xff byte \"quoted\"", "frame 1\nframe 2"),
            "");
  std::ifstream in(path);
  const auto file = nlohmann::json::parse(in);
  EXPECT_THAT(file["message"]["message"].get<std::string>(),
              testing::StartsWith("RuntimeError: bad "));
  EXPECT_EQ(file["message"]["extraInfo"]["py_callstack"], "frame 1\nframe 2");
  EXPECT_GT(std::stoll(file["message"]["extraInfo"]["timestamp"].get<std::string>()),
            1'600'000'000);
  const auto count = std::distance(std::filesystem::directory_iterator(folder_), {});
  EXPECT_EQ(count, 1);
}

TEST_F(ErrorFileTest, ReplacesAnOlderFile) {
  const std::string path = folder_ + "/error.json";
  EXPECT_EQ(WriteErrorFile(path, "A", "first", ""), "");
  EXPECT_EQ(WriteErrorFile(path, "B", "second", ""), "");
  std::ifstream in(path);
  EXPECT_EQ(nlohmann::json::parse(in)["message"]["message"], "B: second");
}

TEST_F(ErrorFileTest, SaysWhatFailedAndWhere) {
  EXPECT_THAT(WriteErrorFile(folder_ + "/none/error.json", "A", "b", ""),
              testing::HasSubstr(folder_ + "/none"));
  std::filesystem::create_directory(folder_ + "/taken");
  EXPECT_THAT(WriteErrorFile(folder_ + "/taken", "A", "b", ""), testing::HasSubstr("rename to"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_EQ(WriteErrorFile("", "A", "b", ""), "");
}

}  // namespace
}  // namespace fsdprun::worker
