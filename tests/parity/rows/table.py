"""The rows of docs/PARITY.md that are run with PyTorch and with libfsdp, as data (operations.py)."""

import communication_cases
import elsewhere_cases
import next_cases
import older_cases
import parts_cases
import placement_cases
import precision_cases
import replicate_cases
import training_cases
from operations import Case

CASES: list[Case] = [
    *training_cases.training(), *training_cases.unit_options(), *training_cases.accumulation(), *training_cases.hybrid(),
    *communication_cases.communication(), *precision_cases.precision(), *parts_cases.parts(), *older_cases.older(),
    *next_cases.next_rows(), *placement_cases.placements(), *replicate_cases.replicated(),
    *elsewhere_cases.elsewhere(),
]
