#include "fsdpctl/slurm/shell_quote.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

// What bash makes of the words, each with a newline and a mark behind it.
std::vector<std::string> ReadByBash(const std::vector<std::string>& words) {
  std::string command = "printf '%s\\0'";
  for (const std::string& word : words) {
    absl::StrAppend(&command, " ", ShellQuoted(word));
  }
  const std::string call = absl::StrCat("exec bash --norc -c '", "eval \"$TEXT\"", "'");
  ::setenv("TEXT", command.c_str(), 1);
  FILE* pipe = ::popen(call.c_str(), "r");
  std::string output;
  char piece[4096];
  for (size_t n = 1; n > 0;) {
    n = ::fread(piece, 1, sizeof(piece), pipe);
    output.append(piece, n);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  std::vector<std::string> read = absl::StrSplit(output, '\0');
  read.pop_back();
  return read;
}

TEST(ShellQuoteTest, PlainWordsStayAsTheyAre) {
  EXPECT_EQ(ShellQuoted("--nnodes=2:4"), "--nnodes=2:4");
  EXPECT_EQ(ShellQuoted("/a/b_c.py,+%@"), "/a/b_c.py,+%@");
}

TEST(ShellQuoteTest, OthersAreQuotedOnOneLine) {
  EXPECT_EQ(ShellQuoted(""), "''");
  EXPECT_EQ(ShellQuoted("a b"), "'a b'");
  EXPECT_EQ(ShellQuoted("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuoted("$(x) `y` \"z\" \\"), "'$(x) `y` \"z\" \\'");
  EXPECT_EQ(ShellQuoted("a\n#SBATCH --x"), "$'a\\012#SBATCH --x'");
  EXPECT_EQ(ShellQuoted("\r\n'\\\xff"
                        "7"),
            "$'\\015\\012\\'\\\\\\3777'");
  EXPECT_EQ(ShellQuoted("~"), "'~'");
}

TEST(ShellQuoteTest, BashReadsBackWhatWasQuoted) {
  std::vector<std::string> words{"",
                                 " ",
                                 "'",
                                 "\"",
                                 "\\",
                                 "\\'",
                                 "'\\''",
                                 "$HOME",
                                 "${x}",
                                 "$$",
                                 "`a`",
                                 "a\nb",
                                 "\n",
                                 "a\r\nb",
                                 "!",
                                 "*",
                                 "~",
                                 "{a,b}",
                                 "#",
                                 "a=b",
                                 "-",
                                 "--",
                                 "\t",
                                 "\x7f",
                                 "\x01"
                                 "1",
                                 "\xc3\xa4",
                                 "\xff\xfe",
                                 "\x80\n\x81"
                                 "8",
                                 ";",
                                 "&",
                                 "|",
                                 "<(a)",
                                 "$'a'"};
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string word;
    for (unsigned n = random() % 12; n > 0; --n) {
      word.push_back(static_cast<char>(1 + random() % 255));
    }
    words.push_back(word);
  }
  EXPECT_EQ(ReadByBash(words), words);
}

TEST(ShellQuoteTest, DirectivesAreQuotedAsSbatchReadsThem) {
  EXPECT_EQ(DirectiveQuoted("gpu:8"), "gpu:8");
  EXPECT_EQ(DirectiveQuoted("a b#c"), "\"a b#c\"");
  EXPECT_EQ(DirectiveQuoted("say \"a\\b\""), "\"say \\\"a\\\\b\\\"\"");
}

TEST(ShellQuoteTest, WhatNoLineCanHoldIsNoDirective) {
  EXPECT_TRUE(IsDirectiveValue("a b"));
  EXPECT_FALSE(IsDirectiveValue("a\nb"));
  EXPECT_FALSE(IsDirectiveValue("a\rb"));
  EXPECT_FALSE(IsDirectiveValue(std::string(9000, 'a')));
}

}  // namespace
}  // namespace fsdprun
