// Asks for GPUs, for which libfsdp loads its backend and LibTorch's CUDA libraries. Of LibTorch it
// calls nothing itself.
#include <fsdp/process_group.h>

#include <iostream>

int main() { std::cout << fsdp::cuda_device_count() << " GPUs" << std::endl; }
