#include "formats/models/model_config.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace fsdprun {
namespace {

Json GoodDocument() {
  return Json::parse(R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "torch_dtype": "float32"})");
}

DecoderConfig ParseLlama(const Json& document) {
  return std::get<DecoderConfig>(ParseModelConfig(document, "config.json").network);
}

std::string Refusal(const Json& document) {
  try {
    ParseModelConfig(document, "config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelConfigTest, DefaultsAreHuggingFaces) {
  const DecoderConfig config = ParseLlama(GoodDocument());
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.rope_scaling.has_value());
  Json without = GoodDocument();
  without.erase("num_key_value_heads");
  EXPECT_EQ(ParseLlama(without).num_key_value_heads, 4);
}

TEST(ModelConfigTest, EveryRequiredKeyIsNamedWhenMissing) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    Json document = GoodDocument();
    document.erase(key);
    EXPECT_EQ(Refusal(document),
              std::string("config.json: ") + key + " is missing: expected an integer >= 1");
  }
}

Json Llama3Scaling() {
  return Json::parse(R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8,
    "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
}

/// Good, and with rotary scaling under `rope`, one of its two names.
Json ScaledDocument(const std::string& rope) {
  Json document = GoodDocument();
  document[rope] = Llama3Scaling();
  return document;
}

/// `document` with `value` at `path`, in which a dot leads into an object.
Json With(Json document, const std::string& path, const Json& value) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) {
    document[path] = value;
  } else {
    document[path.substr(0, dot)][path.substr(dot + 1)] = value;
  }
  return document;
}

std::string RefusalOf(const std::string& key, const Json& value, const std::string& expectation) {
  return "config.json: " + key + " = " + value.dump() + ": expected " + expectation;
}

const std::string kInteger = "an integer >= 1";
const std::string kPositive = "a number > 0";
const std::string kFlag = "true or false";
const std::string kToken = "null or a token of the vocabulary of 256";
const std::string kWholeHead = "no such key (the whole head is rotated)";
const std::string kAlike = "no such key (all layers are alike)";
const std::string kPlainWeights = "no such key (weights are F32, BF16 or F16)";

struct KeyType {
  std::string key;
  std::string expectation;
};

/// Every key that is read; those of rotary scaling below.
const std::vector<KeyType> kKeys = {
    {"model_type", "a string"},
    {"hidden_act", "a string"},
    {"attention_dropout", "a number"},
    {"is_causal", kFlag},
    {"partial_rotary_factor", kWholeHead},
    {"per_layer_config", kAlike},
    {"quantization_config", kPlainWeights},
    {"vocab_size", kInteger},
    {"pad_token_id", kToken},
    {"hidden_size", kInteger},
    {"intermediate_size", kInteger},
    {"num_hidden_layers", kInteger},
    {"num_attention_heads", kInteger},
    {"num_key_value_heads", kInteger},
    {"head_dim", kInteger},
    {"max_position_embeddings", kInteger},
    {"rms_norm_eps", kPositive},
    {"rope_theta", kPositive},
    {"rope_scaling", "an object"},
    {"rope_parameters", "an object"},
    {"attention_bias", kFlag},
    {"mlp_bias", kFlag},
    {"tie_word_embeddings", kFlag},
    {"initializer_range", kPositive},
};

const std::vector<KeyType> kScalingKeys = {
    {"rope_type", "a string"},       {"rope_theta", kPositive},
    {"factor", kPositive},           {"low_freq_factor", kPositive},
    {"high_freq_factor", kPositive}, {"original_max_position_embeddings", kPositive},
};

TEST(ModelConfigTest, ValueOfAnotherTypeIsRefusedByKeyAndValue) {
  const Json list = Json::array({"x"});  // no key may be a list
  for (const auto& [key, expectation] : kKeys) {
    EXPECT_EQ(Refusal(With(GoodDocument(), key, list)), RefusalOf(key, list, expectation));
  }
  for (const std::string rope : {"rope_scaling", "rope_parameters"}) {
    for (const auto& [key, expectation] : kScalingKeys) {
      const std::string path = rope + "." + key;
      EXPECT_EQ(Refusal(With(ScaledDocument(rope), path, list)),
                RefusalOf(path, list, expectation));
    }
    Json older = With(ScaledDocument(rope), rope + ".type", list);
    older[rope].erase("rope_type");
    EXPECT_EQ(Refusal(older), RefusalOf(rope + ".type", list, "a string"));
    const char* const original = "original_max_position_embeddings";
    EXPECT_EQ(Refusal(With(ScaledDocument(rope), original, list)),
              RefusalOf(original, list, kPositive));
  }
}

TEST(ModelConfigTest, ScalingKeyIsNamedWhenMissing) {
  for (const std::string rope : {"rope_scaling", "rope_parameters"}) {
    for (const char* key :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      Json document = ScaledDocument(rope);
      document[rope].erase(key);
      EXPECT_EQ(Refusal(document),
                "config.json: " + rope + "." + key + " is missing: expected a number > 0");
    }
  }
}

struct BadValue {
  std::string key;
  Json value;
  std::string expectation;
};

const Json kBeyondInt64 = std::numeric_limits<uint64_t>::max();
const std::string kWidest = "at most 4194304";
const std::string kKnownTypes = "\"default\" or \"llama3\"";

const std::vector<BadValue> kBadValues = {
    {"model_type", "bert", "one of \"gpt2\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\""},
    {"hidden_act", "gelu", "\"silu\""},
    {"attention_dropout", 0.1, "0 (dropout is not supported)"},
    {"is_causal", false, "true"},
    {"partial_rotary_factor", 0.5, kWholeHead},
    {"per_layer_config", Json::object(), kAlike},
    {"quantization_config", Json::object(), kPlainWeights},
    {"pad_token_id", 256, kToken},
    {"pad_token_id", -257, kToken},
    {"pad_token_id", 1.5, kToken},
    {"pad_token_id", kBeyondInt64, kToken},
    {"num_hidden_layers", 8193, "at most 8192"},
    {"max_position_embeddings", int64_t{1} << 32, "at most 2147483648"},
    {"num_key_value_heads", 3, "a divisor of num_attention_heads = 4"},
    {"num_attention_heads", 6, "a divisor of hidden_size = 64"},
    {"head_dim", 15, "an even number (rotary embedding turns pairs)"},
    {"head_dim", 1 << 22, "at most 4194304 / num_attention_heads = 1048576"},
    {"rope_scaling.type", "yarn", kKnownTypes},
    {"rope_scaling.rope_type", "yarn", kKnownTypes},
    {"rope_scaling.high_freq_factor", 1, "a number greater than low_freq_factor"},
    {"rope_parameters.full_attention", Json::object(),
     "only the keys of rope_type \"default\" and \"llama3\""},
};

/// Out of the range of the key's type.
std::vector<BadValue> OutOfRange() {
  std::vector<BadValue> cases;
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "head_dim"}) {
    cases.push_back({key, (1 << 22) + 1, kWidest});
    cases.push_back({key, kBeyondInt64, kWidest});
  }
  for (const auto& [key, expectation] : kKeys) {
    if (expectation == kInteger) {
      for (const Json& value : {Json(0), Json(-64), Json(2.5), Json("64"), Json(true)}) {
        cases.push_back({key, value, kInteger});
      }
    } else if (expectation == kPositive) {
      for (const Json& value : {Json(0), Json(-1), Json("1"), Json(true)}) {
        cases.push_back({key, value, kPositive});
      }
    } else if (expectation == kFlag) {
      cases.push_back({key, 1, kFlag});
    }
  }
  return cases;
}

TEST(ModelConfigTest, BadValueIsRefusedByKeyAndValue) {
  std::vector<BadValue> cases = OutOfRange();
  cases.insert(cases.end(), kBadValues.begin(), kBadValues.end());
  for (const auto& [key, value, expectation] : cases) {
    const bool is_of_llama3 = key == "rope_scaling.high_freq_factor";
    const Json document = is_of_llama3 ? ScaledDocument("rope_scaling") : GoodDocument();
    EXPECT_EQ(Refusal(With(document, key, value)), RefusalOf(key, value, expectation));
  }
}

TEST(ModelConfigTest, WidthThatDoesNotFitTheHeadsIsNamedBesideThem) {
  EXPECT_EQ(Refusal(With(GoodDocument(), "hidden_size", 66)),
            RefusalOf("num_attention_heads", 4, "a divisor of hidden_size = 66"));
  EXPECT_EQ(Refusal(With(GoodDocument(), "hidden_size", 60)),
            RefusalOf("num_attention_heads", 4,
                      "an even quotient hidden_size / num_attention_heads, not 60 / 4 (rotary "
                      "embedding turns pairs)"));
}

/// transformers computes with such a head elsewhere, but refuses a Llama with it.
TEST(ModelConfigTest, WidthThatDoesNotFitTheHeadsOfALlamaIsRefusedWithAHeadDimToo) {
  const Json document = With(With(GoodDocument(), "hidden_size", 66), "head_dim", 16);
  EXPECT_EQ(Refusal(document),
            RefusalOf("num_attention_heads", 4, "a divisor of hidden_size = 66"));
}

TEST(ModelConfigTest, OtherThanAnObjectIsRefused) {
  EXPECT_EQ(Refusal(Json::array()), "config.json: expected an object, got []");
}

TEST(ModelConfigTest, RopeParametersWinOverTheThetaBesideThem) {
  Json document = GoodDocument();
  document["rope_theta"] = 10000.0;
  document["rope_parameters"] = Llama3Scaling();
  const DecoderConfig config = ParseLlama(document);
  EXPECT_EQ(config.rope_theta, 500000);
  ASSERT_TRUE(config.rope_scaling.has_value());
  EXPECT_EQ(config.rope_scaling->factor, 8);
}

TEST(ModelConfigTest, RopeScalingWinsOverRopeParametersUnlessEmpty) {
  Json document = GoodDocument();
  document["rope_scaling"] = Llama3Scaling();
  document["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 700.0}};
  EXPECT_EQ(ParseLlama(document).rope_theta, 500000);
  EXPECT_TRUE(ParseLlama(document).rope_scaling.has_value());
  document["rope_scaling"] = Json::object();
  EXPECT_EQ(ParseLlama(document).rope_theta, 700);
  EXPECT_FALSE(ParseLlama(document).rope_scaling.has_value());
}

TEST(ModelConfigTest, OriginalLengthBesideRopeScalingWins) {
  Json document = GoodDocument();
  document["rope_scaling"] = Llama3Scaling();
  document["original_max_position_embeddings"] = 64;
  EXPECT_EQ(ParseLlama(document).rope_scaling->original_max_position_embeddings, 64);
}

TEST(ModelConfigTest, PaddingTokenCountsFromTheEndWhenNegative) {
  Json document = GoodDocument();
  EXPECT_FALSE(ParseLlama(document).padding_token.has_value());
  document["pad_token_id"] = nullptr;
  EXPECT_FALSE(ParseLlama(document).padding_token.has_value());
  document["pad_token_id"] = 5;
  EXPECT_EQ(ParseLlama(document).padding_token, 5);
  document["pad_token_id"] = -1;
  EXPECT_EQ(ParseLlama(document).padding_token, 255);
}

TEST(ModelConfigTest, UnreadableFileIsNamed) {
  try {
    ReadModelConfig("/nonexistent/model");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "cannot read /nonexistent/model: No such file or directory");
  }
}

}  // namespace
}  // namespace fsdprun
