// Our reader against the official safetensors package (safetensors_oracle.py): what the package
// refuses, ours refuses; what it accepts, ours reads to the same bytes, or is one of the listed
// places where ours is stricter.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "formats/safetensors/safetensors.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using Document = nlohmann::json;

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

/// What the reader makes of a file, in the oracle's form; a refusal is a string.
Document View(const std::filesystem::path& path) {
  try {
    const SafetensorsFile file(path);
    Document tensors = Document::object();
    for (const auto& [name, entry] : file.header().tensors) {
      std::string data(static_cast<size_t>(entry.end - entry.begin), '\0');
      file.Read(entry.begin, entry.end - entry.begin, data.data());
      tensors[name] = {entry.dtype, entry.shape, ToHex(data)};
    }
    return {{"tensors", tensors}, {"metadata", Document(file.header().metadata)}};
  } catch (const ConfigError& error) {
    return error.what();
  }
}

bool Contains(const Document& refusal, const std::string& part) {
  return refusal.get<std::string>().find(part) != std::string::npos;
}

/// A refusal without the names and numbers of the file.
std::string Reason(const Document& refusal) {
  static const std::regex kDetail("\"[^\"]*\"|'[^']*'|[0-9]+");
  return refusal.is_string() ? std::regex_replace(refusal.get<std::string>(), kDetail, "_")
                             : std::string();
}

class SafetensorsOracleTest : public testing::Test {
 protected:
  SafetensorsOracleTest() { std::filesystem::create_directories(folder_); }
  ~SafetensorsOracleTest() override { RemoveFolder(folder_); }

  void SetUp() override {
    const char* python = std::getenv("FSDPRUN_PYTHON");
    if (python == nullptr) {
      GTEST_SKIP() << "needs FSDPRUN_PYTHON (ctest sets it after scripts/setup)";
    }
    const char* script = std::getenv("FSDPRUN_SAFETENSORS_ORACLE");
    ASSERT_NE(script, nullptr) << "run through ctest";
    const std::string output = folder_ / "cases.json";
    const std::string command = std::string(python) + " " + script + " " + output;
    ASSERT_EQ(std::system(command.c_str()), 0)
        << command << "\nIt needs the packages of scripts/test-requirements.txt.";
    std::ifstream(output) >> cases_;
    for (const Document& entry : cases_) {
      if (entry["stricter"].is_string()) {
        stricter_.insert(Reason(ViewOf(entry)));
      }
    }
  }

  Document ViewOf(const Document& entry) {
    const std::filesystem::path path = folder_ / "file";
    std::filesystem::remove(path);  // a file that is truncated instead is flushed to the disk
    std::ofstream(path, std::ios::binary) << FromHex(entry["file"]);
    return View(path);
  }

  Document cases_;
  std::set<std::string> stricter_;  // our reasons in the listed places

 private:
  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) /
                                        ("safetensors_oracle_" + std::to_string(getpid()));
};

TEST_F(SafetensorsOracleTest, AgreesWithTheOfficialPackage) {
  int equal = 0, refused_by_both = 0, stricter = 0;
  for (const Document& entry : cases_) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const Document& official = entry["official"];
    const Document ours = ViewOf(entry);
    if (entry["stricter"].is_string()) {
      EXPECT_TRUE(ours.is_string() && Contains(ours, entry["stricter"])) << ours;
    } else if (official.is_null()) {
      EXPECT_TRUE(ours.is_string()) << "the package refuses it, ours reads " << ours;
      ++refused_by_both;
    } else if (ours.is_string()) {
      EXPECT_TRUE(entry["name"].get<std::string>().starts_with("mutant"));
      EXPECT_TRUE(stricter_.contains(Reason(ours)))
          << ours << " and the package reads " << official;
      ++stricter;
    } else {
      EXPECT_EQ(ours, official);
      ++equal;
    }
  }
  // The random changes must reach both verdicts, else they show nothing.
  EXPECT_GT(equal, 150);
  EXPECT_GT(refused_by_both, 1000);
  EXPECT_LT(stricter, equal);
}

}  // namespace
}  // namespace fsdprun
