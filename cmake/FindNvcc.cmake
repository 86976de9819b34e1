# bam_find_nvcc(VARIABLE): the nvcc of the CUDACXX environment variable (a program or its folder), of CUDA_PATH or CUDA_HOME,
# on PATH, or in the usual places.
function(bam_find_nvcc variable)
  if(EXISTS "$ENV{CUDACXX}" AND NOT IS_DIRECTORY "$ENV{CUDACXX}")
    set(${variable} $ENV{CUDACXX} CACHE FILEPATH "the CUDA compiler")
  endif()
  find_program(${variable} nvcc HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda /usr/lib/cuda
               PATH_SUFFIXES bin)
endfunction()
