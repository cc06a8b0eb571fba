#include "worker/tokenize/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "formats/tokens/llmc_header.h"
#include "formats/tokens/token_file_info.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"
#include "tests/unit/worker/tokenizers/small_tokenizer.h"
#include "worker/tokenize/tokenize_progress.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TokenizeTest : public testing::Test {
 protected:
  TokenizeTest() {
    std::ofstream(folder_ / "t.json") << SmallTokenizer().dump();
    std::ofstream(folder_ / "in.txt") << "hello wo";
    std::ofstream(folder_ / "in.jsonl") << "{\"text\": \"hell\"}\n{\"text\": \"\\u0000\"}\n";
    std::filesystem::create_directory(folder_ / "out");
    request_.tokenizer = folder_ / "t.json";
    request_.output = folder_ / "out/a";
    request_.threads = 2;
    request_.inputs = {folder_ / "in.txt", folder_ / "in.jsonl"};
  }

  TokenizeResult Run() {
    TokenizeProgress progress(stderr);
    return Tokenize(request_, progress);
  }
  template <class Error = ConfigError>
  std::string Refusal() {
    std::string message = MessageOf<Error>([&] { Run(); });
    EXPECT_THAT(NamesOf(folder_ / "out"), IsEmpty());
    return message;
  }
  std::vector<uint16_t> Ids16(const std::string& name, size_t header_bytes) const {
    const std::string content = Content(folder_ / name);
    std::vector<uint16_t> ids((content.size() - header_bytes) / 2);
    std::memcpy(ids.data(), content.data() + header_bytes, 2 * ids.size());
    return ids;
  }

  TemporaryDirectory folder_{MemoryDirectory()};
  TokenizeRequest request_;
};

TEST_F(TokenizeTest, WrongArgumentsAreNamed) {
  const TokenizeRequest good = request_;
  const auto refusal = [&](auto change) {
    request_ = good;
    change(request_);
    return Refusal();
  };
  using Request = TokenizeRequest;
  EXPECT_THAT(refusal([](Request& r) { r.inputs.clear(); }), HasSubstr("no input"));
  EXPECT_THAT(refusal([](Request& r) { r.output = ""; }), HasSubstr("--output"));
  EXPECT_THAT(refusal([](Request& r) { r.output += "/"; }), HasSubstr("--output"));
  EXPECT_THAT(refusal([](Request& r) { r.format = "npy"; }),
              HasSubstr("--format npy: expected one of llmc, megatron, raw"));
  EXPECT_THAT(refusal([](Request& r) { r.input_format = "csv"; }),
              HasSubstr("--input-format csv: expected one of auto, text, lines, jsonl"));
  EXPECT_THAT(refusal([](Request& r) { r.threads = -1; }), HasSubstr("--threads -1"));
  EXPECT_THAT(refusal([](Request& r) { r.shard_tokens = -1; }), HasSubstr("--shard-tokens -1"));
  EXPECT_THAT(refusal([](Request& r) {
                r.shard_tokens = 5;
                r.format = "megatron";
              }),
              HasSubstr("--shard-tokens: not with --format megatron"));
  EXPECT_THAT(refusal([](Request& r) { r.shard_tokens = 2'147'483'648; }),
              HasSubstr("--shard-tokens 2147483648: expected at most 2147483647 with"));
  EXPECT_THAT(refusal([](Request& r) { r.document_end = "<none>"; }),
              HasSubstr("--document-end <none>: expected a token of"));
  EXPECT_THAT(refusal([](Request& r) {
                r.tokenizer = "bytes";
                r.appends_document_end = true;
              }),
              HasSubstr("--append-document-end: bytes has no token"));
  EXPECT_THAT(refusal([](Request& r) { r.tokenizer = "none.json"; }), HasSubstr("none.json"));
}

TEST_F(TokenizeTest, ABadInputLeavesNothing) {
  std::ofstream(folder_ / "bad.jsonl") << "{\"text\": \"a\"}\n{\"text\": 1}\n{";
  request_.inputs.push_back(folder_ / "bad.jsonl");
  EXPECT_THAT(Refusal(), HasSubstr(folder_ / "bad.jsonl:2: text = 1: expected a text"));
  std::ofstream(folder_ / "bad.txt") << "abc\xff";
  request_.inputs = {folder_ / "bad.txt"};
  EXPECT_THAT(Refusal(), HasSubstr("cannot tokenize " + folder_ / "bad.txt: byte 3 is not UTF-8"));
  std::ofstream(folder_ / "empty.txt");
  request_.inputs = {folder_ / "empty.txt"};
  EXPECT_THAT(Refusal(), HasSubstr("there is no text in it; nothing was written"));
  request_.inputs = {folder_ / "none.txt"};
  EXPECT_THAT(Refusal(), HasSubstr("No such file"));
}

TEST_F(TokenizeTest, BadLinesAreSkippedWhereThatIsAsked) {
  std::ofstream(folder_ / "bad.jsonl") << "{\"text\": \"hell\"}\n{\"text\": 1}\n{";
  request_.inputs = {folder_ / "bad.jsonl"};
  request_.skips_bad_lines = true;
  const TokenizeResult result = Run();
  EXPECT_EQ(result.documents, 1);
  EXPECT_EQ(result.skipped_lines, 2);
  EXPECT_THAT(result.first_skipped, HasSubstr("bad.jsonl:2: text = 1: expected a text"));
}

TEST_F(TokenizeTest, WhatIsThereIsKeptUnlessForced) {
  std::ofstream(folder_ / "out/a.bin") << "old";
  EXPECT_THAT(MessageOf<fsdp::archive::Error>([&] { Run(); }), HasSubstr("--force"));
  EXPECT_EQ(Content(folder_ / "out/a.bin"), "old");
  EXPECT_THAT(NamesOf(folder_ / "out"), ElementsAre("a.bin"));
  request_.is_forced = true;
  Run();
  EXPECT_THAT(NamesOf(folder_ / "out"), ElementsAre("a.bin", "a.bin.json"));
}

TEST_F(TokenizeTest, ADescriptionThatIsThereKeepsAllFromBeingWritten) {
  std::ofstream(folder_ / "out/a.bin.json") << "old";
  EXPECT_THAT(MessageOf<fsdp::archive::Error>([&] { Run(); }), HasSubstr("a.bin.json"));
  EXPECT_THAT(NamesOf(folder_ / "out"), ElementsAre("a.bin.json"));
}

TEST_F(TokenizeTest, AFullDiskLeavesNothing) {
  // A file of more than that cannot be written, as on a disk without room.
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::ofstream(folder_ / "large.txt") << std::string(4'000'000, 'x');
  request_.inputs = {folder_ / "large.txt"};
  struct rlimit small = before;
  small.rlim_cur = 3'000'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THAT(Refusal<fsdp::archive::Error>(),
              AllOf(HasSubstr(folder_ / "out/a.bin"), HasSubstr("File too large")));
  setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(TokenizeTest, FilesOfLlmcHaveHeaderIdsAndDescription) {
  const TokenizeResult result = Run();
  EXPECT_THAT(result.files, ElementsAre(folder_ / "out/a.bin"));
  EXPECT_EQ(result.documents, 3);
  EXPECT_EQ(result.state.tokens, 8);
  EXPECT_EQ(result.state.bytes_read, result.state.total_bytes);
  const std::string content = Content(folder_ / "out/a.bin");
  const LlmcHeader header =
      ParseLlmcHeader(content.substr(0, static_cast<size_t>(kLlmcHeaderBytes)),
                      static_cast<int64_t>(content.size()), "a.bin");
  EXPECT_EQ(header.tokens, 8);
  EXPECT_EQ(header.dtype, TokenDtype::kUint16);
  EXPECT_THAT(Ids16("out/a.bin", static_cast<size_t>(kLlmcHeaderBytes)),
              ElementsAre(259, 260, 'o', 261, 258, 261, 0, 261));
  const TokenFileInfo info = ReadTokenFileInfo(folder_ / "out/a.bin.json");
  EXPECT_EQ(info.tokens, 8);
  EXPECT_EQ(info.vocab_size, 262);
  EXPECT_EQ(info.document_end, 261);
  EXPECT_EQ(info.tokenizer.kind, "tokenizer.json");
  EXPECT_EQ(info.sources, request_.inputs);
}

TEST_F(TokenizeTest, ShardsAreAsLongAsTheyMay) {
  request_.format = "raw";
  request_.shard_tokens = 3;
  request_.appends_document_end = false;
  EXPECT_THAT(Run().files, ElementsAre(folder_ / "out/a_000001.bin", folder_ / "out/a_000002.bin"));
  EXPECT_THAT(Ids16("out/a_000001.bin", 0), ElementsAre(259, 260, 'o'));
  EXPECT_THAT(Ids16("out/a_000002.bin", 0), ElementsAre(258, 0));
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "out/a_000002.bin.json").tokens, 2);
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "out/a_000002.bin.json").document_end, std::nullopt);
}

TEST_F(TokenizeTest, TheNumberOfThreadsChangesNothing) {
  std::ofstream lines(folder_ / "many.txt");
  for (int i = 0; i < 60'000; ++i) {
    lines << "hello " << i << "\n";
  }
  lines.close();
  request_.inputs = {folder_ / "many.txt"};
  request_.input_format = "lines";
  request_.format = "megatron";
  std::vector<std::string> contents;
  for (const int threads : {1, 3}) {
    request_.threads = threads;
    request_.is_forced = true;
    EXPECT_EQ(Run().documents, 60'000);
    contents.push_back(Content(folder_ / "out/a.bin") + Content(folder_ / "out/a.idx"));
  }
  EXPECT_EQ(contents[0], contents[1]);
}

TEST_F(TokenizeTest, ATokenThatEndsDocumentsCanBeNamed) {
  request_.tokenizer = "bytes";
  request_.document_end = "\n";
  request_.format = "raw";
  request_.inputs = {folder_ / "in.txt"};
  Run();
  EXPECT_EQ(Ids16("out/a.bin", 0).back(), '\n');
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "out/a.bin.json").document_end, '\n');
}

TEST(TokenizeSummaryTest, WhatWasLeftOutIsSaid) {
  TokenizeResult result;
  result.files = {"a_000001.bin", "a_000002.bin"};
  result.documents = 1234;
  result.state.tokens = 5'000'000;
  EXPECT_EQ(TokenizeSummary(result),
            "wrote 5,000,000 tokens of 1,234 documents to a_000001.bin and 1 more in 0.0 s");
  result.empty_documents = 2;
  result.replaced_documents = 3;
  result.skipped_lines = 4;
  result.first_skipped = "in:8: no";
  EXPECT_THAT(TokenizeSummary(result),
              HasSubstr("; 2 documents without text were left out; 3 documents have U+FFFD in "
                        "place of what is no text; 4 lines were skipped, the first: in:8: no"));
}

TEST(TokenizeProgressTest, ALogGetsALineNowAndThen) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const log = open_memstream(&text, &size);
  TokenizeState state{1000, 420, 999, 0};
  {
    TokenizeProgress often(log, std::chrono::milliseconds(0));
    often.Update(state);
    TokenizeProgress rare(log);
    rare.Update(state);
  }
  std::fclose(log);
  EXPECT_THAT(std::string(text, size), testing::MatchesRegex("fsdp-train: 42 %, 999 tokens.*\n"));
  std::free(text);
}

TEST(TokenizeProgressTest, WhatIsKnownIsShown) {
  EXPECT_EQ(FormatTokenizeState({1000, 420, 12'345'678, 2}),
            "42 %, 12,345,678 tokens, 6,172,839 tokens/s");
  EXPECT_EQ(FormatTokenizeState({0, 420, 999, 0}), "999 tokens");
  EXPECT_EQ(FormatTokenizeState({100, 120, 1000, 0}), "100 %, 1,000 tokens");
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(1'000'000), "1,000,000");
}

}  // namespace
}  // namespace fsdprun::worker
