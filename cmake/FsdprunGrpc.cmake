# gRPC, Protobuf and Abseil, and how programs are linked to them.
option(FSDPRUN_STATIC_RPC "Link gRPC, Protobuf and Abseil statically, where the system has their archives" OFF)

set(Protobuf_USE_STATIC_LIBS ${FSDPRUN_STATIC_RPC})
# A build folder that was configured without archives remembers the shared library, and would go on with it.
foreach(_entry IN ITEMS Protobuf_LIBRARY Protobuf_LIBRARY_RELEASE Protobuf_LIBRARY_DEBUG)
  if(FSDPRUN_STATIC_RPC AND "${${_entry}}" MATCHES "\\.so[.0-9]*$")
    unset(${_entry} CACHE)
  endif()
endforeach()
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl REQUIRED)

# Lets an imported target, and those that it needs, lead to the archive beside its shared library. Loading and relocating
# fifty shared libraries is most of the time that a program which does little runs: `fsdprun --version` takes 10 ms with
# them and 3 ms without. All change or none does: an archive and a shared library of the same code do not mix.
function(_fsdprun_collect_archives target)
  get_property(seen GLOBAL PROPERTY FSDPRUN_ARCHIVES_SEEN)
  if(NOT TARGET ${target} OR target IN_LIST seen)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY FSDPRUN_ARCHIVES_SEEN ${target})
  get_target_property(type ${target} TYPE)
  get_target_property(location ${target} LOCATION)
  # Protobuf's is an UNKNOWN_LIBRARY, as those of all find modules; OpenSSL, zlib and c-ares stay shared.
  if((type STREQUAL SHARED_LIBRARY OR target STREQUAL "protobuf::libprotobuf") AND location MATCHES "^(.+)\\.so[.0-9]*$")
    set_property(GLOBAL APPEND PROPERTY FSDPRUN_ARCHIVES "${target}=${CMAKE_MATCH_1}.a")
  endif()
  get_target_property(needed ${target} INTERFACE_LINK_LIBRARIES)
  foreach(next IN LISTS needed)
    _fsdprun_collect_archives(${next})
  endforeach()
endfunction()

# RE2 is found by pkg-config: a name instead of a file. Its shared library would need that of the C++ standard library,
# which programs then have as an archive, too (fsdprun_binary).
function(_fsdprun_link_re2_archive)
  get_target_property(libraries re2::re2 INTERFACE_LINK_LIBRARIES)
  if(NOT libraries MATCHES "-lre2(;|$)")
    return()
  endif()
  find_library(FSDPRUN_RE2_ARCHIVE libre2.a)
  mark_as_advanced(FSDPRUN_RE2_ARCHIVE)
  if(NOT FSDPRUN_RE2_ARCHIVE)
    message(FATAL_ERROR "FSDPRUN_STATIC_RPC is ON, but there is no libre2.a; install it, or configure with "
                        "-DFSDPRUN_STATIC_RPC=OFF")
  endif()
  string(REGEX REPLACE "-lre2(;|$)" "${FSDPRUN_RE2_ARCHIVE}\\1" libraries "${libraries}")
  set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES "${libraries}")
endfunction()

function(_fsdprun_link_archives)
  _fsdprun_collect_archives(gRPC::grpc++)
  get_property(archives GLOBAL PROPERTY FSDPRUN_ARCHIVES)
  foreach(entry IN LISTS archives)
    string(REGEX REPLACE "^[^=]+=" "" archive ${entry})
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "FSDPRUN_STATIC_RPC is ON, but there is no ${archive}; install it, or configure with "
                          "-DFSDPRUN_STATIC_RPC=OFF")
    endif()
  endforeach()
  foreach(entry IN LISTS archives)
    string(REGEX MATCH "^([^=]+)=(.+)$" _ ${entry})
    set(target ${CMAKE_MATCH_1})
    set(archive ${CMAKE_MATCH_2})
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${archive})
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    foreach(configuration IN LISTS configurations)
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} ${archive})
    endforeach()
  endforeach()
endfunction()

if(FSDPRUN_STATIC_RPC)
  _fsdprun_link_archives()
  _fsdprun_link_re2_archive()
endif()
