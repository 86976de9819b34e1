# `cmake --install build` and `make deb`: program, demo model, manual pages, completions, unit, documents, where Debian
# expects them. Pages and completions are made by the program itself, from the tables that --help prints.
include(GNUInstallDirs)
# Plugins are components of their own: their libraries (Open MPI, CUDA) would be ten times the program.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME server)
set(bam_share ${CMAKE_INSTALL_DATAROOTDIR})
set(bam_doc ${bam_share}/doc/bam-server)

install(TARGETS bam RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY checkpoints/demo DESTINATION ${bam_share}/bam/checkpoints)
install(DIRECTORY configs DESTINATION ${bam_doc}/examples)
install(FILES README.md CHANGELOG.md CITATION.cff DESTINATION ${bam_doc})
install(DIRECTORY docs DESTINATION ${bam_doc} PATTERN images EXCLUDE)
install(FILES deploy/debian/copyright DESTINATION ${bam_doc})

set(bam_generated ${CMAKE_BINARY_DIR}/generated)
set(bam_contact "The bam authors <bam@localhost>")
install(CODE "
  set(source \"${CMAKE_SOURCE_DIR}\")
  set(generated \"${bam_generated}\")
  set(program \"$<TARGET_FILE:bam>\")
  file(REMOVE_RECURSE \"\${generated}\")
  file(MAKE_DIRECTORY \"\${generated}/man\")
  execute_process(COMMAND \"\${program}\" man --out \"\${generated}/man\" COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND \"\${program}\" completion \${shell} OUTPUT_FILE \"\${generated}/\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB pages \"\${generated}/man/*.1\")
  execute_process(COMMAND gzip -9n \${pages} COMMAND_ERROR_IS_FATAL ANY)
  # The unit names the program where it is installed.
  file(READ \"\${source}/deploy/systemd/bam.service\" unit)
  string(REPLACE \"/usr/local/bin/bam\" \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/bam\" unit \"\${unit}\")
  file(WRITE \"\${generated}/bam.service\" \"\${unit}\")
  file(READ \"\${source}/deploy/systemd/bam.env\" settings)
  string(REPLACE \"/srv/models/my-checkpoint\" \"demo\" settings \"\${settings}\")
  file(WRITE \"\${generated}/bam.env\" \"\${settings}\")
  string(TIMESTAMP now \"%a, %d %b %Y %H:%M:%S +0000\" UTC)
  file(WRITE \"\${generated}/changelog\" \"bam-server (${PROJECT_VERSION}) unstable; urgency=medium\\n\\n  * What is new: CHANGELOG.md.\\n\\n\"
       \" -- ${bam_contact}  \${now}\\n\")
  execute_process(COMMAND gzip -9n \"\${generated}/changelog\" COMMAND_ERROR_IS_FATAL ANY)
")
install(FILES ${bam_generated}/changelog.gz DESTINATION ${bam_doc})
install(DIRECTORY ${bam_generated}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${bam_generated}/bash DESTINATION ${bam_share}/bash-completion/completions RENAME bam)
install(FILES ${bam_generated}/zsh DESTINATION ${bam_share}/zsh/vendor-completions RENAME _bam)
install(FILES ${bam_generated}/fish DESTINATION ${bam_share}/fish/vendor_completions.d RENAME bam.fish)
install(FILES ${bam_generated}/bam.service DESTINATION lib/systemd/system)
# A setting that somebody has changed stays; a package has its own way to see to that.
install(CODE "
  if(CPACK_SET_DESTDIR OR NOT EXISTS \"\$ENV{DESTDIR}/etc/bam/bam.env\")
    file(INSTALL \"${bam_generated}/bam.env\" DESTINATION \"/etc/bam\")  # below DESTDIR, as file(INSTALL) does
  endif()
")

# The name `bam` belongs to another program in Debian, which has the same file in /usr/bin.
set(CPACK_PACKAGE_NAME bam-server)
set(CPACK_PACKAGE_CONTACT "${bam_contact}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server for BAM language models")
set(CPACK_COMPONENT_SERVER_DESCRIPTION "Serves decoder transformers whose positional encoding is a Bayesian prior
over distance, with certified sparse attention over contexts of half a
million tokens, through an OpenAI-compatible HTTP API. With a small demo
model.")
set(CPACK_COMPONENT_CLUSTER_DESCRIPTION "One server on several machines: the transports of bam serve --stages and
bam worker, Gloo and Open MPI.")
set(CPACK_GENERATOR DEB)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME bam-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONFLICTS bam)
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
    "${CMAKE_SOURCE_DIR}/deploy/debian/conffiles;${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/postrm")
set(CPACK_DEBIAN_CLUSTER_PACKAGE_NAME bam-server-cluster)
set(CPACK_DEBIAN_CLUSTER_PACKAGE_DEPENDS "bam-server (= ${PROJECT_VERSION})")
include(CPack)
