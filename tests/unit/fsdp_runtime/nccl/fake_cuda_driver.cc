// A double of libcuda, the driver's library, which no machine without a driver has, under its name.
// LibTorch loads it to ask whether a device is in use, and needs the other functions to be there.

extern "C" int cuDevicePrimaryCtxGetState(int, unsigned int* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return 0;
}

// NOLINTBEGIN(bugprone-macro-parentheses): names
#define FSDPRUN_NOT_SUPPORTED(function) \
  extern "C" int function() { return 801; }
// NOLINTEND(bugprone-macro-parentheses)

FSDPRUN_NOT_SUPPORTED(cuCtxGetCurrent)
FSDPRUN_NOT_SUPPORTED(cuCtxSetCurrent)
FSDPRUN_NOT_SUPPORTED(cuDeviceGet)
FSDPRUN_NOT_SUPPORTED(cuDeviceGetAttribute)
FSDPRUN_NOT_SUPPORTED(cuDevicePrimaryCtxRetain)
FSDPRUN_NOT_SUPPORTED(cuFuncGetAttribute)
FSDPRUN_NOT_SUPPORTED(cuFuncSetAttribute)
FSDPRUN_NOT_SUPPORTED(cuFuncSetCacheConfig)
FSDPRUN_NOT_SUPPORTED(cuGetErrorString)
FSDPRUN_NOT_SUPPORTED(cuLaunchCooperativeKernel)
FSDPRUN_NOT_SUPPORTED(cuLaunchKernel)
FSDPRUN_NOT_SUPPORTED(cuLinkAddData_v2)
FSDPRUN_NOT_SUPPORTED(cuLinkComplete)
FSDPRUN_NOT_SUPPORTED(cuLinkCreate_v2)
FSDPRUN_NOT_SUPPORTED(cuModuleGetFunction)
FSDPRUN_NOT_SUPPORTED(cuModuleLoad)
FSDPRUN_NOT_SUPPORTED(cuModuleLoadData)
FSDPRUN_NOT_SUPPORTED(cuModuleLoadDataEx)
FSDPRUN_NOT_SUPPORTED(cuModuleUnload)
FSDPRUN_NOT_SUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FSDPRUN_NOT_SUPPORTED(cuPointerGetAttribute)
FSDPRUN_NOT_SUPPORTED(cuTensorMapEncodeTiled)
