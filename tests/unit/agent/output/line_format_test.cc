#include "agent/output/line_format.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun {
namespace {

std::string InPieces(LineFormat format, absl::string_view bytes, size_t piece) {
  std::string lines;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    lines += format.Take(bytes.substr(0, piece));
  }
  return lines + format.TakeRest();
}

void ExpectHoweverCut(const LineFormat& format, const std::string& bytes,
                      const std::string& expected) {
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_EQ(InPieces(format, bytes, piece), expected) << "in pieces of " << piece;
  }
}

TEST(LineFormatTest, PlainLinesAreTheWorkersBytes) {
  const std::string bytes = "a\r\n\xFF\r 10%\r 20%\n\nlast";
  ExpectHoweverCut(LineFormat::Plain(), bytes, bytes);
  LineFormat format = LineFormat::Plain();
  EXPECT_EQ(format.Take("one\ntw"), "one\n");
  EXPECT_EQ(format.Take("o\r"), "two\r");
  EXPECT_EQ(format.TakeRest(), "");
}

// Compared with tail_logfile() of torchrun, except that the empty piece before a lone carriage
// return is left out.
TEST(LineFormatTest, PrefixedLinesHaveOnePrefixEach) {
  ExpectHoweverCut(LineFormat::Prefixed("P:"), "a\r\nb\r\rc\n\r\nx\r\r\ny\n\rz",
                   "P:a\nP:b\nP:c\nP:\nP:x\nP:\nP:y\nP:z\n");
  ExpectHoweverCut(LineFormat::Prefixed("P:"), "\r 10%\r 20%\r\n", "P: 10%\nP: 20%\n");
  ExpectHoweverCut(LineFormat::Prefixed("P:"), "\n\nend\n", "P:\nP:\nP:end\n");
}

TEST(LineFormatTest, PrefixedLinesAreText) {
  ExpectHoweverCut(LineFormat::Prefixed("P:"),
                   "y\xFF\xFE\xE2\x82\n\xF0\x9F\x98\x80\xED\xA0\x80\xF5\n\xE2\x82"
                   "a\n",
                   "P:y\uFFFD\uFFFD\uFFFD\nP:\U0001F600\uFFFD\uFFFD\uFFFD\uFFFD\nP:\uFFFDa\n");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xF4\x90\x80\x80\xE0\x80"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\u00E9\u20AC"), "\u00E9\u20AC");
}

TEST(LineFormatTest, ALongLineHasOnePrefixUpToTheLimit) {
  LineFormat format = LineFormat::Prefixed("P:");
  std::string lines;
  for (size_t i = 0; i < LineFormat::kMaxLineBytes / 1024; ++i) {
    lines += format.Take(std::string(1024, 'x'));
  }
  EXPECT_EQ(lines, "");
  lines = format.Take("y\n");
  EXPECT_EQ(lines.size(), LineFormat::kMaxLineBytes + 4);

  // Bounded beyond it.
  lines = format.Take(std::string(LineFormat::kMaxLineBytes + 1, 'x'));
  EXPECT_EQ(lines.size(), LineFormat::kMaxLineBytes + 4);
  EXPECT_EQ(format.Take("rest\n"), "P:rest\n");
}

TEST(LineFormatTest, OnlyWantedLines) {
  // The prefix is not searched.
  ExpectHoweverCut(LineFormat::Prefixed("[foo0]:", {"foo,bar", "baz"}), "foo\nfoo,bar0\nbar\n\nbaz",
                   "[foo0]:foo,bar0\n[foo0]:baz\n");
}

TEST(LineFormatTest, PrefixOfTorchrun) {
  OutputOptions options;
  EXPECT_EQ(LinePrefix(options, "default", 5, 1), "[default1]:");
  options.prefix_template = "[${role_name}-$local_rank:${rank}] $$ $other ";
  EXPECT_EQ(LinePrefix(options, "trainer", 5, 1), "[trainer-1:5] $ $other ");
}

}  // namespace
}  // namespace fsdprun
