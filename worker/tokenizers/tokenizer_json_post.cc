#include <string>

#include "worker/tokenizers/tokenizer_json_parts.h"

namespace fsdprun::worker {
namespace {

void ReadTemplate(const JsonField& field, TokenizerJson& out) {
  field.CheckKeys({"type", "single", "pair", "special_tokens"});
  const JsonField single = field.At("single");
  const JsonField special = field.At("special_tokens");
  bool has_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonField piece = single.At(i);
    piece.CheckKeys({"Sequence", "SpecialToken"});
    if (piece.Has("Sequence")) {
      const JsonField id = piece.At("Sequence").At("id");
      if (id.Text() != "A" || has_text || piece.Has("SpecialToken")) {
        id.Refuse("the text \"A\" once");
      }
      has_text = true;
      continue;
    }
    const std::string name = piece.At("SpecialToken").At("id").Text();
    const JsonField ids = special.At(name.c_str()).At("ids");
    for (size_t k = 0; k < ids.size(); ++k) {
      (has_text ? out.behind_text : out.before_text).push_back(ids.At(k).Id());
    }
  }
  if (!has_text) {
    single.Refuse("a template with the text \"A\"");
  }
}

/// `depth`: 1 within a sequence. `has_template`: whether one was read before.
void ReadProcessor(const JsonField& field, int depth, bool& has_template, TokenizerJson& out) {
  if (field.is_null()) {
    return;
  }
  const std::string type = field.At("type").Text();
  if (type == "Sequence" && depth == 0) {
    field.CheckKeys({"type", "processors"});
    const JsonField list = field.At("processors");
    for (size_t i = 0; i < list.size(); ++i) {
      ReadProcessor(list.At(i), depth + 1, has_template, out);
    }
  } else if (type == "TemplateProcessing" && !has_template) {
    has_template = true;
    ReadTemplate(field, out);
  } else if (type != "ByteLevel") {
    // ByteLevel moves offsets, not ids.
    RefuseType(field, "\"ByteLevel\", one \"TemplateProcessing\", or a \"Sequence\" of both");
  }
}

void CheckOneDecoder(const JsonField& field, int depth) {
  if (field.is_null()) {
    return;
  }
  const std::string type = field.At("type").Text();
  if (type == "Sequence" && depth == 0) {
    const JsonField list = field.At("decoders");
    for (size_t i = 0; i < list.size(); ++i) {
      CheckOneDecoder(list.At(i), depth + 1);
    }
  } else if (type != "ByteLevel") {
    RefuseType(field, "\"ByteLevel\"");
  }
}

}  // namespace

void ReadPostProcessor(const JsonField& field, TokenizerJson& out) {
  bool has_template = false;
  ReadProcessor(field, 0, has_template, out);
}

void CheckDecoder(const JsonField& field) { CheckOneDecoder(field, 0); }

}  // namespace fsdprun::worker
