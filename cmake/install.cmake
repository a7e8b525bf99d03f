# find_package(tapedeck) for other projects: find_package(tapedeck) + target_link_libraries(x tapedeck::tapedeck).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tapedeck)
install(TARGETS tapedeck EXPORT tapedeckTargets)
install(DIRECTORY core ops nn models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapedeck FILES_MATCHING PATTERN "*.h")
install(EXPORT tapedeckTargets NAMESPACE tapedeck:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tapedeckConfig.cmake.in ${PROJECT_BINARY_DIR}/tapedeckConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tapedeckConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/openblas.cmake ${PROJECT_BINARY_DIR}/tapedeckConfig.cmake
  ${PROJECT_BINARY_DIR}/tapedeckConfigVersion.cmake DESTINATION ${package_dir})
