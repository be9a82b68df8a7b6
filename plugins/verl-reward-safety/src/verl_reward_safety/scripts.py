"""Where a word ends: scripts that put spaces between words, and those that do not."""

from __future__ import annotations

# Blocks of the Unicode Standard whose scripts write words without spaces between them, or (Hangul)
# hang particles on them: a neighbouring letter does not tell that the word goes on.
_UNSPACED = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1100, 0x11FF),  # Hangul Jamo
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # CJK and Kangxi radicals
    (0x3005, 0x3007),  # ideographic iteration mark, closing mark, zero
    (0x3040, 0x318F),  # Hiragana, Katakana, Bopomofo, Hangul compatibility Jamo
    (0x31A0, 0x31FF),  # Bopomofo extended, CJK strokes, Katakana extensions
    (0x3400, 0x4DBF),  # CJK extension A
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0xA960, 0xA97F),  # Hangul Jamo extended A
    (0xAC00, 0xD7FF),  # Hangul syllables, Jamo extended B
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0x20000, 0x3FFFF),  # CJK extensions B and later
)


def continues_word(character: str) -> bool:
    """Is this a letter or digit of a script that puts spaces between words?"""
    if character.isascii():
        return character.isalnum()
    code = ord(character)
    return character.isalnum() and not any(first <= code <= last for first, last in _UNSPACED)


def is_whole(text: str, start: int, end: int) -> bool:
    """Does ``text[start:end]`` stand there as a word of its own?

    True where its first and last characters are not letters or digits of such a script (a Chinese
    word, a sign), or where no such letter or digit stands beside them.
    """
    if start > 0 and continues_word(text[start]) and continues_word(text[start - 1]):
        return False
    return not (end < len(text) and continues_word(text[end - 1]) and continues_word(text[end]))
