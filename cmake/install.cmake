# find_package(tapedeck) for other projects: find_package(tapedeck) + target_link_libraries(x tapedeck::tapedeck).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tapedeck)
install(TARGETS tapedeck EXPORT tapedeckTargets)
install(DIRECTORY core ops nn models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapedeck FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/generated/tapedeck/core/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapedeck/core)
install(EXPORT tapedeckTargets NAMESPACE tapedeck:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tapedeckConfig.cmake.in ${PROJECT_BINARY_DIR}/tapedeckConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tapedeckConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/openblas.cmake ${PROJECT_BINARY_DIR}/tapedeckConfig.cmake
  ${PROJECT_BINARY_DIR}/tapedeckConfigVersion.cmake DESTINATION ${package_dir})

# pkg-config --static --libs tapedeck. The prefix is found from the file itself, so that the whole may be moved, and
# `cmake --install --prefix` needs no second configuration; absolute folders stay as they are.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${pc_dir}")
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up "/${pc_dir}" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pc_prefix "\${pcfiledir}/${up}")
endif()
foreach(folder includedir libdir)
  string(TOUPPER ${folder} upper)
  set(pc_${folder} "\${prefix}")
  cmake_path(APPEND pc_${folder} "${CMAKE_INSTALL_${upper}}")
endforeach()
# OpenBLAS's own file is named where it stands for the library that was linked; there may be several flavours of it.
set(pc_requires_private zlib)
set(pc_libs_private "-pthread -lm")
cmake_path(GET TAPEDECK_OPENBLAS_LIBRARY PARENT_PATH openblas_dir)
set(pc_openblas_dirs ${TAPEDECK_PC_OPENBLAS_LIBRARY_DIRS} ${TAPEDECK_PC_OPENBLAS_LIBDIR})
list(TRANSFORM pc_openblas_dirs REPLACE "/$" "")
if(openblas_dir IN_LIST pc_openblas_dirs)
  string(APPEND pc_requires_private ", openblas")
else()
  string(PREPEND pc_libs_private "${TAPEDECK_OPENBLAS_LIBRARY} ")
endif()
configure_file(cmake/tapedeck.pc.in ${PROJECT_BINARY_DIR}/tapedeck.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tapedeck.pc DESTINATION ${pc_dir})
