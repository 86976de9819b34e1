# Everything the project links against; scripts/setup.sh installs it.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(CURL REQUIRED)
find_package(OpenSSL REQUIRED)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

# setup.sh caches a source-built Drogon outside the tree and can tell where.
if(NOT Drogon_DIR AND NOT BAM_SKIP_SETUP_PREFIX AND EXISTS ${CMAKE_SOURCE_DIR}/scripts/setup.sh)
  set(bam_drogon_sanitize "")
  if(BAM_SANITIZE STREQUAL "thread") # what was not built with it looks like a race
    set(bam_drogon_sanitize thread)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env BAM_DROGON_SANITIZE=${bam_drogon_sanitize}
                          bash ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-prefix
                  OUTPUT_VARIABLE bam_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE bam_prefix_result)
  if(bam_prefix_result EQUAL 0 AND bam_prefix)
    list(PREPEND CMAKE_PREFIX_PATH ${bam_prefix})
  endif()
endif()
find_package(Drogon 1.9.2 CONFIG QUIET)
if(NOT Drogon_FOUND)
  message(FATAL_ERROR "Drogon >= 1.9.2 not found: run `make setup` (scripts/setup.sh), which builds it once.")
endif()
get_filename_component(bam_drogon_prefix ${Drogon_DIR}/../../.. ABSOLUTE)
if(EXISTS ${bam_drogon_prefix}/include/trantor/net/EventLoop.h)
  file(STRINGS ${bam_drogon_prefix}/include/trantor/net/EventLoop.h bam_drogon_mark REGEX "exceptionHook\\(\\)")
endif()
if(NOT bam_drogon_mark)
  message(FATAL_ERROR "The Drogon in ${bam_drogon_prefix} lacks the changes of scripts/drogon/edit.py, without which one "
                      "malformed request ends the server: run `make setup` (scripts/setup.sh), which builds one that has them.")
endif()
