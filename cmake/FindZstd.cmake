# Zstandard. By its archive where there is one, so that fsdp-train asks
# nothing of the machines on which it is used.
#   zstd::zstd
find_path(Zstd_INCLUDE_DIR zstd.h)
find_library(Zstd_LIBRARY NAMES libzstd.a zstd)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Zstd
  REQUIRED_VARS Zstd_LIBRARY Zstd_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install libzstd-dev")

if(Zstd_FOUND AND NOT TARGET zstd::zstd)
  add_library(zstd::zstd UNKNOWN IMPORTED GLOBAL)
  set_target_properties(zstd::zstd PROPERTIES IMPORTED_LOCATION ${Zstd_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Zstd_INCLUDE_DIR})
endif()
