# prometheus-cpp without its own package file, which also asks for what its HTTP server and client need.
#   prometheus::core   families of metrics and their text format
find_path(PrometheusCore_INCLUDE_DIR prometheus/text_serializer.h)
find_library(PrometheusCore_LIBRARY prometheus-cpp-core)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PrometheusCore
  REQUIRED_VARS PrometheusCore_LIBRARY PrometheusCore_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install prometheus-cpp-dev")

if(PrometheusCore_FOUND AND NOT TARGET prometheus::core)
  add_library(prometheus::core UNKNOWN IMPORTED GLOBAL)
  set_target_properties(prometheus::core PROPERTIES IMPORTED_LOCATION ${PrometheusCore_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PrometheusCore_INCLUDE_DIR})
endif()
