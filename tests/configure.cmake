# Configuring works without what only the tests need, and names the Debian package that is missing.
#   cmake -DTREE=... -DBUILD=... -P configure.cmake
function(configure result output)
  file(REMOVE_RECURSE ${BUILD})
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${TREE} -B ${BUILD} -DSPECD_CUDA=OFF ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  set(${result} ${status} PARENT_SCOPE)
  set(${output} "${out}" PARENT_SCOPE)
endfunction()

configure(status out -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
if(NOT status EQUAL 0 OR NOT out MATCHES "Tests are not built .*libgtest-dev")
  message(FATAL_ERROR "without GTest: expected a build without tests, found (${status})\n${out}")
endif()

function(expect_missing package debian)
  configure(status out -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON ${ARGN})
  if(status EQUAL 0 OR NOT out MATCHES "${package} is missing; on Debian 12: apt-get +install ${debian}")
    message(FATAL_ERROR "without ${package}: expected the package ${debian}, found (${status})\n${out}")
  endif()
endfunction()
expect_missing(GTest libgtest-dev -DSPECD_TESTS=ON)
expect_missing(nlohmann_json nlohmann-json3-dev)
expect_missing(yaml-cpp libyaml-cpp-dev)
file(REMOVE_RECURSE ${BUILD})
