#include "worker/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/tokenizers/small_model.h"
#include "tests/unit/worker/tokenizers/small_tokenizer.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Special = Tokenizer::SpecialTokens;

std::vector<uint32_t> Encode(const Tokenizer& tokenizer, std::string_view text,
                             Special special = Special::kOmitted) {
  std::vector<uint32_t> ids;
  tokenizer.Encode(text, special, ids);
  return ids;
}

TEST(OpenTokenizerTest, WhatIsNoTokenizerIsRefused) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "empty.model");
  std::ofstream(folder / "bad.model") << "not a model";
  std::ofstream(folder / "bad.json") << "{}";
  EXPECT_THAT(MessageOf<ConfigError>([&] { OpenTokenizer("words"); }),
              HasSubstr("tokenizer words: expected \"bytes\""));
  EXPECT_THAT(MessageOf<ConfigError>([&] { OpenTokenizer(folder / "none.json"); }),
              AllOf(HasSubstr(folder / "none.json"), HasSubstr("No such file")));
  EXPECT_THAT(MessageOf<ConfigError>([&] { OpenTokenizer(folder / "bad.json"); }),
              HasSubstr(folder / "bad.json: the key \"model\" is missing"));
  for (const char* name : {"empty.model", "bad.model"}) {
    EXPECT_THAT(MessageOf<ConfigError>([&] { OpenTokenizer(folder / name); }),
                HasSubstr(folder / name + ": not a model of SentencePiece"));
  }
}

TEST(OpenTokenizerTest, TheFileSaysWhoItIs) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "a.json") << SmallTokenizer().dump();
  std::ofstream(folder / "b.json") << SmallTokenizer().dump(1);
  std::ofstream(folder / "c.model", std::ios::binary) << SmallModel();
  const auto a = OpenTokenizer(folder / "a.json");
  EXPECT_EQ(a->identity().kind, "tokenizer.json");
  EXPECT_NE(a->identity(), OpenTokenizer(folder / "b.json")->identity());
  EXPECT_EQ(a->identity(), OpenTokenizer(folder / "a.json")->identity());
  EXPECT_EQ(OpenTokenizer(folder / "c.model")->identity().kind, "sentencepiece");
  EXPECT_EQ(OpenTokenizer("bytes")->identity().kind, "bytes");
  // XXH3-64 of nothing and of "abc", as its own command prints them.
  EXPECT_EQ(OpenTokenizer("bytes")->identity().digest, "2d06800538d394c2");
  EXPECT_EQ(IdentityOf("bytes", "abc").digest, "78af5f94892f3950");
}

TEST(ByteTokenizerTest, BytesAreIds) {
  const auto bytes = MakeByteTokenizer();
  const std::string text("a\0\xff", 3);
  EXPECT_THAT(Encode(*bytes, text), ElementsAre(97, 0, 255));
  EXPECT_EQ(bytes->Decode({97, 0, 255}), text);
  EXPECT_EQ(bytes->vocab_size(), 256);
  EXPECT_FALSE(bytes->document_end().has_value());
  EXPECT_THAT(MessageOf<ConfigError>([&] { bytes->Decode({256}); }), HasSubstr("the id 256"));
}

TEST(ByteTokenizerTest, ManyTextsOneBehindTheOtherAreNotCopiedEachTime) {
  const auto bytes = OpenTokenizer("byte");
  std::vector<uint32_t> ids;
  const uint32_t* place = nullptr;
  int moves = 0;
  for (int i = 0; i < 10'000; ++i) {
    bytes->Encode("ab\xff", Tokenizer::SpecialTokens::kOmitted, ids);
    moves += ids.data() != place ? 1 : 0;
    place = ids.data();
  }
  EXPECT_LT(moves, 40);
  EXPECT_EQ(ids.size(), 30'000U);
  EXPECT_EQ(ids.back(), 0xffU);
}

TEST(JsonTokenizerTest, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = MakeJsonTokenizer(SmallTokenizer().dump(), "t.json");
  EXPECT_THAT(MessageOf<ConfigError>([&] { Encode(*tokenizer, "ab\xff"); }),
              AllOf(HasSubstr("byte 2 is not UTF-8"), HasSubstr("--replace-invalid-utf8")));
}

TEST(JsonTokenizerTest, AByteWithoutTokenIsRefusedWhereItIsMet) {
  Json file = SmallTokenizer();
  file["model"]["vocab"].erase("!");
  file["added_tokens"][0]["id"] = 261;
  file["model"]["vocab"]["!!"] = 33;
  const auto tokenizer = MakeJsonTokenizer(file.dump(), "t.json");
  EXPECT_THAT(Encode(*tokenizer, "a"), ElementsAre('a'));
  EXPECT_THAT(MessageOf<ConfigError>([&] { Encode(*tokenizer, "a!"); }),
              HasSubstr("no token for the byte 0x21"));
}

TEST(JsonTokenizerTest, WordsAndAddedTokensBecomeIds) {
  const auto tokenizer = MakeJsonTokenizer(SmallTokenizer().dump(), "t.json");
  EXPECT_THAT(Encode(*tokenizer, "hello wo<|endoftext|>hell"),
              ElementsAre(259, 260, 'o', 261, 258));
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre());
  EXPECT_EQ(tokenizer->Decode({259, 260, 'o', 261, 0xc3, 0xa4}), "hello wo<|endoftext|>ä");
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->document_end(), 261U);
  EXPECT_EQ(tokenizer->FindToken("<|endoftext|>"), 261U);
  EXPECT_EQ(tokenizer->FindToken(" w"), 260U);
  EXPECT_EQ(tokenizer->FindToken("nothing"), std::nullopt);
}

TEST(JsonTokenizerTest, APrefixSpaceIsAddedWhereThereIsNone) {
  const auto tokenizer =
      MakeJsonTokenizer(WithValue("/pre_tokenizer/add_prefix_space", true), "t.json");
  EXPECT_THAT(Encode(*tokenizer, "wo<|endoftext|>w o"), ElementsAre(260, 'o', 261, 260, ' ', 'o'));
  EXPECT_THAT(Encode(*tokenizer, " w"), ElementsAre(260));
}

TEST(JsonTokenizerTest, NormalizedTokensAreFoundInNormalizedText) {
  Json file = SmallTokenizer();
  file["normalizer"] = {{"type", "NFC"}};
  Json added = file["added_tokens"][0];
  added["id"] = 262;
  added["content"] = "[e\u0301]";
  added["normalized"] = true;
  file["added_tokens"].push_back(added);
  added["id"] = 263;
  added["content"] = "{e\u0301}";
  added["normalized"] = false;
  file["added_tokens"].push_back(added);
  const auto tokenizer = MakeJsonTokenizer(file.dump(), "t.json");
  EXPECT_THAT(Encode(*tokenizer, "[\u00e9][e\u0301]"), ElementsAre(262, 262));
  EXPECT_THAT(Encode(*tokenizer, "{e\u0301}{\u00e9}"), ElementsAre(263, '{', 0xc3, 0xa9, '}'));
}

TEST(JsonTokenizerTest, RemovedMatchesAreLeftOut) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"String", "."}}},
                      {"behavior", "Removed"},
                      {"invert", false}};
  const auto encode = [&](const std::string& behavior, bool is_inverted) {
    Json file = SmallTokenizer();
    Json rule = split;
    rule["behavior"] = behavior;
    rule["invert"] = is_inverted;
    Json byte_level = file["pre_tokenizer"];
    byte_level["use_regex"] = false;
    file["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", Json::array({rule, byte_level})}};
    // A word is a token: what is divided shows.
    const std::vector<std::string> words = {"h.", ".h", "..", "h..h"};
    for (const std::string& word : words) {
      file["model"]["vocab"][word] = file["model"]["vocab"].size();
    }
    file["model"]["ignore_merges"] = true;
    file["added_tokens"][0]["id"] = 265;
    return Encode(*MakeJsonTokenizer(file.dump(), "t.json"), "h..h");
  };
  EXPECT_THAT(encode("Removed", false), ElementsAre('h', 'h'));
  EXPECT_THAT(encode("Removed", true), ElementsAre('.', '.'));
  EXPECT_THAT(encode("Isolated", false), ElementsAre('h', '.', '.', 'h'));
  EXPECT_THAT(encode("MergedWithPrevious", false), ElementsAre(261, '.', 'h'));
  EXPECT_THAT(encode("MergedWithNext", false), ElementsAre('h', '.', 262));
  EXPECT_THAT(encode("Contiguous", false), ElementsAre('h', 263, 'h'));
}

TEST(JsonTokenizerTest, SpecialTokensAreAddedWhereThatIsAsked) {
  Json file = SmallTokenizer();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({{{"SpecialToken", {{"id", "e"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
      {"special_tokens", {{"e", {{"id", "e"}, {"ids", {261}}, {"tokens", {"e"}}}}}}};
  const auto tokenizer = MakeJsonTokenizer(file.dump(), "t.json");
  EXPECT_THAT(Encode(*tokenizer, "hell"), ElementsAre(258));
  EXPECT_THAT(Encode(*tokenizer, "hell", Special::kAdded), ElementsAre(261, 258));
  file["post_processor"]["special_tokens"]["e"]["ids"] = {9999};
  EXPECT_THAT(MessageOf<ConfigError>([&] { MakeJsonTokenizer(file.dump(), "t.json"); }),
              HasSubstr("post_processor: the id 9999 has no token"));
}

TEST(JsonTokenizerTest, ManyThreadsGetTheSameIds) {
  const auto tokenizer = MakeJsonTokenizer(SmallTokenizer().dump(), "t.json");
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "hello w" + std::to_string(i * i) + " hellhe<|endoftext|>";
  }
  const std::vector<uint32_t> expected = Encode(*tokenizer, text);
  std::vector<std::vector<uint32_t>> found(4);
  std::vector<std::thread> threads;
  for (std::vector<uint32_t>& ids : found) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        ids = Encode(*tokenizer, text);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<uint32_t>& ids : found) {
    EXPECT_EQ(ids, expected);
  }
}

TEST(SentencePieceTest, PiecesBecomeIds) {
  const auto tokenizer = MakeSentencePieceTokenizer(SmallModel(), "m.model");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_THAT(Encode(*tokenizer, "a ab"), ElementsAre(6, 6, 5));
  EXPECT_THAT(Encode(*tokenizer, "a", Special::kAdded), ElementsAre(1, 6));
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre());
  EXPECT_EQ(tokenizer->Decode({6, 6, 5}), "a ab");
  EXPECT_EQ(tokenizer->document_end(), 2U);
  EXPECT_EQ(tokenizer->FindToken("▁a"), 6U);
  EXPECT_EQ(tokenizer->FindToken("zz"), std::nullopt);
  EXPECT_THAT(MessageOf<ConfigError>([&] { Encode(*tokenizer, "a\xff"); }),
              HasSubstr("byte 1 is not UTF-8"));
  EXPECT_THAT(MessageOf<ConfigError>([&] { tokenizer->Decode({8}); }), HasSubstr("the id 8"));
}

/// A double array, and the texts that it names.
std::string CharsMap(const std::vector<uint32_t>& units, const std::string& texts) {
  std::string map;
  const auto append = [&map](uint32_t number) {
    map.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  append(static_cast<uint32_t>(sizeof(uint32_t) * units.size()));
  std::for_each(units.begin(), units.end(), append);
  return map + texts;
}

TEST(SentencePieceTest, TablesThatPointOutsideAreRefused) {
  const std::string texts("a\0b\0", 4);
  const std::vector<uint32_t> empty(256, 0);
  EXPECT_NO_THROW(MakeSentencePieceTokenizer(SmallModel(CharsMap(empty, texts)), "m.model"));
  std::vector<uint32_t> far = empty;
  far[7] = 1U << 10 << 8;  // to unit 256 + 7
  std::vector<uint32_t> leaf = empty;
  leaf[7] = 1U << 8;  // has a leaf, at unit 7: itself
  std::vector<uint32_t> root = empty;
  root[0] = 1U << 31 | 1U << 10 << 8;  // a value, with which every lookup begins all the same
  const std::string whole = CharsMap(empty, texts);
  for (const std::string& map :
       {CharsMap(far, texts), CharsMap(leaf, texts), CharsMap(root, texts), CharsMap(empty, "ab"),
        CharsMap({}, texts), CharsMap(std::vector<uint32_t>(255, 0), texts), whole.substr(0, 3),
        whole.substr(0, 1028), "\x03" + whole.substr(1)}) {
    EXPECT_THAT(
        MessageOf<ConfigError>([&] { MakeSentencePieceTokenizer(SmallModel(map), "m.model"); }),
        HasSubstr("m.model: not a model of SentencePiece: normalizer_spec.precompiled"));
  }
}

TEST(SentencePieceTest, AModelThatIsCutShortIsRefused) {
  const std::string model = SmallModel();
  // Between two of its parts it is a model with fewer of them.
  int refused = 0;
  for (size_t size = 0; size < model.size(); ++size) {
    try {
      const auto tokenizer = MakeSentencePieceTokenizer(model.substr(0, size), "m.model");
      Encode(*tokenizer, "a ab");
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("m.model: "));
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(model.size() / 2));
}

}  // namespace
}  // namespace fsdprun::worker
