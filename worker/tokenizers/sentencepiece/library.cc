// A library of its own (Note [Two libraries with one name]).

#include "worker/tokenizers/sentencepiece/library.h"

#include <sentencepiece_processor.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::worker {
namespace {

using sentencepiece::SentencePieceProcessor;
using sentencepiece::util::Status;

const SentencePieceProcessor& ModelOf(const void* model) {
  return *static_cast<const SentencePieceProcessor*>(model);
}

void Tell(const char* message, void* context, TakeText take_error) {
  take_error(context, message, std::strlen(message));
}

void* Open(const char* content, size_t byte_count, void* context, TakeText take_error) {
  try {
    auto model = std::make_unique<SentencePieceProcessor>();
    const Status status = model->LoadFromSerializedProto(std::string_view(content, byte_count));
    if (status.ok()) {
      return model.release();
    }
    Tell(status.error_message(), context, take_error);
  } catch (const std::exception& error) {
    Tell(error.what(), context, take_error);
  }
  return nullptr;
}

void Close(void* model) { delete static_cast<SentencePieceProcessor*>(model); }

int PieceCount(const void* model) { return ModelOf(model).GetPieceSize(); }

int BosId(const void* model) { return ModelOf(model).bos_id(); }

int EosId(const void* model) { return ModelOf(model).eos_id(); }

int Find(const void* model, const char* piece, size_t byte_count) {
  const std::string_view wanted(piece, byte_count);
  const int id = ModelOf(model).PieceToId(wanted);
  // What it does not know is the unknown piece.
  return id >= 0 && ModelOf(model).IdToPiece(id) == wanted ? id : -1;
}

bool Encode(const void* model, const char* text, size_t byte_count, void* context, TakeIds take,
            TakeText take_error) {
  try {
    std::vector<int> ids;
    const Status status = ModelOf(model).Encode(std::string_view(text, byte_count), &ids);
    if (status.ok()) {
      take(context, ids.data(), ids.size());
      return true;
    }
    Tell(status.error_message(), context, take_error);
  } catch (const std::exception& error) {
    Tell(error.what(), context, take_error);
  }
  return false;
}

bool Decode(const void* model, const int* ids, size_t count, void* context, TakeText take,
            TakeText take_error) {
  try {
    std::string text;
    const Status status = ModelOf(model).Decode(std::vector<int>(ids, ids + count), &text);
    if (status.ok()) {
      take(context, text.data(), text.size());
      return true;
    }
    Tell(status.error_message(), context, take_error);
  } catch (const std::exception& error) {
    Tell(error.what(), context, take_error);
  }
  return false;
}

constexpr SentencePieceLibrary kLibrary = {Open,  Close, PieceCount, BosId,
                                           EosId, Find,  Encode,     Decode};

}  // namespace
}  // namespace fsdprun::worker

extern "C" __attribute__((visibility("default"))) const fsdprun::worker::SentencePieceLibrary*
fsdprun_sentencepiece_library() {
  return &fsdprun::worker::kLibrary;
}
