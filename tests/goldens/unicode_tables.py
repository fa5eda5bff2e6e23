# SPDX-License-Identifier: Apache-2.0
"""Writes the tables train/unicode/unicode_*.cpp, so that text is split and normalised as the package
`tokenizers` does. Needs: pip install unicodedata2==16.0.0 tokenizers==0.23.3

Categories are those of Unicode 16, as in the regular expressions of `tokenizers` (Oniguruma 6.9.10).
Its NFC knows the characters of Unicode 9 alone: decompositions and combining classes of characters
that it leaves as they are, are left out here too."""
import pathlib

import unicodedata2 as unicode
from tokenizers import normalizers

FOLDER = pathlib.Path(__file__).parents[2] / "train/tokenizer"
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp "
              "Cc Cf Cs Co Cn").split()
nfd = normalizers.NFD().normalize_str


def runs(value):
    """(first code point, value) of each run of equal values."""
    last = None
    for point in range(0x110000):
        if (now := value(point)) != last:
            yield point, now
            last = now


def combining_class(point):
    """0 unless `tokenizers` moves the mark before U+0345, whose class, 240, is the highest."""
    of = unicode.combining(chr(point))
    if of == 0 or point == 0x345:
        return of
    return of if nfd("a\u0345" + chr(point)) != "a\u0345" + chr(point) else 0


def decompositions():
    """(character, first, second or 0, whether the two compose to it again)."""
    for point in POINTS:
        text = unicode.decomposition(chr(point))
        if not text or text.startswith("<") or nfd(chr(point)) == chr(point):
            continue
        parts = [int(part, 16) for part in text.split()]
        yield (point, parts[0], parts[1] if len(parts) == 2 else 0,
               unicode.normalize("NFC", chr(point)) == chr(point))


def array(kind, name, words):
    text = f"const {kind} {name}[] = {{\n"
    line = "   "
    for word in words:
        if len(line) + len(word) + 2 > 100:
            text += line + "\n"
            line = "   "
        line += f" {word},"
    return text + line + "\n};\n"


def write(name, tables, functions):
    (FOLDER / name).write_text(f"""// SPDX-License-Identifier: Apache-2.0
// Written by tests/goldens/unicode_tables.py from Unicode {unicode.unidata_version}.
#include "tessera/train/unicode/unicode_tables_impl.h"

// clang-format off
namespace tessera::train::unicode {{
namespace {{
{"".join(tables)}
}}  // namespace

{"".join(functions)}
}}  // namespace tessera::train::unicode
// clang-format on
""")


def getter(kind, name, table):
    return f"std::span<const {kind}> {name}() {{ return {table}; }}\n"


def main():
    categories = [f"0x{start << 5 | CATEGORIES.index(name):X}"
                  for start, name in runs(lambda c: unicode.category(chr(c)))]
    classes = [f"0x{start << 8 | of:X}" for start, of in runs(combining_class)]
    pairs = [f"{{0x{c:X}, 0x{a:X}, 0x{b:X}}}" for c, a, b, again in decompositions() if again]
    others = [f"{{0x{c:X}, 0x{a:X}, 0x{b:X}}}" for c, a, b, again in decompositions() if not again]
    write("unicode_categories.cpp", [array("uint32_t", "kRuns", categories)],
          [getter("uint32_t", "category_runs", "kRuns")])
    write("unicode_decompositions.cpp",
          [array("uint32_t", "kClassRuns", classes), array("Decomposition", "kComposed", pairs),
           array("Decomposition", "kNeverComposed", others)],
          [getter("uint32_t", "class_runs", "kClassRuns"),
           getter("Decomposition", "composed", "kComposed"),
           getter("Decomposition", "never_composed", "kNeverComposed")])


if __name__ == "__main__":
    main()
