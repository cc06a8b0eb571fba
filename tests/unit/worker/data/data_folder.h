#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/base/remove_folder.h"
#include "tests/unit/formats/tokens/token_bytes.h"
#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// A test with a folder for data files.
class DataFolderTest : public testing::Test {
 protected:
  DataFolderTest() {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("data_" + std::to_string(getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~DataFolderTest() override { RemoveFolder(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }
  /// NAME.bin and NAME.idx, of uint16; returns the path of the first.
  std::string WriteMegatron(const std::string& name, const std::vector<uint16_t>& tokens,
                            const std::vector<int32_t>& lengths) const {
    std::vector<int64_t> documents;
    for (size_t i = 0; i <= lengths.size(); ++i) {
      documents.push_back(static_cast<int64_t>(i));
    }
    Write(name + ".idx", MegatronIndexFile(8, 2, lengths, documents));
    return Write(name + ".bin", StoredList(tokens));
  }
  /// NAME.bin.json beside NAME.bin.
  void WriteInfo(const std::string& name, const TokenFileInfo& info) const {
    Write(name + ".bin.json", FormatTokenFileInfo(info));
  }

  static std::vector<int64_t> Copy(const TokenStream& stream, int64_t begin, int64_t count) {
    std::vector<int64_t> tokens(static_cast<size_t>(count));
    stream.CopyTokens(begin, count, tokens.data());
    return tokens;
  }
  static std::vector<int64_t> CopyAll(const TokenStream& stream) {
    return Copy(stream, 0, stream.size());
  }

  std::filesystem::path folder_;
};

/// A stream of these tokens, in a file of uint16.
inline std::shared_ptr<const TokenStream> StreamOf(const std::string& path,
                                                   const std::vector<uint16_t>& tokens,
                                                   TokenFacts facts) {
  std::ofstream(path, std::ios::binary) << StoredList(tokens);
  const TokenPart part{std::make_shared<const DataFile>(path), TokenDtype::kUint16, 0,
                       static_cast<int64_t>(tokens.size())};
  facts.is_text = false;
  return std::make_shared<const TokenStream>(std::vector<TokenPart>{part}, std::move(facts));
}

}  // namespace fsdprun::worker
