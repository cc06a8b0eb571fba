#include "worker/data/open_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/data_folder.h"

namespace fsdprun::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class OpenTokensTest : public DataFolderTest {
 protected:
  OpenOptions Options() const { return {.layout = {}, .vocab_size = 100'000, .key = "data.train"}; }
  std::shared_ptr<const TokenStream> Opened(const std::vector<std::string>& paths) const {
    return OpenTokens(paths, Options());
  }
  static std::string Refusal(const std::vector<std::string>& paths, const OpenOptions& options) {
    return RefusalOf([&] { OpenTokens(paths, options); });
  }
  std::string Refusal(const std::vector<std::string>& paths) const {
    return Refusal(paths, Options());
  }

  /// Of `NAME.bin` with three ids of uint16.
  TokenFileInfo Info() const {
    TokenFileInfo info;
    info.dtype = TokenDtype::kUint16;
    info.tokens = 3;
    info.vocab_size = 500;
    info.tokenizer = {"tokenizer.json", "0123456789abcdef"};
    return info;
  }
  std::string Raw(const std::string& name) const {
    return Write(name + ".bin", StoredList<uint16_t>({1, 2, 3}));
  }
};

TEST_F(OpenTokensTest, WhatCannotBeToldIsRefusedWithTheRemedy) {
  EXPECT_THAT(Refusal({Raw("a")}), AllOf(HasSubstr(Path("a.bin")), HasSubstr("data.dtype")));
  EXPECT_THAT(Refusal({Write("a.jsonl.gz", "\x1f\x8b rest")}),
              AllOf(HasSubstr("compressed with gzip"), HasSubstr("fsdp-train tokenize")));
  EXPECT_THAT(Refusal({Write("a.zst", "\x28\xb5\x2f\xfd rest")}),
              HasSubstr("compressed with zstd"));
  EXPECT_THAT(Refusal({Write("a.parquet", "PAR1...")}), HasSubstr("a Parquet file"));
  EXPECT_THAT(Refusal({Write("data-00000-of-00001.arrow", "\xff\xff\xff\xff rest")}),
              HasSubstr("an Arrow stream"));
  EXPECT_THAT(Refusal({Write("a.npy", "\x93NUMPY rest")}), HasSubstr("numpy (.npy)"));
  EXPECT_THAT(Refusal({Write("a.txt.bz2", "BZh9 rest")}), HasSubstr("compressed with bzip2"));
  EXPECT_THAT(Refusal({Write("a.pt", "PK\x03\x04 rest")}), HasSubstr("a zip archive"));
  EXPECT_THAT(Refusal({Write("a.xz", std::string("\xfd\x37zXZ\0rest", 10))}),
              HasSubstr("compressed with xz"));
  OpenOptions raw = Options();
  raw.layout.format = DataFormat::kRaw;
  EXPECT_THAT(Refusal({Raw("a")}, raw), HasSubstr("nothing says how its ids are stored"));
}

TEST_F(OpenTokensTest, WhatIsNoTextIsNotTakenForText) {
  EXPECT_THAT(Refusal({Write("a.jsonl", "{}")}),
              AllOf(HasSubstr("JSON by its name"), HasSubstr("fsdp-train tokenize")));
  EXPECT_THAT(Refusal({Write("a", std::string("ab\0c", 4))}), HasSubstr("byte 2 is zero"));
  EXPECT_THAT(Refusal({Write("b", "abc\xff")}),
              AllOf(HasSubstr("byte 3 is not UTF-8"), HasSubstr("data.format to text")));
  EXPECT_THAT(Refusal({Write("c", std::string(1020, 'x') + "\xff" + std::string(1000, 'x'))}),
              HasSubstr("byte 1020 is not UTF-8"));
  // A character across the end of what is looked at.
  EXPECT_TRUE(Opened({Write("d", std::string(1021, 'x') + "\xf0\x9f\x98\x80")})->facts().is_text);
  const std::string forced = Write("e", std::string("\xff\0", 2));
  OpenOptions options = Options();
  options.layout.format = DataFormat::kText;
  EXPECT_THAT(CopyAll(*OpenTokens({forced}, options)), ElementsAre(255, 0));
  // Or by its name.
  EXPECT_THAT(CopyAll(*Opened({Write("f.txt", std::string("\xf0\0", 2))})), ElementsAre(240, 0));
}

TEST_F(OpenTokensTest, LlmcFilesCutAnywhereAreRefused) {
  const std::string file = LlmcFile({1, 2, 3, 4});
  for (const size_t size : {4, 700, 1023, 1024, 1025, 1031}) {
    EXPECT_THAT(Refusal({Write("a.bin", file.substr(0, size))}),
                HasSubstr("data file " + Path("a.bin")))
        << size;
  }
}

TEST_F(OpenTokensTest, MegatronFilesCutAnywhereAreRefused) {
  WriteMegatron("good", {1, 2, 3, 4}, {3, 1});
  const auto content = [&](const std::string& name) {
    std::ifstream file(Path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string index = content("good.idx");
  const std::string data = content("good.bin");
  Write("a.idx", index);
  for (size_t size = 0; size < data.size(); ++size) {
    EXPECT_THAT(Refusal({Write("a.bin", data.substr(0, size))}),
                AllOf(HasSubstr(Path("a.bin") + ": it has " + std::to_string(size) + " bytes"),
                      HasSubstr(Path("a.idx") + " add up to 8 (4 tokens of uint16)")));
  }
  Write("a.bin", data);
  for (size_t size = 0; size < index.size(); ++size) {
    Write("a.idx", index.substr(0, size));
    EXPECT_THAT(Refusal({Path("a.bin")}), HasSubstr(Path("a.idx"))) << size;
  }
  std::filesystem::remove(Path("a.bin"));
  Write("a.idx", index);
  EXPECT_THAT(Refusal({Path("a.idx")}), HasSubstr(Path("a.bin") + ": No such file"));
}

TEST_F(OpenTokensTest, RawFilesCutInsideAnIdAreRefused) {
  OpenOptions options = Options();
  options.layout.dtype = TokenDtype::kUint32;
  EXPECT_THAT(Refusal({Raw("a")}, options),
              HasSubstr("it has 6 bytes, no whole number of ids of uint32"));
}

TEST_F(OpenTokensTest, DescriptionThatDisagreesIsNamed) {
  Raw("a");
  TokenFileInfo info = Info();
  info.tokens = 4;
  WriteInfo("a", info);
  EXPECT_THAT(Refusal({Path("a.bin")}),
              AllOf(HasSubstr("it has 3 tokens"), HasSubstr(Path("a.bin.json") + ": tokens = 4")));
  info = Info();
  info.vocab_size = 100'001;
  WriteInfo("a", info);
  EXPECT_THAT(Refusal({Path("a.bin")}),
              HasSubstr(Path("a.bin.json") +
                        ": vocab_size = 100001: expected at most the model's vocab_size, 100000"));
  Write("a.bin.json", "{");
  EXPECT_THAT(Refusal({Path("a.bin")}), HasSubstr("a.bin.json"));
  WriteInfo("a", Info());
  OpenOptions options = Options();
  options.layout.dtype = TokenDtype::kInt16;
  EXPECT_THAT(Refusal({Path("a.bin")}, options),
              AllOf(HasSubstr("dtype is int16"), HasSubstr("uint16 in " + Path("a.bin.json"))));
  Write("b.bin", LlmcFile32({1, 2, 3}));
  WriteInfo("b", Info());
  EXPECT_THAT(Refusal({Path("b.bin")}), HasSubstr("dtype is uint32 in it or its index"));
}

TEST_F(OpenTokensTest, FilesOfTwoTokenizersAreRefused) {
  Raw("a");
  Raw("b");
  WriteInfo("a", Info());
  TokenFileInfo other = Info();
  other.tokenizer.digest = "fedcba9876543210";
  WriteInfo("b", other);
  EXPECT_THAT(Refusal({Path("a.bin"), Path("b.bin")}),
              AllOf(HasSubstr(Path("b.bin.json") + ": tokenizer.digest is fedcba9876543210"),
                    HasSubstr(Path("a.bin.json") + " is 0123456789abcdef")));
  other = Info();
  other.document_end = 7;
  WriteInfo("b", other);
  EXPECT_THAT(Refusal({Path("a.bin"), Path("b.bin")}),
              HasSubstr(Path("b.bin.json") + ": document_end is another than that of"));
}

TEST_F(OpenTokensTest, TextBesideTokensIsRefused) {
  EXPECT_THAT(Refusal({Write("a.txt", "text"), Write("b.bin", LlmcFile({1}))}),
              AllOf(HasSubstr("data.train: " + Path("b.bin") + " is tokens"),
                    HasSubstr(Path("a.txt") + " is text")));
}

TEST_F(OpenTokensTest, DocumentEndBeyondTheVocabularyIsRefused) {
  OpenOptions options = Options();
  options.document_end = 100'000;
  EXPECT_THAT(Refusal({Write("a.bin", LlmcFile({1}))}, options),
              HasSubstr("data.document_end = 100000: expected an id below the model's vocab_size"));
}

TEST_F(OpenTokensTest, EveryFormatIsFoundByNameAndContent) {
  const std::vector<int64_t> expected = {1, 2, 3};
  Raw("described");
  WriteInfo("described", Info());
  WriteMegatron("megatron", {1, 2, 3}, {2, 1});
  Write("datatrove.ds", StoredList<uint32_t>({1, 2, 3}));
  Write("datatrove.ds.index", StoredList<uint64_t>({1, 3}));
  for (const std::string& path :
       {Write("llmc.bin", LlmcFile({1, 2, 3})), Write("llmc32.bin", LlmcFile32({1, 2, 3})),
        Path("described.bin"), Path("megatron.bin"), Path("megatron.idx"), Path("megatron"),
        Path("datatrove.ds")}) {
    const auto stream = Opened({path});
    EXPECT_FALSE(stream->facts().is_text) << path;
    EXPECT_EQ(stream->facts().id_limit, 100'000) << path;
    EXPECT_EQ(CopyAll(*stream), expected) << path;
  }
  const auto text = Opened({Write("any.txt", "\1\2\3")});
  EXPECT_TRUE(text->facts().is_text);
  EXPECT_EQ(CopyAll(*text), expected);
}

TEST_F(OpenTokensTest, FormatAndTypeCanBeGiven) {
  OpenOptions options = Options();
  options.layout.dtype = TokenDtype::kUint16;
  EXPECT_THAT(CopyAll(*OpenTokens({Raw("a")}, options)), ElementsAre(1, 2, 3));
  options = Options();
  options.layout.format = DataFormat::kText;
  EXPECT_THAT(CopyAll(*OpenTokens({Raw("a")}, options)), ElementsAre(1, 0, 2, 0, 3, 0));
}

TEST_F(OpenTokensTest, FormatsOfOneTokenizerAreOneStream) {
  Raw("a");
  WriteInfo("a", Info());
  const auto stream = Opened(
      {Path("a.bin"), Write("b.bin", LlmcFile32({70'000})), WriteMegatron("c", {8, 9}, {2})});
  EXPECT_THAT(CopyAll(*stream), ElementsAre(1, 2, 3, 70'000, 8, 9));
  EXPECT_EQ(stream->facts().tokenizer, Info().tokenizer);
}

TEST_F(OpenTokensTest, DocumentsOfFilesWithAndWithoutAnIndexAreKnown) {
  OpenOptions options = Options();
  options.layout.wants_documents = true;
  WriteMegatron("a", {1, 2, 3}, {2, 1});
  Write("b.ds", StoredList<uint16_t>({4, 5, 6, 7}));
  Write("b.ds.index", StoredList<uint64_t>({1, 4}));
  EXPECT_THAT(OpenTokens({Path("a.bin"), Path("b.ds")}, options)->facts().document_ends,
              ElementsAre(2, 3, 4, 7));
  Raw("c");
  WriteInfo("c", Info());
  EXPECT_THAT(OpenTokens({Path("a.bin"), Path("c.bin")}, options)->facts().document_ends,
              ElementsAre(2, 3, 6));
  TokenFileInfo with_end = Info();
  with_end.document_end = 2;
  WriteInfo("c", with_end);
  EXPECT_THAT(
      OpenTokens({Path("c.bin"), Path("a.bin"), Path("c.bin")}, options)->facts().document_ends,
      ElementsAre(2, 3, 5, 6, 8, 9));
  // Without any index nothing is known before the tokens are read.
  EXPECT_THAT(OpenTokens({Path("c.bin")}, options)->facts().document_ends, IsEmpty());
}

}  // namespace
}  // namespace fsdprun::worker
