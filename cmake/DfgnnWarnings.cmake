# dfgnn_warnings(<target>): the warnings that our own files are free of (torch's headers are SYSTEM includes).
function(dfgnn_warnings target)
  set(flags -Wall -Wextra)
  if(DFGNN_WERROR)
    list(APPEND flags -Werror)
  endif()
  list(JOIN flags "," host_flags)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${flags}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_flags}>")
endfunction()
