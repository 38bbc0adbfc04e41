# specd_add_plugin(NAME SOURCES ... ID ... VERSION ... LICENSE ... FACTORIES id:kind ...
#                  [DATA files ...] [VENDOR ...] [BUNDLE_ROOT dir] [NO_INSTALL])
#
# Builds the bundle of one plugin: a directory with NAME.so, which exports only specd_plugin_entry_v0,
# and plugin.json, the manifest that the daemon reads before it runs any code.
#
#   target     specd_plugin_NAME; PLUGIN_ID, _VERSION, _LICENSE and _VENDOR are passed to the sources
#              as SPECD_PLUGIN_*, so that manifest and table agree
#   bundle     BUNDLE_ROOT/NAME, by default <build>/plugins/NAME; DATA is copied into it, and the
#              plugin finds it in the data_dir of create()
#   installed  <libdir>/specd/plugins/NAME, the same bytes, unless NO_INSTALL

function(specd_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_INSTALL" "ID;VERSION;LICENSE;VENDOR;BUNDLE_ROOT"
                        "SOURCES;FACTORIES;DATA")
  foreach(required SOURCES ID VERSION LICENSE FACTORIES)
    if(NOT arg_${required})
      message(FATAL_ERROR "specd_add_plugin(${name}): ${required} is missing")
    endif()
  endforeach()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "specd_add_plugin(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "specd_add_plugin(${name}): expected a name of a-z, 0-9 and _")
  endif()
  if(NOT arg_ID MATCHES "^[a-z0-9_-]+(\\.[a-z0-9_-]+)+$")
    message(FATAL_ERROR "specd_add_plugin(${name}): ID ${arg_ID}: expected a reverse domain name, "
                        "like org.example.ngram")
  endif()
  if(NOT arg_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+[A-Za-z0-9.+-]*$")
    message(FATAL_ERROR "specd_add_plugin(${name}): VERSION ${arg_VERSION}: expected like 1.0.0")
  endif()
  foreach(text LICENSE VENDOR)
    if(arg_${text} MATCHES "[\"\\\\]")
      message(FATAL_ERROR "specd_add_plugin(${name}): ${text} must not contain quotes")
    endif()
  endforeach()
  foreach(factory ${arg_FACTORIES})
    if(NOT factory MATCHES "^[a-z][a-z0-9_]*:(drafter|verifier)$")
      message(FATAL_ERROR "specd_add_plugin(${name}): FACTORIES ${factory}: expected id:drafter or "
                          "id:verifier")
    endif()
  endforeach()
  if(NOT arg_BUNDLE_ROOT)
    set(arg_BUNDLE_ROOT ${CMAKE_BINARY_DIR}/plugins)
  endif()

  set(target specd_plugin_${name})
  set(bundle ${arg_BUNDLE_ROOT}/${name})
  add_library(${target} MODULE ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE specd::sdk)
  if(CMAKE_CXX_COMPILER_LOADED)
    target_compile_features(${target} PRIVATE cxx_std_17)
  endif()
  target_compile_definitions(${target} PRIVATE
    "SPECD_PLUGIN_ID=\"${arg_ID}\"" "SPECD_PLUGIN_VERSION=\"${arg_VERSION}\""
    "SPECD_PLUGIN_LICENSE=\"${arg_LICENSE}\"" "SPECD_PLUGIN_VENDOR=\"${arg_VENDOR}\"")
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} SUFFIX ".so"
    LIBRARY_OUTPUT_DIRECTORY $<1:${bundle}>
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON SKIP_BUILD_RPATH ON)
  # Without -fno-gnu-unique two versions of a plugin would share template and inline statics.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
  target_link_options(${target} PRIVATE
    LINKER:--version-script=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/exports.map LINKER:-z,now)
  # The runtime of a sanitizer is in the executable, so its symbols stay undefined here.
  if(NOT SPECD_SANITIZE AND NOT "${CMAKE_C_FLAGS} ${CMAKE_CXX_FLAGS}" MATCHES "-fsanitize=")
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()

  list(JOIN arg_FACTORIES "," factories)
  set(data "")
  set(data_names "")
  foreach(file ${arg_DATA})
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(GET file FILENAME file_name)
    if(NOT EXISTS ${file} OR file_name IN_LIST data_names OR file_name STREQUAL "plugin.json")
      message(FATAL_ERROR "specd_add_plugin(${name}): DATA ${file}: expected files with names of their own")
    endif()
    list(APPEND data ${file})
    list(APPEND data_names ${file_name})
  endforeach()
  set_target_properties(${target} PROPERTIES LINK_DEPENDS
    "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/exports.map;${data}")
  list(JOIN data "," data_list)
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND}
      "-DBUNDLE=${bundle}" "-DLIBRARY=${name}.so" "-DID=${arg_ID}" "-DVERSION=${arg_VERSION}"
      "-DLICENSE=${arg_LICENSE}" "-DFACTORIES=${factories}" "-DDATA=${data_list}"
      "-DINCLUDE=$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>"
      -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/SpecdBundle.cmake
    VERBATIM)

  if(NOT arg_NO_INSTALL)
    include(GNUInstallDirs)
    # Install the files, not the target: that may rewrite the run path and invalidate the hash.
    list(TRANSFORM data_names PREPEND ${bundle}/ OUTPUT_VARIABLE installed)
    install(FILES ${bundle}/${name}.so ${bundle}/plugin.json ${installed}
            DESTINATION ${CMAKE_INSTALL_LIBDIR}/specd/plugins/${name})
  endif()
endfunction()
