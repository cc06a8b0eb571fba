"""How a program ends after its last collective operation with Gloo."""

import os
import sys

import torch.distributed as dist


def leave():
    """Ends this process with 0, without the interpreter's own end.

    A thread of Gloo may still hold the tensors of the last operation, and needs the interpreter to release them: if that is
    ending, PyTorch aborts with "terminate called without an active exception", on a machine under load now and then and
    under any launcher (github.com/pytorch/pytorch/issues/190489). destroy_process_group() does not wait for that thread.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
