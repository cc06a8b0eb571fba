# PCRE2, the regular expressions of tokenizers. By its archive where there is one, so that fsdp-train asks
# nothing of the machines on which it is used.
#   pcre2::pcre2
find_path(Pcre2_INCLUDE_DIR pcre2.h)
find_library(Pcre2_LIBRARY NAMES libpcre2-8.a pcre2-8)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pcre2
  REQUIRED_VARS Pcre2_LIBRARY Pcre2_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install libpcre2-dev")

if(Pcre2_FOUND AND NOT TARGET pcre2::pcre2)
  add_library(pcre2::pcre2 UNKNOWN IMPORTED GLOBAL)
  set_target_properties(pcre2::pcre2 PROPERTIES IMPORTED_LOCATION ${Pcre2_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Pcre2_INCLUDE_DIR})
endif()
