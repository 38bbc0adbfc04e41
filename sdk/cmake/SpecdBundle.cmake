# Writes BUNDLE/plugin.json for BUNDLE/LIBRARY: identity, ABI layout, factories, SHA-256 of the file.
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

file(SHA256 ${BUNDLE}/${LIBRARY} hash)
file(WRITE ${BUNDLE}/plugin.json "{
  \"manifest\": 1,
  \"id\": \"${ID}\",
  \"version\": \"${VERSION}\",
  \"abi\": \"${layout}\",
  \"library\": \"${LIBRARY}\",
  \"factories\": [${factories}],
  \"license\": \"${LICENSE}\",
  \"files\": {\"${LIBRARY}\": \"sha256:${hash}\"}
}
")
# The daemon refuses files that group or others may write, so do not depend on the umask.
file(CHMOD ${BUNDLE} ${BUNDLE}/${LIBRARY} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
     GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
file(CHMOD ${BUNDLE}/plugin.json PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
