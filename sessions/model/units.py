"""How many units, such as header fields, one request may have. Each unit costs time, however few bytes it has. Pure.

A reader stops at the first unit above the limit. Values of JSON are counted in `bounded_json.py`.
"""

from __future__ import annotations

#: header fields of a request
HEAD_FIELDS = 500
#: variables of an environment
ENV_NAMES = 1000
#: pairs of a sandbox's metadata
METADATA_PAIRS = 1000
#: arguments of a command
ARGUMENTS = 10_000
#: parts of a form, and header fields of all its parts; a file's part has two or three
FORM_PARTS = 1000
FORM_FIELDS = 4000
#: tokens that the code policy `ragflow-strict` reads: words, numbers, brackets and operators. Python's parser takes up
#: to 5 us for each. Ordinary code of the maximum length has about 8,000.
CODE_TOKENS = 10_000
