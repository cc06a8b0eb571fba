#include "worker/tokenizers/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/tokenizers/small_tokenizer.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MessageOf;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

std::string RefusalOf(const std::string& text) {
  return MessageOf<ConfigError>([&] { ParseTokenizerJson(text, "t.json"); });
}

Json Added(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json Split(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

struct Wrong {
  std::string pointer;
  Json value;
  std::string what;
};

TEST(TokenizerJsonTest, WhatWouldGiveOtherIdsIsRefused) {
  const Json end = Added(261, "<|endoftext|>");
  const std::vector<Wrong> cases = {
      {"/version", "2.0", "version = \"2.0\": expected \"1.0\""},
      {"/model/type", "WordPiece", "model.type = \"WordPiece\": expected \"BPE\""},
      {"/model/type", "Unigram", "model.type = \"Unigram\": expected \"BPE\""},
      {"/model/dropout", 0.1, "model.dropout = 0.1"},
      {"/model/byte_fallback", true, "give its tokenizer.model"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix = \"##\""},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/more", 1, "model: the key \"more\" is not supported"},
      {"/model/unk_token", 1, "model.unk_token = 1: expected a text"},
      {"/more", 1, "the key \"more\" is not supported"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer.type = \"NFKC\": expected \"NFC\""},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "Lowercase"}}})}},
       "normalizer.normalizers[0].type = \"Lowercase\""},
      {"/pre_tokenizer", nullptr, "pre_tokenizer = null: expected one that is or ends with"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer.type = \"Metaspace\""},
      {"/pre_tokenizer", Split("a"),
       "pre_tokenizer = an object: expected one that is or ends with"},
      {"/pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers", Json::array({SmallTokenizer().at("pre_tokenizer"), Split("a")})}},
       "pre_tokenizer.pretokenizers[1] = an object: expected nothing behind \"ByteLevel\""},
      {"/pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers", Json::array({Split("[a"), SmallTokenizer().at("pre_tokenizer")})}},
       "pre_tokenizer.pretokenizers[0].pattern.Regex: the pattern [a has, at its byte 2"},
      {"/pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers", Json::array({Split("(?<=a*)b"), SmallTokenizer().at("pre_tokenizer")})}},
       "pre_tokenizer.pretokenizers[0].pattern.Regex: the pattern (?<=a*)b is no regular"},
      {"/pre_tokenizer/trim", true, "pre_tokenizer: the key \"trim\" is not supported"},
      {"/pre_tokenizer/add_prefix_space", 1, "pre_tokenizer.add_prefix_space = 1: expected true"},
      {"/post_processor", {{"type", "BertProcessing"}}, "post_processor.type = \"BertProcessing\""},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}})},
        {"special_tokens", Json::object()}},
       "post_processor.special_tokens: the key \"<s>\" is missing"},
      {"/post_processor",
       {{"type", "TemplateProcessing"}, {"single", Json::array()}, {"special_tokens", {}}},
       "post_processor.single = a list: expected a template with the text"},
      {"/decoder", {{"type", "WordPiece"}}, "decoder.type = \"WordPiece\""},
      {"/added_tokens", {{"a", 1}}, "added_tokens = an object: expected a list"},
      {"/added_tokens/0/id", 300, "added_tokens[0].id = 300: expected 261"},
      {"/added_tokens/0/id", -1, "added_tokens[0].id = -1: expected an id"},
      {"/added_tokens/0/content", "",
       "added_tokens[0].content = \"\": expected a text that is not"},
      {"/added_tokens/0/special", nullptr,
       "added_tokens[0].special = null: expected true or false"},
      {"/added_tokens", Json::array({end, end}), "added_tokens[1].id = 261: expected 262"},
      {"/added_tokens", Json::array({Added(65, "A"), Added(65, "A")}),
       "added_tokens[1].content = \"A\": expected a token that does not occur before"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(RefusalOf(WithValue(wrong.pointer, wrong.value)),
                AllOf(StartsWith("t.json: "), HasSubstr(wrong.what)))
        << wrong.pointer;
  }
}

TEST(TokenizerJsonTest, HostileVocabulariesAreRefused) {
  const std::vector<Wrong> cases = {
      {"/model/vocab", Json::array(), "model.vocab = a list: expected an object"},
      {"/model/vocab", Json::object(), "model.vocab is empty"},
      {"/model/vocab/hello", -1, "model.vocab[\"hello\"] = -1: expected an id"},
      {"/model/vocab/hello", 1 << 24, "model.vocab[\"hello\"] = 16777216: expected an id"},
      {"/model/vocab/hello", 1.5, "model.vocab[\"hello\"] = 1.5: expected an id"},
      {"/model/vocab/hello", 7, "model.vocab: the id 7 has two tokens"},
      {"/model/merges", "a b", "model.merges = \"a b\": expected a list"},
      {"/model/merges/0", "h", "model.merges[0] = \"h\": expected two tokens"},
      {"/model/merges/0", "h e l", "model.merges[0] = \"h e l\": expected two tokens"},
      {"/model/merges/0", Json::array({"h"}), "model.merges[0] = a list: expected two tokens"},
      {"/model/merges/0", 1, "model.merges[0] = 1: expected two tokens"},
      {"/model/merges/0", "h zz", "model.merges[0] = \"h zz\": expected tokens of model.vocab"},
      {"/model/merges/0", "h h", "\"hh\" is none"},
      {"/model/merges/1", "h e", "model.merges[1] = \"h e\": expected a merge that does not"},
      {"/model/ignore_merges", "yes", "model.ignore_merges = \"yes\": expected true or false"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(RefusalOf(WithValue(wrong.pointer, wrong.value)),
                AllOf(StartsWith("t.json: "), HasSubstr(wrong.what)))
        << wrong.pointer;
  }
}

TEST(TokenizerJsonTest, WhatIsNoDocumentIsRefused) {
  EXPECT_THAT(RefusalOf("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(RefusalOf("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(RefusalOf("{}"), HasSubstr("the key \"model\" is missing"));
  EXPECT_THAT(RefusalOf(R"({"model": 1, "model": 2})"), HasSubstr("occurs twice"));
  EXPECT_THAT(RefusalOf(std::string(100, '[') + std::string(100, ']')), HasSubstr("deeper"));
}

TEST(TokenizerJsonTest, AnIdBetweenTheModelsIsTaken) {
  // Without "hello", the size of the vocabulary is an id that it has.
  Json file = SmallTokenizer();
  file["model"]["vocab"].erase("hello");
  file["model"]["merges"].erase(3);
  file["added_tokens"][0]["id"] = 260;
  EXPECT_THAT(RefusalOf(file.dump()), HasSubstr("the id 260 is one of model.vocab"));
}

TEST(TokenizerJsonTest, EverythingThatIsSaidIsRead) {
  Json file = SmallTokenizer();
  file["truncation"] = {{"max_length", 8}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "NFC"}}})}};
  Json byte_level = file["pre_tokenizer"];
  byte_level["use_regex"] = false;
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({{{"type", "Digits"}, {"individual_digits", true}}, Split("a+"), byte_level})}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       Json::array({{{"type", "ByteLevel"}},
                    {{"type", "TemplateProcessing"},
                     {"single", Json::array({{{"SpecialToken", {{"id", "e"}, {"type_id", 0}}}},
                                             {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                             {{"SpecialToken", {{"id", "e"}, {"type_id", 0}}}}})},
                     {"pair", Json::array()},
                     {"special_tokens",
                      {{"e", {{"id", "e"}, {"ids", {261, 5}}, {"tokens", {"e", "f"}}}}}}}})}};
  file["model"]["ignore_merges"] = true;
  file["model"]["merges"] = Json::array({"#version: 0.2", "h e", Json::array({"l", "l"})});
  const TokenizerJson parsed = ParseTokenizerJson(file.dump(), "t.json");
  EXPECT_TRUE(parsed.is_normalized);
  EXPECT_THAT(parsed.rules, SizeIs(3));
  EXPECT_FALSE(parsed.rules[2].pattern.has_value());
  EXPECT_THAT(parsed.before_text, ElementsAre(261, 5));
  EXPECT_THAT(parsed.behind_text, ElementsAre(261, 5));
  EXPECT_TRUE(parsed.vocabulary.ignores_merges);
  EXPECT_THAT(parsed.vocabulary.merges, SizeIs(2));
  EXPECT_THAT(parsed.bytes_of, SizeIs(262));
  EXPECT_EQ(parsed.bytes_of[260].second, " w");
  ASSERT_THAT(parsed.added_tokens, SizeIs(1));
  EXPECT_TRUE(parsed.added_tokens[0].is_special);
}

}  // namespace
}  // namespace fsdprun::worker
