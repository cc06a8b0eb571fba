# The API reference of libfsdp: the target api_reference has Doxygen write it to share/doc/fsdp/api of the build folder, from
# the public headers, docs/api and pages of docs/. What has been written is installed with libfsdp.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

set(_api_reference ${PROJECT_BINARY_DIR}/share/doc/fsdp/api)
if(FSDPRUN_INSTALL AND NOT FSDPRUN_SANITIZE)
  include(GNUInstallDirs)
  install(DIRECTORY ${_api_reference} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/fsdp COMPONENT fsdp_runtime OPTIONAL)
endif()

find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  add_custom_target(api_reference
    COMMAND ${CMAKE_COMMAND} -E echo "api_reference: there is no doxygen. Install it (on Debian 12 scripts/setup does), and configure again."
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  return()
endif()

file(GLOB _api_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fsdp_runtime/include/fsdp/*.h ${PROJECT_SOURCE_DIR}/docs/api/*
     ${PROJECT_SOURCE_DIR}/examples/libfsdp/*/*.cc)
# Pages of what is gone would stay.
add_custom_command(OUTPUT ${_api_reference}/index.html
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${_api_reference}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${_api_reference}
  COMMAND ${CMAKE_COMMAND} -E env FSDP_API_VERSION=${PROJECT_VERSION} FSDP_API_OUTPUT=${_api_reference}
          $<TARGET_FILE:Doxygen::doxygen> docs/api/Doxyfile
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  DEPENDS ${_api_sources} ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/docs/FSDP2.md ${PROJECT_SOURCE_DIR}/docs/DDP.md ${PROJECT_SOURCE_DIR}/docs/INSTALL.md
  COMMENT "Writing the API reference to ${_api_reference}/index.html" VERBATIM)
add_custom_target(api_reference DEPENDS ${_api_reference}/index.html)
