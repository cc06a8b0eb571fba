#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "formats/json/strict_json.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/tokenize/compressed.h"
#include "tests/unit/worker/tokenizers/small_tokenizer.h"
#include "worker/tokenize/document_reader.h"
#include "worker/tokenize/encode_documents.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// "source:line=text" of all documents.
std::vector<std::string> DocumentsOf(const std::vector<std::string>& paths, InputFormat format) {
  ReadOptions options;
  options.format = format;
  DocumentReader reader(paths, options);
  std::vector<std::string> all;
  RawDocuments documents;
  while (reader.Next(documents)) {
    int64_t line = documents.first_line;
    for (const std::string& text : documents.texts) {
      const std::string name = documents.source.substr(documents.source.rfind('/') + 1);
      all.push_back(name + ":" + std::to_string(line++) + "=" + text);
    }
  }
  EXPECT_EQ(reader.bytes_read(), reader.total_bytes());
  return all;
}

TEST(DocumentReaderTest, NamesSayWhatIsInAFile) {
  EXPECT_EQ(FormatOfName("a.jsonl"), InputFormat::kJsonl);
  EXPECT_EQ(FormatOfName("a.ndjson.gz"), InputFormat::kJsonl);
  EXPECT_EQ(FormatOfName("a.jsonl.zst"), InputFormat::kJsonl);
  EXPECT_EQ(FormatOfName("a.txt.gz"), InputFormat::kText);
  EXPECT_EQ(FormatOfName("jsonl"), InputFormat::kText);
}

TEST(DocumentReaderTest, WhatLooksLikeJsonIsNotTakenForText) {
  const TemporaryDirectory folder(MemoryDirectory());
  const std::string line = "\n {\"text\": \"a\"}\n";
  std::ofstream(folder / "a.json.gz", std::ios::binary) << Gzipped(line);
  std::ofstream(folder / "b.json.zst", std::ios::binary) << Zstandard(line);
  std::ofstream(folder / "c.json") << "[]";
  std::ofstream(folder / "d") << line;
  std::ofstream(folder / "e.txt.gz", std::ios::binary) << Gzipped(line);
  std::ofstream(folder / "good.txt") << "text";
  for (const std::string name : {"a.json.gz", "b.json.zst", "c.json", "d", "e.txt.gz"}) {
    // At once, whatever comes before it.
    EXPECT_THAT(MessageOf<ConfigError>([&] {
                  DocumentReader({folder / "good.txt", folder / name}, ReadOptions());
                }),
                AllOf(HasSubstr(folder / name), HasSubstr("--input-format jsonl")));
    EXPECT_EQ(DocumentsOf({folder / name}, InputFormat::kText).size(), 1U);
    EXPECT_GE(DocumentsOf({folder / name}, InputFormat::kJsonl).size(), 1U);
  }
}

TEST(DocumentReaderTest, APipeThatBringsJsonIsNotTakenForText) {
  const TemporaryDirectory folder(MemoryDirectory());
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(folder / "pipe") << "{}"; });
  DocumentReader reader({folder / "pipe"}, ReadOptions());
  RawDocuments documents;
  EXPECT_THAT(MessageOf<ConfigError>([&] { reader.Next(documents); }), HasSubstr("begins with {"));
  writer.join();
}

TEST(DocumentReaderTest, FilesAndLinesComeInOrder) {
  const TemporaryDirectory folder(MemoryDirectory());
  std::ofstream(folder / "a.txt") << "one\ntwo\n";
  std::ofstream(folder / "b.jsonl") << "{1}\r\n\n{2}";
  std::ofstream(folder / "c.txt.gz", std::ios::binary) << Gzipped("three");
  std::ofstream(folder / "d.txt");
  const std::vector<std::string> paths = {folder / "a.txt", folder / "b.jsonl", folder / "c.txt.gz",
                                          folder / "d.txt"};
  EXPECT_THAT(DocumentsOf(paths, InputFormat::kByName),
              ElementsAre("a.txt:1=one\ntwo\n", "b.jsonl:1={1}", "b.jsonl:2=", "b.jsonl:3={2}",
                          "c.txt.gz:1=three", "d.txt:1="));
  EXPECT_THAT(DocumentsOf(paths, InputFormat::kLines),
              ElementsAre("a.txt:1=one", "a.txt:2=two", "b.jsonl:1={1}",
                          "b.jsonl:2=", "b.jsonl:3={2}", "c.txt.gz:1=three"));
}

TEST(DocumentReaderTest, LinesThatAreLongerThanAReadAreWhole) {
  const TemporaryDirectory folder(MemoryDirectory());
  const std::string long_line(3'000'000, 'x');
  std::ofstream(folder / "a.txt") << "first\n" << long_line << "\nlast\n";
  EXPECT_THAT(DocumentsOf({folder / "a.txt"}, InputFormat::kLines),
              ElementsAre("a.txt:1=first", "a.txt:2=" + long_line, "a.txt:3=last"));
}

RawDocuments Lines(InputFormat format, std::vector<std::string> texts) {
  RawDocuments documents;
  documents.source = "in.jsonl";
  documents.format = format;
  documents.first_line = 7;
  documents.texts = std::move(texts);
  return documents;
}

TEST(EncodeDocumentsTest, ALineThatHasNoTextIsNamed) {
  const auto bytes = MakeByteTokenizer();
  const auto refusal = [&](const std::string& line) {
    return MessageOf<ConfigError>([&] {
      EncodeDocuments(Lines(InputFormat::kJsonl, {"{\"text\": \"a\"}", line}), *bytes, {});
    });
  };
  EXPECT_THAT(refusal("{"), HasSubstr("in.jsonl:8:2: not valid JSON"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("in.jsonl:8: a list: expected a JSON object"));
  EXPECT_THAT(refusal("{\"body\": \"a\"}"),
              HasSubstr("in.jsonl:8: the key \"text\" is missing; name the one"));
  EXPECT_THAT(refusal("{\"text\": 5}"), HasSubstr("in.jsonl:8: text = 5: expected a text"));
  EXPECT_THAT(refusal("{\"text\": \"\\ud800\"}"), HasSubstr("in.jsonl:8:"));
}

TEST(EncodeDocumentsTest, DocumentsEndWhereTheyShould) {
  const auto bytes = MakeByteTokenizer();
  EncodeOptions options;
  options.document_end = 0;
  options.text_key = "body";
  const EncodedDocuments encoded = EncodeDocuments(
      Lines(InputFormat::kJsonl, {R"({"body": "ab"})", " ", R"({"body": ""})", R"({"body": "c"})"}),
      *bytes, options);
  EXPECT_THAT(encoded.ids, ElementsAre('a', 'b', 0, 'c', 0));
  EXPECT_THAT(encoded.ends, ElementsAre(3, 5));
  EXPECT_EQ(encoded.empty_documents, 1);
  options.document_end.reset();
  const EncodedDocuments lines =
      EncodeDocuments(Lines(InputFormat::kLines, {"ab", "", "c"}), *bytes, options);
  EXPECT_THAT(lines.ids, ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(lines.empty_documents, 0);
}

TEST(EncodeDocumentsTest, InvalidUtf8IsReplacedWhereThatIsAsked) {
  const auto bytes = MakeByteTokenizer();
  EncodeOptions options;
  options.replaces_invalid_utf8 = true;
  for (const InputFormat format : {InputFormat::kText, InputFormat::kJsonl}) {
    const std::string line = format == InputFormat::kText ? "a\xff" : "{\"text\": \"a\xff\"}";
    EXPECT_THAT(EncodeDocuments(Lines(format, {line}), *bytes, options).ids,
                ElementsAre('a', 0xef, 0xbf, 0xbd));
  }
}

TEST(EncodeDocumentsTest, HalfASurrogatePairIsReplacedAndCounted) {
  const auto bytes = MakeByteTokenizer();
  EncodeOptions options;
  options.replaces_invalid_utf8 = true;
  const EncodedDocuments encoded = EncodeDocuments(
      Lines(InputFormat::kJsonl, {R"({"text": "a\ud83d"})", R"({"text": "b"})"}), *bytes, options);
  EXPECT_THAT(encoded.ids, ElementsAre('a', 0xef, 0xbf, 0xbd, 'b'));
  EXPECT_EQ(encoded.replaced_documents, 1);
}

TEST(EncodeDocumentsTest, BadLinesAreSkippedWhereThatIsAsked) {
  const auto tokenizer = MakeJsonTokenizer(SmallTokenizer().dump(), "t.json");
  EncodeOptions options;
  options.skips_bad_lines = true;
  const EncodedDocuments encoded = EncodeDocuments(
      Lines(InputFormat::kJsonl, {R"({"text": "hell"})", "{", R"({"text": "\ud83d"})",
                                  R"({"body": ""})", R"({"text": "o"})"}),
      *tokenizer, options);
  EXPECT_THAT(encoded.ids, ElementsAre(258, 'o'));
  EXPECT_THAT(encoded.ends, ElementsAre(1, 2));
  EXPECT_EQ(encoded.skipped_lines, 3);
  EXPECT_THAT(encoded.first_skipped, HasSubstr("in.jsonl:8:2: not valid JSON"));
  const EncodedDocuments lines =
      EncodeDocuments(Lines(InputFormat::kLines, {"o", "\xff"}), *tokenizer, options);
  EXPECT_THAT(lines.ids, ElementsAre('o'));
  EXPECT_EQ(lines.skipped_lines, 1);
  // A file is no line.
  EXPECT_THROW(EncodeDocuments(Lines(InputFormat::kText, {"\xff"}), *tokenizer, options),
               ConfigError);
}

}  // namespace
}  // namespace fsdprun::worker
