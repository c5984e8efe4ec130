"""What the loaders of IRRA's line make of a caption, restated: the same in training and in the test"""
import functools
import gzip
import html
import re
from pathlib import Path

import ftfy
import open_clip
import regex

START, END = 49406, 49407
AWKWARD = (
    "A MAN in a Red COAT.", "two  blanks   and\ta tab", "  blanks around  ", "a line\nand another\r\nand a third",
    "a woman&#39;s &quot;red&quot; coat &amp; hat", "twice &amp;amp; escaped &amp;lt;b&amp;gt;", "<b>marked</b> text",
    "caf\u00e9 fa\u00e7ade, na\u00efve", "cafe\u0301 in two signs", "mojibake: caf\u00c3\u00a9 it\u00e2\u20ac\u2122s",
    "man\u2019s \u201cJeans\u201d, woman's T-shirt, don't, they'll", "1.80m tall, 25-30 years", "!!! \u00a7 ... ???",
    "a \U0001F455 shirt\u200b and \uff34-shirt", "a\u00a0fixed blank", "no\x1cbreak, bell\x07 and \x0bfeed",
    "a red coat " + "and a very long black leather boot, "*30, "word "*166, "word "*167, "")


@functools.cache
def byte_letters():
    "Byte -> the letter that stands for it in CLIP's vocabulary"
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


@functools.cache
def vocabulary():
    "Pair -> its rank, piece -> its number; letters come in the order of their codes as CLIP lists them"
    file = Path(open_clip.__file__).parent/"bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")[1:48895]
    pairs = [tuple(line.split()) for line in lines]
    letters = list(byte_letters().values())
    pieces = letters + [f"{x}</w>" for x in letters] + ["".join(pair) for pair in pairs]
    return {pair: i for i, pair in enumerate(pairs)}, {piece: i for i, piece in enumerate(pieces)}


def pieces_of(word):
    "Byte pairs joined one after the other, the most frequent first"
    ranks, _ = vocabulary()
    parts = [*word[:-1], f"{word[-1]}</w>"]
    while len(parts) > 1:
        rank, pair = min((ranks.get(p, len(ranks)), p) for p in zip(parts, parts[1:]))
        if rank == len(ranks): break
        joined, i = [], 0
        while i < len(parts):
            both = tuple(parts[i:i + 2]) == pair
            joined.append("".join(parts[i:i + 1 + both]))
            i += 1 + both
        parts = joined
    return parts


def released_words(caption):
    "Repaired, entities read twice, blanks joined, lower case; punctuation, accents and digits stay"
    text = html.unescape(html.unescape(ftfy.fix_text(caption)))
    text = re.sub(r"\s+", " ", text).strip().lower()
    return regex.findall(r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+", text, regex.IGNORECASE)


def released_ids(caption, length):
    "A row of token numbers: start, pieces, end, zeros; a longer caption is cut and its last token is the end"
    numbers = vocabulary()[1]
    words = ["".join(byte_letters()[b] for b in word.encode("utf-8")) for word in released_words(caption)]
    row = [START, *(numbers[p] for word in words for p in pieces_of(word)), END]
    if len(row) > length: row = [*row[:length - 1], END]
    return row + [0]*(length - len(row))
