// SPDX-License-Identifier: Apache-2.0
// Reads what a header of an op room offers: public functions, types and op structs, each with the
// comment above it. No compiler runs; it knows the form that clang-format gives our headers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::docs {

/// A function or a type that lies directly in namespace tessera.
struct Public {
  std::string declaration;  // on one line, without body, `inline` and the like
  std::string name;
  std::string doc;      // the doc comment directly above
  std::string run_doc;  // the last one above, no blank line or other comment between
  std::string body;
  std::string result;  // the expression that it returns, if its body is nothing else
  std::string fields;  // the body of an enum, or of a struct without functions
  bool is_type = false;
};

/// A struct in namespace tessera::op.
struct OpStruct {
  std::string type, base;  // base: `Reduce` of `struct Sum : Reduce<Sum>`
  std::string name, backward_name;
  std::string doc;
  std::string f, pull;  // of pointwise ops: the expression of f and of its gradient, if it is one
};

/// A paragraph, a function or a type, in the order of the header.
struct Item {
  std::string paragraph;  // if not empty, this is all
  Public entry;
};

struct Header {
  std::string opening;  // the comment at its top
  std::vector<Item> items;
  std::vector<OpStruct> structs;
};

/// The comments are joined to one line each; `text` is the header's source.
Header read_header(std::string_view text);

/// The declaration without default values: what tells overloads apart.
std::string without_defaults(const std::string& declaration);

struct Room {
  std::string name;
  Header header;  // of all its public headers: <room>.h first
};
/// The rooms of `kernels`, by name. A function that is declared several times counts once.
std::vector<Room> read_rooms(const std::filesystem::path& kernels);

}  // namespace tessera::docs
