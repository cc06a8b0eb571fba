# utf8proc, which normalizes Unicode. By its archive where there is one, so that fsdp-train asks
# nothing of the machines on which it is used.
#   utf8proc::utf8proc
find_path(Utf8proc_INCLUDE_DIR utf8proc.h)
find_library(Utf8proc_LIBRARY NAMES libutf8proc.a utf8proc)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8proc
  REQUIRED_VARS Utf8proc_LIBRARY Utf8proc_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install libutf8proc-dev")

if(Utf8proc_FOUND AND NOT TARGET utf8proc::utf8proc)
  add_library(utf8proc::utf8proc UNKNOWN IMPORTED GLOBAL)
  set_target_properties(utf8proc::utf8proc PROPERTIES IMPORTED_LOCATION ${Utf8proc_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Utf8proc_INCLUDE_DIR})
endif()
