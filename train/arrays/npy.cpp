// SPDX-License-Identifier: Apache-2.0
// NumPy's header is text, a Python dict; what NumPy writes is understood, and nothing else.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/arrays/array_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

namespace tessera::train {
namespace {

constexpr std::string_view kWhere = "data";
constexpr std::string_view kMagic = "\x93NUMPY";

struct TypeName {
  std::string_view descr;
  ElementType type;
};
constexpr std::array<TypeName, 4> kTypes{{{"<u2", ElementType::u16},
                                          {"<i4", ElementType::i32},
                                          {"<u4", ElementType::u32},
                                          {"<i8", ElementType::i64}}};

// The header is a Python dict of three known keys; this reads such dicts and nothing else.
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  ArrayHeader parse() {
    ArrayHeader header;
    std::optional<std::string_view> descr;
    std::optional<bool> fortran;
    bool shaped = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr) descr = peek() == '[' ? rest() : quoted();
      else if (key == "fortran_order" && !fortran) fortran = boolean();
      else if (key == "shape" && !shaped) header.shape = tuple(), shaped = true;
      else fault(concat("key '", io::excerpt(key), "'"));
      if (structured_) break;
      if (!take(',') && peek() != '}') fault("no comma between two keys");
    }
    if (!descr || (!structured_ && (!fortran || !shaped)))
      fault("descr, fortran_order or shape is missing");
    const auto type = std::ranges::find(kTypes, *descr, &TypeName::descr);
    if (type == kTypes.end()) {
      fail<DataError>(kWhere, path_, " holds elements of type ", io::excerpt(*descr),
                      ", expected <u2, <i4, <u4 or <i8 (uint16, int32, uint32 or int64); convert "
                      "it with numpy.save(FILE, array.astype('<i4'))");
    }
    header.type = type->type;
    if (*fortran) {
      fail<DataError>(kWhere, path_,
                      " is in Fortran order; save it in C order with numpy.save(FILE, "
                      "numpy.ascontiguousarray(array))");
    }
    return header;
  }

 private:
  [[noreturn]] void fault(std::string_view what) const {
    fail<DataError>(kWhere, path_, " has a header that is not NumPy's, at byte ", at_, " of '",
                    io::excerpt(text_, 100), "': ", what, "; write the file with numpy.save");
  }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fault(concat("no '", c, '\''));
  }
  std::string_view quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fault("no quote");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fault("a quote without end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  // The fields of a structured type, which is always refused.
  std::string_view rest() {
    structured_ = true;
    return text_.substr(at_, 40);
  }
  bool boolean() {
    peek();
    for (const auto& [word, value] : {std::pair{"True", true}, {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += std::strlen(word);
      return value;
    }
    fault("neither True nor False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!take(')')) {
      peek();
      int64_t value = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (error != std::errc{} || value < 0) fault("not a size");
      at_ = static_cast<size_t>(end - text_.data());
      values.push_back(value);
      if (!take(',') && peek() != ')') fault("no comma between two sizes");
    }
    return values;
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  bool structured_ = false;
};

}  // namespace

ArrayHeader parse_npy_header(std::string_view bytes, const std::string& path) {
  if (!bytes.starts_with(kMagic)) {
    fail<DataError>(kWhere, path, " does not begin as .npy files do; write it with numpy.save");
  }
  const auto byte = [&](size_t i) {
    return i < bytes.size() ? static_cast<size_t>(static_cast<unsigned char>(bytes[i])) : 0;
  };
  const size_t major = byte(6), minor = byte(7);
  if (bytes.size() > 7 && (major < 1 || major > 3 || minor != 0)) {
    fail<DataError>(kWhere, path, " is of .npy format ", major, '.', minor,
                    ", expected 1.0, 2.0 or 3.0; write it with numpy.save");
  }
  const size_t start = major == 1 ? 10 : 12;
  const size_t length = byte(8) | byte(9) << 8 | (major == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (bytes.size() < start || length > bytes.size() - start) {
    fail<DataError>(kWhere, path, " ends within its header: ", counted(bytes.size(), "byte"),
                    ", expected ", start + length, " and the tokens; copy or write it again");
  }
  ArrayHeader header = HeaderText(bytes.substr(start, length), path).parse();
  header.data_offset = start + length;
  if (header.shape.size() != 1 && header.shape.size() != 2) {
    fail<DataError>(kWhere, path, " is of shape ", header.shape_text(),
                    ", expected one dimension (a stream of tokens) or two (rows of seq_len + 1)");
  }
  return header;
}

std::string npy_header(ElementType type, int64_t elements) {
  constexpr size_t kBytes = 128, kBefore = 10;  // NumPy aligns the elements to 64 bytes
  std::string text = concat("{'descr': '", std::ranges::find(kTypes, type, &TypeName::type)->descr,
                            "', 'fortran_order': False, 'shape': (", elements, ",), }");
  text.resize(kBytes - kBefore - 1, ' ');
  return concat(kMagic, std::string_view("\x01\0", 2), static_cast<char>(kBytes - kBefore), '\0',
                text, '\n');
}

}  // namespace tessera::train
