#include "worker/data/open_tokens.h"

#include <algorithm>
#include <utility>

#include "worker/data/file_list.h"
#include "worker/data/find_documents.h"

namespace fsdprun::worker {
namespace {

/// What the descriptions of files say together.
class Descriptions {
 public:
  explicit Descriptions(const OpenOptions& options) : options_(options) {}

  void Add(const std::string& path, const TokenFileInfo& info) {
    const std::string name = TokenFileInfoPath(path);
    if (info.vocab_size > options_.vocab_size) {
      throw ConfigError(name + ": vocab_size = " + std::to_string(info.vocab_size) +
                        ": expected at most the model's vocab_size, " +
                        std::to_string(options_.vocab_size) +
                        "; train on tokens of the model's tokenizer, or enlarge the model's "
                        "vocab_size");
    }
    if (first_.empty()) {
      first_ = name;
      tokenizer_ = info.tokenizer;
      document_end_ = info.document_end;
      return;
    }
    if (info.tokenizer != *tokenizer_) {
      throw ConfigError(name + ": tokenizer.digest is " + info.tokenizer.digest + " (" +
                        info.tokenizer.kind + "), and that of " + first_ + " is " +
                        tokenizer_->digest + " (" + tokenizer_->kind +
                        "): the same id means another text in each; make both again with one "
                        "tokenizer");
    }
    if (info.document_end != document_end_ && !options_.document_end) {
      throw ConfigError(name + ": document_end is another than that of " + first_ +
                        "; make both again in the same way, or set data.document_end");
    }
  }

  const std::optional<TokenizerIdentity>& tokenizer() const { return tokenizer_; }
  std::optional<int64_t> document_end() const {
    return options_.document_end ? options_.document_end : document_end_;
  }

 private:
  const OpenOptions& options_;
  std::string first_;
  std::optional<TokenizerIdentity> tokenizer_;
  std::optional<int64_t> document_end_;
};

/// Where documents end in a stream of files of which some have an index: as that says, in others
/// behind each `document_end`, and at their end. Nothing without any index.
std::vector<int64_t> JoinDocumentEnds(const std::vector<TokenLayout>& layouts,
                                      const TokenStream& stream,
                                      std::optional<int64_t> document_end) {
  std::vector<int64_t> ends;
  const auto has_index = [](const TokenLayout& layout) { return layout.document_ends.has_value(); };
  if (std::none_of(layouts.begin(), layouts.end(), has_index)) {
    return ends;
  }
  int64_t begin = 0;
  for (const TokenLayout& layout : layouts) {
    const int64_t end = begin + layout.part.tokens;
    if (has_index(layout)) {
      for (const int64_t in_file : *layout.document_ends) {
        ends.push_back(begin + in_file);
      }
    } else {
      AppendDocumentEnds(stream, begin, end, document_end, ends);
    }
    begin = end;
  }
  return ends;
}

void RequireOneKind(const std::vector<TokenLayout>& layouts, const std::string& key) {
  const auto is_text = [](const TokenLayout& layout) { return layout.format == DataFormat::kText; };
  for (const TokenLayout& layout : layouts) {
    if (is_text(layout) != is_text(layouts.front())) {
      throw ConfigError(key + ": " + layout.part.file->path() + " is " +
                        (is_text(layout) ? "text" : "tokens") + ", and " +
                        layouts.front().part.file->path() + " is " +
                        (is_text(layouts.front()) ? "text" : "tokens") +
                        ": one stream has one kind; make tokens of the text with fsdp-train "
                        "tokenize");
    }
  }
}

}  // namespace

std::shared_ptr<const TokenStream> OpenTokens(const std::vector<std::string>& patterns,
                                              const OpenOptions& options) {
  std::vector<TokenLayout> layouts;
  std::vector<TokenPart> parts;
  Descriptions descriptions(options);
  for (const std::string& path : ExpandPaths(options.key, patterns)) {
    layouts.push_back(ReadTokenLayout(path, options.layout));
    const TokenLayout& layout = layouts.back();
    parts.push_back(layout.part);
    if (layout.info) {
      descriptions.Add(layout.part.file->path(), *layout.info);
    }
  }
  RequireOneKind(layouts, options.key);
  TokenFacts facts;
  facts.is_text = layouts.empty() || layouts.front().format == DataFormat::kText;
  facts.document_end = descriptions.document_end();
  if (facts.document_end && *facts.document_end >= options.vocab_size) {
    throw ConfigError("configuration: data.document_end = " + std::to_string(*facts.document_end) +
                      ": expected an id below the model's vocab_size, " +
                      std::to_string(options.vocab_size));
  }
  // A byte is below 256, and so is every id of text.
  facts.id_limit = facts.is_text ? 0 : options.vocab_size;
  facts.tokenizer = descriptions.tokenizer();
  facts.document_ends = JoinDocumentEnds(layouts, TokenStream(parts, facts), facts.document_end);
  return std::make_shared<const TokenStream>(parts, std::move(facts));
}

}  // namespace fsdprun::worker
