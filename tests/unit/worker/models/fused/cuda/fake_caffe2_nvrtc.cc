// A libcaffe2_nvrtc.so: it is linked with NVRTC, and has none of its functions itself.

extern "C" const char* nvrtcGetErrorString(int result);

extern "C" const char* NeedsNvrtc() { return nvrtcGetErrorString(0); }
