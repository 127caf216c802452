# Lets other projects find_package(dfgnn), in the build folder and where it is installed (lib/cmake/dfgnn).
include(CMakePackageConfigHelpers)

file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/pyg_dfgnn/__init__.py" version REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = \"(.*)\"$" "\\1" version "${version}")

# Nothing in a program refers to the operators' symbols, and its linker would drop the library.
target_link_options(dfgnn INTERFACE "LINKER:--no-as-needed")

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/dfgnnConfig.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/dfgnnConfig.cmake"
  INSTALL_DESTINATION lib/cmake/dfgnn
  NO_SET_AND_CHECK_MACRO
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(
  "${CMAKE_CURRENT_BINARY_DIR}/dfgnnConfigVersion.cmake" VERSION "${version}" COMPATIBILITY SameMinorVersion)

install(TARGETS dfgnn EXPORT dfgnnTargets LIBRARY DESTINATION lib)
install(EXPORT dfgnnTargets NAMESPACE dfgnn:: DESTINATION lib/cmake/dfgnn)
export(EXPORT dfgnnTargets NAMESPACE dfgnn::)
install(
  FILES "${CMAKE_CURRENT_BINARY_DIR}/dfgnnConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/dfgnnConfigVersion.cmake"
  DESTINATION lib/cmake/dfgnn)
