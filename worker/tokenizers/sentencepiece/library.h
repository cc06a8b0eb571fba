#pragma once

#include <cstddef>

namespace fsdprun::worker {

// Note [Two libraries with one name]
// libsentencepiece and LibTorch's libc10 both export a variable FLAGS_minloglevel, of 32 and of 4
// bytes. Linked into one program, the constructor of the one writes over the other and what lies
// behind it. So libsentencepiece is not linked: a library of ours is, it is loaded when a model is
// opened, and both find their own names before those of the program (RTLD_DEEPBIND). What goes
// through this interface is plain C, and no memory changes hands.

/// Text or ids of the library, valid during the call.
using TakeText = void (*)(void* context, const char* bytes, size_t count);
using TakeIds = void (*)(void* context, const int* ids, size_t count);

/// What the library does. A function that can fail hands the reason to `take_error` and returns
/// null or false. Thread: any.
struct SentencePieceLibrary {
  /// A model, of the content of its file.
  void* (*open)(const char* content, size_t byte_count, void* context, TakeText take_error);
  void (*close)(void* model);
  int (*piece_count)(const void* model);
  /// -1: there is none.
  int (*bos_id)(const void* model);
  int (*eos_id)(const void* model);
  /// The id of a piece; -1: there is none.
  int (*find)(const void* model, const char* piece, size_t byte_count);
  bool (*encode)(const void* model, const char* text, size_t byte_count, void* context,
                 TakeIds take, TakeText take_error);
  bool (*decode)(const void* model, const int* ids, size_t count, void* context, TakeText take,
                 TakeText take_error);
};

/// The type and the name of the only function that the library exports.
using GetSentencePieceLibrary = const SentencePieceLibrary* (*)();
inline constexpr char kSentencePieceEntry[] = "fsdprun_sentencepiece_library";
inline constexpr char kSentencePieceFile[] = "libfsdprun_sentencepiece.so";

}  // namespace fsdprun::worker
