#!/usr/bin/env python3
"""Writes a C++ program of the documentation to a file, to be compiled.

usage: extract_program.py ROOT OUTPUT.cc                the one program that is shown as a whole
       extract_program.py ROOT OUTPUT.cc docs/PAGE.md   the one that the page shows in pieces
"""

import sys
from pathlib import Path

import snippets

root, output, *page = sys.argv[1:]
if page:
    text = snippets.cpp_of_pieces(snippets.pieces(Path(root), page[0], "cpp"))
else:
    programs = [block for block in snippets.blocks_of(Path(root)) if block.language == "cpp" and not snippets.is_piece(block)]
    if len(programs) != 1:
        sys.exit(f"the documentation has {len(programs)} C++ blocks ({[block.place for block in programs]}), expected one")
    text = programs[0].text
Path(output).write_text(text)
