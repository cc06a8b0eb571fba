#include "worker/config/tokenize_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/config/command_line.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TokenizeRequest ParsedRequest(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "tokenize");
  const CommandLine line = ParseCommandLine(arguments);
  EXPECT_EQ(line.command, Command::kTokenize);
  return line.tokenize;
}

TEST(TokenizeOptionsTest, WrongValuesAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--threads", "many"}, "--threads many: expected an integer >= 0"},
      {{"--threads=-1"}, "--threads -1: expected an integer >= 0"},
      {{"--shard-tokens", "1e6"}, "--shard-tokens 1e6: expected an integer >= 0"},
      {{"--tokenizer"}, "--tokenizer: expected \"bytes\", a tokenizer.json"},
      {{"--force=yes"}, "--force=yes: expected no value"},
      {{"--nothing"}, "--nothing: expected a known argument (see fsdp-train tokenize --help)"},
  };
  for (const auto& [arguments, complaint] : cases) {
    try {
      ParsedRequest(arguments);
      ADD_FAILURE() << arguments.front();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(complaint));
    }
  }
}

TEST(TokenizeOptionsTest, EveryOptionIsTaken) {
  const TokenizeRequest request = ParsedRequest({"a.txt",
                                                 "--tokenizer",
                                                 "t.json",
                                                 "--output=out",
                                                 "--format",
                                                 "raw",
                                                 "--input-format",
                                                 "lines",
                                                 "--text-key",
                                                 "body",
                                                 "--threads",
                                                 "3",
                                                 "--append-document-end",
                                                 "--document-end",
                                                 "</s>",
                                                 "--add-special-tokens",
                                                 "--shard-tokens",
                                                 "100",
                                                 "--replace-invalid-utf8",
                                                 "--skip-bad-lines",
                                                 "--force",
                                                 "b.txt"});
  EXPECT_EQ(request.tokenizer, "t.json");
  EXPECT_EQ(request.output, "out");
  EXPECT_EQ(request.format, "raw");
  EXPECT_EQ(request.input_format, "lines");
  EXPECT_EQ(request.text_key, "body");
  EXPECT_EQ(request.threads, 3);
  EXPECT_EQ(request.appends_document_end, true);
  EXPECT_EQ(request.document_end, "</s>");
  EXPECT_TRUE(request.adds_special_tokens);
  EXPECT_EQ(request.shard_tokens, 100);
  EXPECT_TRUE(request.replaces_invalid_utf8);
  EXPECT_TRUE(request.skips_bad_lines);
  EXPECT_TRUE(request.is_forced);
  EXPECT_THAT(request.inputs, ElementsAre("a.txt", "b.txt"));
}

TEST(TokenizeOptionsTest, WhatIsNotSaidHasADefault) {
  const TokenizeRequest request = ParsedRequest({"--no-append-document-end"});
  EXPECT_EQ(request.format, "llmc");
  EXPECT_EQ(request.input_format, "auto");
  EXPECT_EQ(request.text_key, "text");
  EXPECT_EQ(request.threads, 0);
  EXPECT_EQ(request.appends_document_end, false);
  EXPECT_FALSE(request.is_forced);
  EXPECT_THAT(request.inputs, IsEmpty());
  EXPECT_EQ(ParsedRequest({"a"}).appends_document_end, std::nullopt);
}

TEST(TokenizeOptionsTest, HelpNamesThem) {
  const CommandLine line = ParseCommandLine({"tokenize", "--help"});
  EXPECT_EQ(line.command, Command::kHelp);
  for (const char* word : {"--tokenizer FILE", "--shard-tokens N", "INPUT", "docs/DATA.md"}) {
    EXPECT_THAT(line.help, HasSubstr(word));
  }
}

}  // namespace
}  // namespace fsdprun::worker
