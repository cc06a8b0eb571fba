# Makes a page of the sources fit for the reference. Doxygen runs it for each, in the root of the sources.

# The C++ program of README.md, which is compiled and run as a test.
/^PROGRAM OF README$/ {
  while ((getline line < "README.md") > 0) {
    is_program = is_program || line == "```cpp"
    if (is_program) print line
    if (is_program && line == "```") break
  }
  next
}

# Links to files that are not in the reference become text.
{
  while (match($0, /\[[^]]*\]\(\.\.\/[^)]*\)/)) {
    link = substr($0, RSTART, RLENGTH)
    text = substr(link, 2, index(link, "](") - 2)
    $0 = substr($0, 1, RSTART - 1) text substr($0, RSTART + RLENGTH)
  }
  print
}
