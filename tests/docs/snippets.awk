# SPDX-License-Identifier: Apache-2.0
# The ```cpp blocks of a page as tests that run them: TEST(<suite>, Line12) { const Session session; <block> }.
# Usage: awk -v suite=Name -v page=docs/name.md -f snippets.awk docs/name.md
BEGIN {
  print "#include <gtest/gtest.h>\n#include <iostream>\n#include <tessera/tessera.h>\n\nusing namespace tessera;\n"
}
inside && /^```$/ { print "}"; inside = 0 }
inside { print }
/^```cpp$/ {
  printf "\nTEST(%s, Line%d) {\n[[maybe_unused]] const Session session;\n#line %d \"%s\"\n", suite, NR, NR + 1, page
  inside = 1
}
