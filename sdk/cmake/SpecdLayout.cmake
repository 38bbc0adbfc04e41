# specd_abi_layout(HEADER OUT): the plugin layout that abi_layout.h names, "v0-<hash of the layout table>".
function(specd_abi_layout header out)
  file(STRINGS ${header} lines REGEX "define SPECD_ABI_LAYOUT ")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" layout "${lines}")
  if(NOT layout)
    message(FATAL_ERROR "${header}: expected a line that defines SPECD_ABI_LAYOUT, found none")
  endif()
  set(${out} ${layout} PARENT_SCOPE)
endfunction()
