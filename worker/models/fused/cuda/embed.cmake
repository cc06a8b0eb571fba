# Writes OUTPUT, a C++ source that has the CUDA sources as strings: cmake -DFOLDER=... -DOUTPUT=... -P embed.cmake
set(text "// Written by embed.cmake.\n#include \"worker/models/fused/cuda/kernel_sources.h\"\n\nnamespace fsdprun::worker::fused {\n")
foreach(pair kBlockSizesHeader=block_sizes.h kRowsHeader=rows.cuh kRopeSource=rope.cu kSwigluSource=swiglu.cu
    kCrossEntropySource=cross_entropy.cu)
  string(REPLACE "=" ";" pair ${pair})
  list(GET pair 0 constant)
  list(GET pair 1 file)
  file(READ ${FOLDER}/${file} source)
  string(APPEND text "\nconst KernelSource ${constant} = {\"${file}\", R\"cuda(${source})cuda\"};\n")
endforeach()
file(WRITE ${OUTPUT} "${text}\n}  // namespace fsdprun::worker::fused\n")
