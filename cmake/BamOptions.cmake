# Language level, warnings, sanitizers and the helper that declares one library per folder.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
# Sanitizers: instrumented code is slow to compile at -O2. -O0 halves it once more; with BAM_SANITIZE_ONLY all other
# libraries are those of the release build, out of the compiler cache.
set(BAM_SANITIZE_LEVEL "-O1" CACHE STRING "Optimisation of code with sanitizers")
set(BAM_SANITIZE_ONLY "" CACHE STRING "Libraries to instrument (base;server_http;…), empty: everything")
# What formats, routes and reports need not be quick, but is most of what there is to compile.
set(BAM_SANITIZE_COLD "app;server_api;server_events;server_http;server_store" CACHE STRING "Libraries at -O0 when everything is instrumented")
if(BAM_SANITIZE AND NOT BAM_SANITIZE_ONLY)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "${BAM_SANITIZE_LEVEL} -g1")
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

find_program(BAM_CCACHE ccache)
if(BAM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BAM_CCACHE})
endif()

# Messages of failed checks name a file as the repository does: nothing of a build is of the folder that it was made in, and a second
# clone takes its objects from the compiler cache.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>")
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-unused-parameter;-Wno-missing-field-initializers>")
set(bam_sanitize_flags -fsanitize=${BAM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
if(BAM_SANITIZE)
  add_link_options(-fsanitize=${BAM_SANITIZE})
  if(NOT BAM_SANITIZE_ONLY)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${bam_sanitize_flags}>")
  endif()
endif()

# bam_unity(target): with BAM_UNITY, sources that have no options of their own are compiled a batch at a time.
set(BAM_UNITY_BATCH 16 CACHE STRING "Sources of one batch")
function(bam_unity target)
  if(BAM_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # takes a source that another one includes for a header
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${BAM_UNITY} UNITY_BUILD_BATCH_SIZE ${BAM_UNITY_BATCH})
endfunction()

# bam_instrument(target name): sanitizers for one library or its tests, if BAM_SANITIZE_ONLY asks for it.
function(bam_instrument target name)
  if(name IN_LIST BAM_SANITIZE_ONLY)
    target_compile_options(${target} PRIVATE ${bam_sanitize_flags} ${BAM_SANITIZE_LEVEL})
  endif()
endfunction()

# bam_conversions(target): numbers change their type where the source says so and nowhere else, and no cast says so in vain.
function(bam_conversions target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Werror=conversion;-Werror=sign-conversion;-Werror=useless-cast>")
  else()
    target_compile_options(${target} PRIVATE -Werror=sign-conversion)
  endif()
endfunction()

# bam_library(name DEPS a b): a static library from every .cpp of the current folder (and of SUBDIRS) that no ONLY has taken.
# ONLY: from these files, a part of the room that can be linked without the rest. ROOM: whose options it shares, if not its own.
function(bam_library name)
  cmake_parse_arguments(ARG "" "ROOM" "DEPS;PRIVATE_DEPS;SUBDIRS;ONLY" ${ARGN})
  if(NOT ARG_ROOM)
    set(ARG_ROOM ${name})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  foreach(dir ${ARG_SUBDIRS})
    file(GLOB extra CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.cpp)
    list(APPEND sources ${extra})
  endforeach()
  get_property(taken DIRECTORY PROPERTY BAM_TAKEN_SOURCES)
  if(ARG_ONLY)
    list(TRANSFORM ARG_ONLY PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
    set_property(DIRECTORY APPEND PROPERTY BAM_TAKEN_SOURCES ${sources})
  elseif(taken)
    list(REMOVE_ITEM sources ${taken})
  endif()
  add_library(bam_${name} STATIC ${sources})
  set_target_properties(bam_${name} PROPERTIES LINKER_LANGUAGE CXX)
  bam_instrument(bam_${name} ${ARG_ROOM})
  if(BAM_SANITIZE AND NOT BAM_SANITIZE_ONLY AND ARG_ROOM IN_LIST BAM_SANITIZE_COLD)
    target_compile_options(bam_${name} PRIVATE -O0)
  endif()
  bam_unity(bam_${name})
  bam_conversions(bam_${name})
  target_include_directories(bam_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(bam_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# bam_plugin_abi(variable header…): a text that changes with the version, the compiler and these headers of the current
# folder. Program and plugin believe each other only if it is the same (base/plugin.h).
function(bam_plugin_abi variable)
  set(digests ${CMAKE_CXX_COMPILER_ID})
  foreach(header ${ARGN})
    file(SHA256 ${CMAKE_CURRENT_SOURCE_DIR}/${header} digest)
    list(APPEND digests ${digest})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${header})
  endforeach()
  string(SHA256 digest "${digests}")
  string(SUBSTRING ${digest} 0 12 digest)
  set(${variable} "${PROJECT_VERSION}-${digest}" PARENT_SCOPE)
endfunction()
