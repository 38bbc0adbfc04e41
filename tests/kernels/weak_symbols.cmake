# Fails if an object of ARCHIVE that was compiled for one instruction set defines a weak symbol: the
# linker keeps one copy of each, possibly one that only some processors can run.
#   cmake -DNM=nm -DARCHIVE=libspecd_kernels.a -P weak_symbols.cmake
execute_process(COMMAND ${NM} -A --defined-only ${ARCHIVE} OUTPUT_VARIABLE symbols
    RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM} cannot read ${ARCHIVE}")
endif()
string(REPLACE ";" "," symbols "${symbols}")
string(REPLACE "\n" ";" lines "${symbols}")
# Members have ambiguous names (each op file is in the archive once per instruction set), so every
# member named like an op file is checked, including the scalar ones.
set(seen 0)
foreach(line IN LISTS lines)
  if(line MATCHES ":(amx|attention|codes|draw|elementwise|float8|integers|matmul|rmsnorm|rope)\\.cc")
    math(EXPR seen "${seen} + 1")
    # Type information, which clang's UBSan adds for functions, holds no instructions.
    if(line MATCHES " [WVu] " AND NOT line MATCHES " V _ZT[IS]")
      list(APPEND weak "${line}")
    endif()
  endif()
endforeach()
if(seen LESS 12)
  message(FATAL_ERROR "found only ${seen} symbols of op files in ${ARCHIVE}: were they renamed?")
endif()
if(weak)
  list(JOIN weak "\n  " weak)
  message(FATAL_ERROR "weak symbols in objects compiled for one instruction set:\n  ${weak}")
endif()
message(STATUS "${seen} symbols, none weak")
