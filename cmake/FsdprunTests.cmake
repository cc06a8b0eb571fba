# Declares tests. A test belongs to one of two tiers: `change` is what scripts/test runs for every change, `soak` is the
# rest, which scripts/soak runs by hand. CI compiles the sources in three builds, and a test is compiled for every change
# only in the build where it finds most:
#
#   asan      every unit test
#   tsan      unit tests of what shares state between threads, THREADS, but for what links gRPC: messages, agent and
#             coordinator would have to be compiled once more for it
#   release   the scripts that start programs, and unit tests that go through so many cases that they would take minutes
#             with sanitizers, or that measure memory, of which sanitizers have their own: ENUMERATES
#
# The same tests in the other builds, and those declared with SOAK, are the soak tier. Other builds (dev) do not
# distinguish: there everything is `change` but SOAK. The target `change` builds what the first tier needs, `soak` what
# both need.
add_custom_target(change)
add_custom_target(soak)
add_dependencies(soak change)

set(FSDPRUN_BUILD_KIND "" CACHE STRING "release, asan or tsan: the builds of CI, see cmake/FsdprunTests.cmake")
set(_fsdprun_prefix "")
set(_fsdprun_kind_label "")
if(FSDPRUN_BUILD_KIND MATCHES "^(asan|tsan)$")
  set(_fsdprun_prefix ${FSDPRUN_BUILD_KIND}.)
  set(_fsdprun_kind_label ${FSDPRUN_BUILD_KIND})
endif()
# ThreadSanitizer cannot see into LibTorch: what links it is not built there.
set(FSDPRUN_TORCH_TESTS ON)
if(FSDPRUN_BUILD_KIND STREQUAL "tsan")
  set(FSDPRUN_TORCH_TESTS OFF)
endif()

# Sets `out` to change or soak; ARGN are the builds in which the test belongs to `change`.
function(_fsdprun_tier out is_soak)
  set(${out} soak PARENT_SCOPE)
  if(NOT is_soak AND (FSDPRUN_BUILD_KIND STREQUAL "" OR FSDPRUN_BUILD_KIND IN_LIST ARGN))
    set(${out} change PARENT_SCOPE)
  endif()
endfunction()

# The environment in which a test of a build with sanitizers runs, so that a plain ctest is enough. gRPC, LibTorch and
# Python keep memory until exit by design: leaks are looked for only where `leaks` is ON. What runs for every change keeps
# less of what was freed, and shorter stacks of it, which is a quarter of the time where much is allocated.
function(_fsdprun_sanitizer_environment out leaks tier)
  set(environment)
  if(FSDPRUN_SANITIZE MATCHES "address")
    set(detect 0)
    if(leaks)
      set(detect 1)
    endif()
    set(memory)
    if(tier STREQUAL "change")
      set(memory :malloc_context_size=8:quarantine_size_mb=64)
    endif()
    list(APPEND environment ASAN_OPTIONS=detect_leaks=${detect}:detect_odr_violation=0:strict_string_checks=1${memory}
      UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1)
  elseif(FSDPRUN_SANITIZE MATCHES "thread")
    set(suppressions ${PROJECT_SOURCE_DIR}/scripts/sanitizers/tsan.supp)
    list(APPEND environment TSAN_OPTIONS=suppressions=${suppressions}:halt_on_error=1:second_deadlock_stack=1)
  endif()
  set(${out} ${environment} PARENT_SCOPE)
endfunction()

# Writes a line "name|tier|folder|dep,dep|target,target": from it scripts/lib/select_tests.py takes what a change reaches
# and which targets to build for it. Of a custom target among the deps, such as `programs`, also what it is made of.
function(_fsdprun_record_test name tier deps targets)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(dep IN LISTS deps)
    if(TARGET ${dep})
      get_target_property(made_of ${dep} MANUALLY_ADDED_DEPENDENCIES)
      get_target_property(type ${dep} TYPE)
      if(type STREQUAL "UTILITY" AND made_of)
        list(APPEND deps ${made_of})
      endif()
    endif()
  endforeach()
  list(JOIN deps "," deps)
  list(JOIN targets "," targets)
  set_property(GLOBAL APPEND PROPERTY FSDPRUN_TEST_GRAPH "${name}|${tier}|${folder}|${deps}|${targets}")
endfunction()

function(fsdprun_write_test_graph file)
  get_property(lines GLOBAL PROPERTY FSDPRUN_TEST_GRAPH)
  list(JOIN lines "\n" text)
  file(GENERATE OUTPUT ${file} CONTENT "${text}\n")
endfunction()

# Headers that are precompiled for tests: in `header`, which needs the targets that follow it.
function(fsdprun_precompile_for_tests name header)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/tests/test_pch.cc)
  target_link_libraries(${name} PRIVATE GTest::gmock ${ARGN})
  target_precompile_headers(${name} PRIVATE ${header})
  _fsdprun_compile_as_test(${name})
endfunction()

# _fsdprun_test_headers(<out> <torch> <rpc> <dep>...): whose precompiled headers a test uses.
function(_fsdprun_test_headers out torch rpc)
  set(headers fsdprun_test_headers)
  foreach(dep IN LISTS ARGN)
    get_target_property(side ${dep} FSDPRUN_SIDE)
    if(side STREQUAL "control")
      set(headers fsdprun_base_test_headers)
    endif()
  endforeach()
  if(torch)
    set(headers fsdprun_torch_test_headers)
  elseif(rpc)
    set(headers fsdprun_rpc_test_headers)
  endif()
  set(${out} ${headers} PARENT_SCOPE)
endfunction()

# Behind fsdprun_options. Of UndefinedBehaviorSanitizer the checks of each pointer are left out of tests, where most of its compile
# time goes, and with them out of what they and what is tested have in common: the linker takes one of several copies of inline functions.
add_library(fsdprun_test_options INTERFACE)
if(FSDPRUN_SANITIZE MATCHES "undefined")
  target_compile_options(fsdprun_test_options INTERFACE
    -fno-sanitize=alignment,null,object-size,vptr,nonnull-attribute,returns-nonnull-attribute,pointer-overflow)
endif()

# What a precompiled header and its users must agree in. Most of a test's compile time would go into optimising what
# gtest's macros expand to: only what is tested is optimised.
function(_fsdprun_compile_as_test name)
  target_link_libraries(${name} PRIVATE fsdprun_options fsdprun_test_options)
  target_compile_options(${name} PRIVATE -fPIC -O0 -pthread)
endfunction()

# fsdprun_test_program(NAME fsdp_parity_rows OUTPUT parity_rows SRCS main.cc DEPS fsdp)
# A program of the runtime that tests start, and whose speed is nobody's business: compiled as tests are.
function(fsdprun_test_program)
  cmake_parse_arguments(ARG "" "NAME;OUTPUT" "SRCS;DEPS" ${ARGN})
  _fsdprun_check_arguments(fsdprun_test_program)
  _fsdprun_check_edges(${ARG_NAME} runtime 99 ${ARG_DEPS})
  _fsdprun_record(${ARG_NAME} ${CMAKE_CURRENT_SOURCE_DIR} runtime 99 ${ARG_DEPS})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock)  # which the precompiled headers have
  _fsdprun_compile_as_test(${ARG_NAME})
  target_precompile_headers(${ARG_NAME} REUSE_FROM fsdprun_torch_test_headers)
  set_target_properties(${ARG_NAME} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT} FSDPRUN_SIDE runtime)
endfunction()

# fsdprun_test(NAME cli_test SRCS ... DEPS ... LABELS unit [TIMEOUT 300] [PER_CASE] [THREADS] [ENUMERATES] [SOAK]
#              [PROGRAMS fsdp-keeper] [PROCESSORS 2] [COST 20] [ENVIRONMENT ...] [LEFT_TO_SOAK 'Ranks/*_4ranks'])
# LEFT_TO_SOAK are cases that AddressSanitizer has in soak only, as patterns of gtest; they become the test <name>_rest.
# One ctest entry per binary; PER_CASE makes one per TEST() (where a case may spoil its process: by forks, or limits).
# PROGRAMS are what it starts. COST is in seconds: ctest starts the expensive ones first. A binary that passes with a
# skipped case counts as skipped.
function(fsdprun_test)
  cmake_parse_arguments(ARG "PER_CASE;THREADS;ENUMERATES;SOAK" "NAME;TIMEOUT;PROCESSORS;COST"
    "SRCS;DEPS;EXTERNAL;PROGRAMS;LABELS;ENVIRONMENT;ARGS;LEFT_TO_SOAK" ${ARGN})
  _fsdprun_check_arguments(fsdprun_test)
  _fsdprun_needs_torch(torch ${ARG_DEPS} ${ARG_EXTERNAL})
  if(torch AND NOT FSDPRUN_TORCH_TESTS)
    return()
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} ${ARG_EXTERNAL} fsdprun_test_main)
  _fsdprun_compile_as_test(${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  _fsdprun_needs_rpc(rpc ${ARG_DEPS} ${ARG_EXTERNAL})
  if(torch)
    list(APPEND ARG_LABELS torch)
  endif()
  set(builds asan)
  if(ARG_THREADS AND NOT rpc)
    list(APPEND builds tsan)
  endif()
  if(ARG_ENUMERATES)
    set(builds release)
  endif()
  # Precompiled headers cost more than these few files do without them, but for LibTorch's, which programs of tests need, too.
  if(torch OR NOT (ARG_ENUMERATES AND FSDPRUN_BUILD_KIND STREQUAL "release"))
    _fsdprun_test_headers(headers ${torch} ${rpc} ${ARG_DEPS})
    target_precompile_headers(${ARG_NAME} REUSE_FROM ${headers})
  endif()
  _fsdprun_tier(tier "${ARG_SOAK}" ${builds})
  add_dependencies(${tier} ${ARG_NAME})
  if(ARG_PROGRAMS)
    add_dependencies(${ARG_NAME} ${ARG_PROGRAMS})
  endif()
  _fsdprun_record_test(${ARG_NAME} ${tier} "${ARG_DEPS};${ARG_PROGRAMS}" ${ARG_NAME})
  set(filter)
  if(ARG_LEFT_TO_SOAK AND FSDPRUN_BUILD_KIND STREQUAL "asan")
    list(JOIN ARG_LEFT_TO_SOAK ":" rest)
    list(APPEND ARG_ARGS --gtest_filter=-${rest})
    set(filter TEST_FILTER -${rest})
    fsdprun_script_test(NAME ${ARG_NAME}_rest COMMAND ${ARG_NAME} --gtest_filter=${rest} LABELS ${ARG_LABELS} SOAK PROGRAMS ${ARG_NAME}
      TIMEOUT 900 ENVIRONMENT ${ARG_ENVIRONMENT})
  endif()
  set(leaks ON)
  if(torch OR rpc)
    set(leaks OFF)
  endif()
  _fsdprun_test_properties(properties ${ARG_NAME} ${tier} ${leaks} "${ARG_LABELS}" "${ARG_ENVIRONMENT}"
    "${ARG_TIMEOUT}" "${ARG_PROCESSORS}" "${ARG_COST}")
  string(APPEND properties " SKIP_RETURN_CODE 77")
  if(ARG_PER_CASE)
    include(GoogleTest)
    gtest_discover_tests(${ARG_NAME} ${filter} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
      TEST_PREFIX "${_fsdprun_prefix}")
    # gtest_discover_tests cuts properties that are lists; these are set by a file that ctest reads after its own.
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${ARG_NAME}_properties.cmake)
    file(WRITE ${file} "set_tests_properties(\${${ARG_NAME}_TESTS} PROPERTIES ${properties})\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
  else()
    add_test(NAME ${_fsdprun_prefix}${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS})
    cmake_language(EVAL CODE "set_tests_properties(${_fsdprun_prefix}${ARG_NAME} PROPERTIES ${properties})")
  endif()
endfunction()

# fsdprun_script_test(NAME launcher_kill COMMAND ${Python} script.py ... LABELS integration [PROGRAMS fsdprun ...]
#                     [SANITIZERS asan] [TORCH] [SOAK] [TIMEOUT 300] [PROCESSORS 2] [COST 20] [RUN_SERIAL]
#                     [RESOURCE_LOCK port_29500])
# A test that is a script around the built programs, which PROGRAMS names. TORCH: one of them links LibTorch. SANITIZERS
# names the builds besides release in which it belongs to the tier `change`. Exit code 77 counts as skipped. The script
# finds its TIMEOUT in FSDPRUN_TEST_TIMEOUT_S, so that it can give up, and say why, before ctest ends it.
function(fsdprun_script_test)
  cmake_parse_arguments(ARG "TORCH;RUN_SERIAL;SOAK" "NAME;TIMEOUT;PROCESSORS;COST;RESOURCE_LOCK"
    "COMMAND;LABELS;ENVIRONMENT;PROGRAMS;SANITIZERS" ${ARGN})
  _fsdprun_check_arguments(fsdprun_script_test)
  if(ARG_TORCH AND NOT FSDPRUN_TORCH_TESTS)
    return()
  endif()
  if(ARG_TORCH)
    list(APPEND ARG_LABELS torch)
  endif()
  _fsdprun_tier(tier "${ARG_SOAK}" release ${ARG_SANITIZERS})
  if(ARG_PROGRAMS)
    add_dependencies(${tier} ${ARG_PROGRAMS})
  endif()
  _fsdprun_record_test(${ARG_NAME} ${tier} "${ARG_PROGRAMS}" "${ARG_PROGRAMS}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  list(APPEND ARG_ENVIRONMENT FSDPRUN_TEST_TIMEOUT_S=${ARG_TIMEOUT})
  _fsdprun_test_properties(properties ${ARG_NAME} ${tier} OFF "${ARG_LABELS}" "${ARG_ENVIRONMENT}"
    "${ARG_TIMEOUT}" "${ARG_PROCESSORS}" "${ARG_COST}")
  string(APPEND properties " SKIP_RETURN_CODE 77")
  if(ARG_RUN_SERIAL)
    string(APPEND properties " RUN_SERIAL ON")
  endif()
  if(ARG_RESOURCE_LOCK)
    string(APPEND properties " RESOURCE_LOCK ${ARG_RESOURCE_LOCK}")
  endif()
  add_test(NAME ${_fsdprun_prefix}${ARG_NAME} COMMAND ${ARG_COMMAND})
  cmake_language(EVAL CODE "set_tests_properties(${_fsdprun_prefix}${ARG_NAME} PROPERTIES ${properties})")
endfunction()

# Sets `out` to the text of the properties that both kinds of tests have. Each test has its own name as a label, so that
# the cases of a binary can be asked for: ctest -L '^cli_test$'.
function(_fsdprun_test_properties out name tier leaks labels environment timeout processors cost)
  list(APPEND labels ${name} ${tier} ${_fsdprun_kind_label})
  _fsdprun_sanitizer_environment(sanitizer ${leaks} ${tier})
  list(APPEND environment ${sanitizer})
  if(NOT timeout)
    set(timeout 300)
  endif()
  set(text "LABELS [==[${labels}]==] ENVIRONMENT [==[${environment}]==] TIMEOUT ${timeout}")
  if(processors)
    string(APPEND text " PROCESSORS ${processors}")
  endif()
  # ctest passes over what needs two places while one is free: late, such tests would run one after the other.
  if(processors)
    math(EXPR cost "1000 + 0${cost}")
  endif()
  if(cost)
    string(APPEND text " COST ${cost}")
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()
