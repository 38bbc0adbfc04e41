# Copies DATA into BUNDLE, and writes BUNDLE/plugin.json for it and BUNDLE/LIBRARY: identity, ABI
# layout, factories, SHA-256 of the files.
# Run by specd_add_plugin() after each link.
include(${CMAKE_CURRENT_LIST_DIR}/SpecdLayout.cmake)
foreach(directory ${INCLUDE})
  if(EXISTS ${directory}/specd/plugin_api/abi_layout.h)
    specd_abi_layout(${directory}/specd/plugin_api/abi_layout.h layout)
    break()
  endif()
endforeach()
if(NOT layout)
  message(FATAL_ERROR "SpecdBundle: abi_layout.h is not in ${INCLUDE}")
endif()

set(factories "")
string(REPLACE "," ";" FACTORIES "${FACTORIES}")
foreach(factory ${FACTORIES})
  string(REPLACE ":" ";" parts ${factory})
  list(GET parts 0 id)
  list(GET parts 1 kind)
  list(APPEND factories "{\"id\": \"${id}\", \"kind\": \"${kind}\"}")
endforeach()
list(JOIN factories ", " factories)

set(files "")
string(REPLACE "," ";" DATA "${DATA}")
set(names ${LIBRARY})
foreach(file ${DATA})
  cmake_path(GET file FILENAME name)
  configure_file(${file} ${BUNDLE}/${name} COPYONLY)
  file(CHMOD ${BUNDLE}/${name} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  list(APPEND names ${name})
endforeach()
foreach(name ${names})
  file(SHA256 ${BUNDLE}/${name} hash)
  list(APPEND files "\"${name}\": \"sha256:${hash}\"")
endforeach()
list(JOIN files ", " files)
file(WRITE ${BUNDLE}/plugin.json "{
  \"manifest\": 1,
  \"id\": \"${ID}\",
  \"version\": \"${VERSION}\",
  \"abi\": \"${layout}\",
  \"library\": \"${LIBRARY}\",
  \"factories\": [${factories}],
  \"license\": \"${LICENSE}\",
  \"files\": {${files}}
}
")
# The daemon refuses files that group or others may write, so do not depend on the umask.
file(CHMOD ${BUNDLE} ${BUNDLE}/${LIBRARY} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
     GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
file(CHMOD ${BUNDLE}/plugin.json PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
