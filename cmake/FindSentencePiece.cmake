# SentencePiece. Debian has it as a shared library alone, with a Protobuf of its own inside.
#   sentencepiece::sentencepiece
find_path(SentencePiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(SentencePiece_LIBRARY NAMES sentencepiece)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install libsentencepiece-dev")

if(SentencePiece_FOUND AND NOT TARGET sentencepiece::sentencepiece)
  add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED GLOBAL)
  set_target_properties(sentencepiece::sentencepiece PROPERTIES IMPORTED_LOCATION ${SentencePiece_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${SentencePiece_INCLUDE_DIR})
endif()
