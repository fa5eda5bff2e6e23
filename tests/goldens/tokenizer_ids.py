# SPDX-License-Identifier: Apache-2.0
"""Writes the folder tokenizer_ids/: a small tokenizer of each style that the library reads, trained
here, documents, and digests of the ids that the package `tokenizers` gives them.
Needs: pip install tokenizers==0.23.3

With a folder and text files as arguments it trains tokenizers of 8000 tokens on these instead, and
writes the ids themselves: DIR/<style>/tokenizer.json and DIR/<style>/ids.txt, a line for each line
of DIR/documents.jsonl, to compare with `tessera tokenize --ids` on more text than is kept here."""
import gzip
import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

ROOT = pathlib.Path(__file__).parents[2]
OUT = pathlib.Path(__file__).parent / "tokenizer_ids"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES)
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS
         + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
             r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + SPACES]


def byte_level(patterns, normalizer=None, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    return t


def trained(t, texts, size, marks=(), alphabet=pre_tokenizers.ByteLevel.alphabet(), **options):
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(marks), initial_alphabet=alphabet,
        show_progress=False, **options))
    return t


def styles(texts, size):
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    yield "gpt2", trained(gpt2, texts, size, ["<|endoftext|>"])

    t = trained(byte_level([LLAMA3], ignore_merges=True), texts, size)
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    begin = "<|begin_of_text|>"
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=begin + " $A",
                                      special_tokens=[(begin, t.token_to_id(begin))])])
    yield "llama3", t

    t = trained(byte_level([QWEN2], normalizers.NFC()), texts, size)
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    t.add_tokens([AddedToken("<tool_call>", normalized=False)])
    yield "qwen2", t

    t = trained(byte_level(DEEPSEEK3, normalizers.Sequence([])), texts, size)
    t.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    t.add_tokens([AddedToken("<think>", normalized=True),
                  AddedToken("word", single_word=True, lstrip=True, rstrip=True, normalized=False)])
    yield "deepseek3", t

    yield "o200k", trained(byte_level([O200K]), texts, size, ["<|endoftext|>"])

    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    trained(t, texts, size, ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], [],
            limit_alphabet=300)
    # Llama 2 and Mistral train elsewhere: words end at spaces, but the file has no such part.
    file = json.loads(t.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    file["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    file["pre_tokenizer"] = None
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    yield "llama2", Tokenizer.from_str(json.dumps(file))
    file["normalizer"] = None
    file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                             "split": False}
    # The older form of merges: one text for a pair.
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    yield "mistral", Tokenizer.from_str(json.dumps(file)), file


SENTENCES = [
    "The quick brown fox doesn't jump; it's over 1234567 lazy dogs, they'll say — we'd agree. ",
    "Der schnelle Fuchs läuft über 42 Straßen und grüßt die Bäcker, Müller und Köche.\n",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.\n\n",
    "いろはにほへと ちりぬるを 東京都は2026年に大きい。カタカナも、ひらがなも。",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。价格是3.14元！",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "한국어는 조합된 글자와 자모 ᄒ\u1161\u11ab 로 쓴다. ",
    "\tfor (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * 0x1F;  // 100%\r\n\t}\n",
]


def random_documents(count):
    draw = random.Random(7)
    points = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    low = [c for c in points if c < 0x3400]
    marks = [c for c in points if unicodedata.combining(chr(c))]
    special = [ord(c) for c in " \t\n\r\u00a0\u2003\u3000\u180e\u0085\u200d'’sSſtTmMlLdDrRvVeEkK019"
               "abc.,!?/\\<>|_-▁ẞéÅ\u0301\u0323\u030a가ᄀ\u1161\u11a8漢字かカ"]
    words = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<0x41>", "<think>", " word ", " words",
             "word", "<|im_start|>", "<｜end▁of▁sentence｜>", "  ", "\n", " ", "▁", "a",
             "<tool_call>", "'s", "'LL", "1234567", "x"]
    text = lambda pool, n: "".join(chr(draw.choice(pool)) for _ in range(n))
    for i in range(count):
        n = draw.choice([1, 2, 3, 10, 100, 900])
        yield [lambda: text(points, n), lambda: text(low, n), lambda: text(special, 2 * n),
               lambda: "".join(text(draw.choice([marks, low, special]), 1) for _ in range(n)),
               lambda: "".join(draw.choice(words) for _ in range(n)),
               lambda: "".join(draw.choice(SENTENCES) for _ in range(1 + n // 20))][i % 6]()


def digest(ids):
    """How many, and FNV-1a of the ids as little-endian 32-bit numbers."""
    value = 0x811C9DC5
    for byte in b"".join(struct.pack("<I", i) for i in ids):
        value = (value ^ byte) * 0x1000193 % (1 << 32)
    return f"{len(ids)} {value:08x}"


def ids_of(t, document):
    return t.encode(document, add_special_tokens=False).ids


def small():
    OUT.mkdir(exist_ok=True)
    sources = [(ROOT / name).read_text() for name in ("train/README.md", "core/README.md")]
    documents = list(random_documents(300)) + sources
    with gzip.GzipFile(OUT / "documents.jsonl.gz", "wb", mtime=0) as file:
        for document in documents:
            file.write((json.dumps({"text": document}) + "\n").encode())
    expected = {}
    for name, t, *form in styles(SENTENCES * 20 + sources, 700):
        text = json.dumps(form[0] if form else json.loads(t.to_str()), ensure_ascii=False,
                          separators=(",", ":"))
        (OUT / f"{name}.json").write_text(text + "\n")
        expected[name] = [digest(ids_of(t, document)) for document in documents]
    (OUT / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")
    print(sum(len(d.encode()) for d in documents), "bytes of text")


def large(folder, files):
    folder = pathlib.Path(folder)
    lines = (folder / "documents.jsonl").read_text().splitlines()
    texts = [pathlib.Path(name).read_text() for name in files]
    for name, t, *_ in styles(texts, 8000):
        (folder / name).mkdir(exist_ok=True)
        t.save(str(folder / name / "tokenizer.json"))
        with open(folder / name / "ids.txt", "w") as out:
            for line in lines:
                print(*ids_of(t, json.loads(line)["text"]), file=out)


if __name__ == "__main__":
    large(sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else small()
