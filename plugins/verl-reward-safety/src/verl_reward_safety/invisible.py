"""Characters that a reader does not see, and that therefore must not hide a word."""

from __future__ import annotations

# Default_Ignorable_Code_Point of the Unicode Character Database (DerivedCoreProperties.txt), and
# the control characters that are not white space: a renderer shows none of them.
_RANGES = (
    (0x0000, 0x0008),  # controls before the tab
    (0x000E, 0x001B),  # controls between carriage return and the separators
    (0x007F, 0x0084),  # delete, and C1 controls before next line
    (0x0086, 0x009F),  # C1 controls after it
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors and vowel separator
    (0x200B, 0x200F),  # zero-width space, non-joiner, joiner; direction marks
    (0x202A, 0x202E),  # direction embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, direction isolates
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # zero-width no-break space (byte order mark)
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0xFFF0, 0xFFF8),  # unassigned, ignorable
    (0x1BCA0, 0x1BCA3),  # shorthand format controls
    (0x1D173, 0x1D17A),  # musical format controls
    (0xE0000, 0xE0FFF),  # tags, variation selectors supplement
)

#: Every character that a reader does not see.
INVISIBLE = frozenset(chr(code) for first, last in _RANGES for code in range(first, last + 1))
