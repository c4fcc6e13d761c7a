# Compiler flags for every target, sanitizers by INGOT_SANITIZE, and the faster linker and compiler cache when present.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(INGOT_SANITIZE "" CACHE STRING "value for -fsanitize=, empty for none")
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror -fno-strict-aliasing)
# AVX2 is the floor of every server Ingot aims at; src/apps/main.cc refuses older processors by name. No contraction: the kernels give
# the same bits here and in the emulator.
add_compile_options(-march=x86-64-v3 -ffp-contract=off)
# Beast's and nlohmann's inlined moves set off these two in g++ 12 with no fault in sight (GCC bugs 105562, 107919).
add_compile_options(-Wno-error=maybe-uninitialized -Wno-error=restrict)
add_compile_definitions(SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)

if(INGOT_SANITIZE)
  add_compile_options(-fsanitize=${INGOT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INGOT_SANITIZE})
  if(INGOT_SANITIZE MATCHES "thread")
    add_compile_options(-Wno-tsan)
  endif()
endif()

find_program(INGOT_CCACHE ccache)
if(INGOT_CCACHE)
  # Relative paths and no directory hash, so that a second clone and the sanitizer builds find the first one's objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${INGOT_CCACHE})
endif()
find_program(INGOT_MOLD mold)
if(INGOT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
