# yaml-cpp by its archive where there is one: programs that have the C++ standard library as an archive (fsdprun) must not
# load it a second time for a shared yaml-cpp, whose exceptions they catch. The package's own file names either by its version.
#   yaml::cpp   events of YAML documents
find_path(YamlCpp_INCLUDE_DIR yaml-cpp/eventhandler.h)
find_library(YamlCpp_LIBRARY NAMES libyaml-cpp.a yaml-cpp)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(YamlCpp
  REQUIRED_VARS YamlCpp_LIBRARY YamlCpp_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install libyaml-cpp-dev")

if(YamlCpp_FOUND AND NOT TARGET yaml::cpp)
  add_library(yaml::cpp UNKNOWN IMPORTED GLOBAL)
  set_target_properties(yaml::cpp PROPERTIES IMPORTED_LOCATION ${YamlCpp_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${YamlCpp_INCLUDE_DIR})
endif()
