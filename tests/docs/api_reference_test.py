#!/usr/bin/env python3
"""The API reference of libfsdp: Doxygen has nothing to complain of (undocumented public names, parameters and names that do not
exist, broken links), each name that a public header declares is in it, under a task, and code in comments is shown as code.

Skipped (77) where there is no doxygen.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "fsdp_runtime/include/fsdp"
SKIPPED = 77


def run_doxygen(output: Path, **settings: str) -> list[str]:
    """Its complaints. The settings replace those of docs/api/Doxyfile."""
    given = "".join(f"{name} = {value}\n" for name, value in settings.items())
    done = subprocess.run(["doxygen", "-"], input=f"@INCLUDE = docs/api/Doxyfile\n{given}", cwd=ROOT, text=True, capture_output=True,
                          env={**os.environ, "FSDP_API_VERSION": "0", "FSDP_API_OUTPUT": str(output)}, timeout=120)
    if done.returncode != 0:
        sys.exit(f"doxygen ended with {done.returncode}: {done.stderr}")
    return [line.replace(f"{ROOT}/", "") for line in done.stderr.splitlines() if line.strip()]


@dataclass
class Names:
    """Public names of namespace fsdp: types, functions and aliases, and members as "Type::member"."""

    free: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)


# Not in a template's argument: std::function<bool(int)>.
FUNCTION = re.compile(r"(?<![<\w])(operator(?:\(\)|[^\w\s(]+| \w+)|\w+)\(")
VARIABLE = re.compile(r"(\w+)(?: = .*|\{.*\})?;$")


def declared_in(header: str) -> Names:
    """Found by their indentation, as clang-format leaves it: declarations begin in the first column, members in the third."""
    names, in_fsdp, owner, is_public = Names(), False, "", False
    for line in re.sub(r" *//.*", "", header).splitlines():
        function, scope = FUNCTION.search(line.split(" = ")[0]), re.match(r"(class|struct|enum class) (?:FSDP_API )?(\w+)[^;]*\{", line)
        if line.startswith("namespace"):
            in_fsdp = line == "namespace fsdp {"
        elif not in_fsdp or line.startswith("#"):
            continue
        elif scope:
            owner, is_public = scope[2], scope[1] != "class"
            names.free.add(owner)
        elif line.startswith("}"):
            owner = ""
        elif alias := re.match(r"using (\w+) =", line):
            names.free.add(alias[1])
        elif access := re.match(r" (public|private|protected):$", line):
            is_public = access[1] == "public"
        elif re.match(r"  [^ }]", line) and owner and is_public and not re.match(r"  (using|friend|template|virtual ~)", line):
            if name := function or VARIABLE.search(line):
                names.members.add(f"{owner}::{name[1]}")
        elif re.match(r"\S", line) and not owner and function:
            names.free.add(function[1])
    return names


@dataclass
class Shown(Names):
    """What a reference shows: free names in a group, each with the place of its description."""

    files: set[str] = field(default_factory=set)
    places: set[tuple[str, str]] = field(default_factory=set)  # (file, anchor)


def shown_in(tags: Path) -> Shown:
    shown = Shown()
    for compound in xml.parse(tags).getroot():
        kind, name = compound.get("kind"), compound.findtext("name", "").removeprefix("fsdp::")
        if kind == "file":
            shown.files.add(compound.findtext("name", ""))
        if kind == "group":
            shown.free |= {(each.text or "").removeprefix("fsdp::") for each in compound.iter("class")}
        for member in compound.iter("member"):
            label = re.sub(r"\s+(?=\W)", "", member.findtext("name", ""))
            if kind == "group":
                shown.free.add(label)
            elif kind in ("class", "struct"):
                shown.members.add(f"{name}::{label}")
            if kind in ("group", "class", "struct"):
                shown.places.add((member.findtext("anchorfile", ""), member.findtext("anchor", "")))
    return shown


def fences_of(header: str) -> list[str]:
    """The code that comments of a header show."""
    comments = "\n".join(re.findall(r"^ *///(.*)", header, re.M))
    return re.findall(r"^ ```cpp\n(.*?)^ ```$", comments, re.S | re.M)


def unfenced_code(header: str) -> list[str]:
    """Lines of comments that are set in like code, outside of a fence: they would be shown as text."""
    found, is_inside = [], False
    for comment in re.findall(r"^ *///(?!<)(.*)", header, re.M):
        is_inside ^= comment.startswith(" ```")
        if not is_inside and comment.startswith("   "):
            found.append(comment)
    return found


def without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


def code_blocks(page: str) -> list[str]:
    """The code that a page shows, without what is only shown when something in it is pointed at."""
    blocks = re.findall(r'<div class="fragment">(.*?)(?:<div class="ttc"|</div><!-- fragment -->)', page, re.S)
    return [without_space(html.unescape(re.sub(r"<[^>]*>", "", block))) for block in blocks]


class ApiReferenceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.complaints = run_doxygen(cls.folder, GENERATE_TAGFILE=f"{cls.folder}/tags", SEARCHENGINE="NO")
        cls.shown = shown_in(cls.folder / "tags")
        cls.pages = {page.name: page.read_text() for page in cls.folder.glob("*.html")}
        cls.headers = {path.name: path.read_text() for path in HEADERS.glob("*.h")}

    def test_doxygen_has_nothing_to_complain_of(self):
        self.assertEqual(self.complaints, [])

    def test_each_header_is_described_and_on_the_first_page(self):
        self.assertGreater(len(self.headers), 10)
        for name in self.headers:
            self.assertIn(name, self.shown.files)
            self.assertIn(f"fsdp/{name}", self.pages["index.html"])

    def test_each_name_that_a_header_declares_is_shown_under_a_task(self):
        for name, text in self.headers.items():
            with self.subTest(name):
                declared = declared_in(text)
                self.assertEqual(declared.free - self.shown.free, set(), "in no group: see @addtogroup in other headers")
                self.assertEqual(declared.members - self.shown.members, set())

    def test_nothing_of_detail_is_shown(self):
        self.assertEqual([page for page in self.pages if "detail" in page], [])
        self.assertNotIn("fsdp::detail::", (self.folder / "tags").read_text())

    def test_each_description_is_where_the_index_says(self):
        self.assertGreater(len(self.shown.places), 200)
        missing = [(page, anchor) for page, anchor in self.shown.places if f'id="{anchor}"' not in self.pages[page]]
        self.assertEqual(missing, [])

    def test_code_in_comments_is_shown_as_code(self):
        shown = {block for page in self.pages.values() for block in code_blocks(page)}
        for name, text in self.headers.items():
            self.assertEqual(unfenced_code(text), [], name)
            self.assertEqual([code for code in fences_of(text) if without_space(code) not in shown], [], name)

    def test_no_underscore_of_a_name_is_taken_for_emphasis(self):
        """As in a name that begins with one; descriptions of headers have no emphasis of their own."""
        of_headers = [name for name in self.pages if re.match(r"class|struct|group|.*_8h\.html", name)]
        self.assertGreater(len(of_headers), 50)
        for name in of_headers:
            self.assertEqual(re.findall(r'(?<!"paramname">)<em>(\w[^<]*)</em>', self.pages[name]), [], name)

    def test_the_first_page_has_the_program_of_the_readme_and_leads_to_the_guides(self):
        index = self.pages["index.html"]
        program = re.search(r"^```cpp\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
        self.assertEqual(code_blocks(index)[:1], [without_space(program[1])])
        for page in ("md_docs_FSDP2.html", "md_docs_INSTALL.html", "mnist_8cc-example.html"):
            self.assertIn(f'href="{page}"', index)
            self.assertIn(page, self.pages)


class ChecksCanFailTest(unittest.TestCase):
    """On headers in which something is wrong."""

    BROKEN = [  # header, what is there, what takes its place, what Doxygen says
        ("linear.h", "/// Shapes:", "/// @param wieght [out, in]\n/// Shapes:", "'wieght'"),
        ("shard.h", "/// What one rank holds", "/// @ref nothing_of_this_name\n/// What one rank holds", "nothing_of_this_name"),
        ("unit.h", "  /// The module.\n", "", "operator*"),
        ("sharded.h", "The constructors are M's.", "The constructors are <M>'s.", "<M>"),
    ]

    def test_doxygen_complains_of_each_mistake(self):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            shutil.copytree(HEADERS, folder / "fsdp")
            for name, old, new, _ in self.BROKEN:
                text = (folder / "fsdp" / name).read_text()
                self.assertEqual(text.count(old), 1, f"{name}: {old}")
                (folder / "fsdp" / name).write_text(text.replace(old, new))
            complaints = run_doxygen(folder, INPUT=f"docs/api/groups.dox {folder}/fsdp", GENERATE_HTML="NO", GENERATE_XML="YES",
                                     XML_PROGRAMLISTING="NO", GENERATE_TAGFILE="")
        for name, _, _, said in self.BROKEN:
            self.assertTrue(any(f"/{name}:" in line and said in line for line in complaints), f"{name}: {complaints}")

    def test_names_are_found(self):
        names = declared_in("namespace fsdp {\nclass A;\nclass FSDP_API B : public C {\n public:\n  B() = default;\n  int f(int a,\n"
                            "        int b) const;\n  bool operator==(const B&) const = default;\n  int x = 1;  ///< One.\n private:\n"
                            "  int y_;\n};\nusing P = int;\nFSDP_API int g(int a);\n}  // namespace fsdp\n"
                            "namespace fsdp::detail {\nint h();\n}\n")
        self.assertEqual((names.free, names.members), ({"B", "P", "g"}, {"B::B", "B::f", "B::operator==", "B::x"}))

    def test_code_outside_of_a_fence_is_found(self):
        self.assertEqual(unfenced_code("/// Thus:\n///\n///   f(x);\n"), ["   f(x);"])
        self.assertEqual(unfenced_code("/// ```cpp\n/// if (x) {\n///   f(x);\n/// ```\n"), [])


if __name__ == "__main__":
    if shutil.which("doxygen") is None:
        print("doxygen is not installed; scripts/setup brings it")
        sys.exit(SKIPPED)
    unittest.main()
