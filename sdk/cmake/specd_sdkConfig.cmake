include(${CMAKE_CURRENT_LIST_DIR}/specd_sdkTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/SpecdPlugin.cmake)
