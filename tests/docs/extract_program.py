#!/usr/bin/env python3
"""Writes the C++ program of the documentation to a file, to be compiled. usage: extract_program.py ROOT OUTPUT.cc"""

import sys
from pathlib import Path

import snippets

programs = [block for block in snippets.blocks_of(Path(sys.argv[1])) if block.language == "cpp"]
if len(programs) != 1:
    sys.exit(f"the documentation has {len(programs)} C++ blocks ({[block.place for block in programs]}), expected one")
Path(sys.argv[2]).write_text(programs[0].text)
