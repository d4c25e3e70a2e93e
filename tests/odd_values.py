"""Fifty odd values for every type that a column has, as SQL: what a hand may write there."""

_YEARS = [
    1, 2, 99, 100, 999, 1000, 1582, 1752, 1899, 1900, 1969, 1970, 1999, 2000, 2038, 2106, 2262, 2263, 4713, 8999, 9000,
    9001, 9998, 9999, 10_000, 12_000, 32_767, 65_536, 99_999, 200_000, 294_275,
]  # fmt: skip
TIMES = [
    "'infinity'", "'-infinity'", "NULL", "'epoch'", "'0001-01-01 00:00+14'", "'9999-12-31 23:59:59.999999-12'",
    "'9999-12-31 23:59:59.999999+00'", "'1969-12-31 23:59:59.999999+00'", "'294276-12-31'", "'4714-11-24 00:00+00 BC'",
    "'0001-12-31 BC'", "'0044-03-15 BC'", "'4000-01-01 BC'", "now()", "now() + interval '1 microsecond'",
    "now() - interval '1 microsecond'", "now() + interval '1000 years'", "now() - interval '1000 years'",
    "'2024-02-29'",
    *(f"'{year:04}-06-15 12:00+00'" for year in _YEARS),
]  # fmt: skip
NUMBERS = [
    "NULL", "0", "3", "7", "42", "255", "1000", "-1000", "100000", "999999999", "-999999999",
    *(f"{sign}{2**power + more}" for power in (0, 7, 15, 16, 24, 30, 31, 32, 62) for sign, more in
      (("", -1), ("", 0), ("-", -1), ("-", 0), ("", 1))),
]  # fmt: skip
FLOATS = [
    "NULL", "'NaN'", "'infinity'", "'-infinity'", "0", "-0.0", "0.5", "1", "1.0000000000000002", "-1", "2", "100",
    *(f"{sign}{digits}e{power}" for power in (-300, -30, -5, 5, 30, 300) for digits in (1, 9.9, 3.3) for sign in "+-"),
    "5e-324", "1.7976931348623157e308",
]  # fmt: skip
_ERROR = '"type": "x", "message": "y"'
JSONS = [
    "NULL",
    *(f"'{text}'" for text in (
        "null", "{}", "[]", "[1]", "[{}]", "true", "0", "-0", "1e999", "1e-999", '""', '"\\u0000"', '"\\ud800"',
        '"\\udc00\\ud800"', '{"\\u0000": 1}', '{"a": 1, "a": 2}', '{"": {}}', '[{"type": 1}]', '[{"type": "x"}]',
        '[{"type": "x", "message": null}]', '[{"type": "\\ud800"}]', f'[{{{_ERROR}, "attempt": "many"}}]',
        f'[{{{_ERROR}, "more": 1}}]', f'[{{{_ERROR}, "traceback": 7}}]', "[null]", "[[]]", '["x"]',
        '[1, {"type": "x"}]', f"{{{_ERROR}}}", " 1 ", "[1.0e5]", "123456789012345678901234567890", "0.1", '"é"',
        '"\\""', '"\\\\"', '"\\/"', '{"__proto__": 1}', '"2024-02-30"', '"NaN"', '{"a": [null]}',
        "9007199254740993", "-1e308", "[true, false]", '"\\ufffd"',
    )),
    "(repeat('[', 3000) || repeat(']', 3000))::json", "repeat('9', 5000)::json", "to_json(repeat('x', 300000))",
    "('[' || repeat('1,', 30000) || '1]')::json",
]  # fmt: skip
TEXTS = [
    "NULL", "''", "' '", "E'\\n'", "E'\\t'", "E'\\r\\n'", "E'\\x01'", "E'\\x7f'", "'null'", "'NULL'", "'0'", "'-1'",
    "'true'", "'{}'", "'[]'", "'odd'", "'Odd'", "'ODD'", "'%'", "'_'", "'*'", "'\\'", "'\"'", "''''", "'`'", "'$$'",
    "':name'", "'%s'", "'{0}'", "'--'", "'/*'", "';'", "'é'", "E'e\\u0301'", "E'\\u200b'", "E'\\u202e'", "E'\\ufeff'",
    "E'\\uffff'", "E'\\U0010ffff'", "E'\\U0001f600'", "'permanent'", "'attempts'", "'running'", "'work'", "'Work'",
    "'nan'", "'infinity'", "repeat('x', 255)", "repeat('x', 100000)", "repeat(E'\\U0001f600', 20000)",
]  # fmt: skip
IDS = [
    "NULL", "gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    *[f"'{digit * 8}-{digit * 4}-{version}{digit * 3}-8{digit * 3}-{digit * 12}'" for digit in "0123456789abcdef"
      for version in "147"][:46],
]  # fmt: skip
BOOLEANS = ["NULL", "true", "false"]
ARRAYS = ["NULL", "'{}'", "'{NULL}'", *(f"ARRAY[{text}]" for text in TEXTS)]
ON_POSTGRES = {
    "timestamp with time zone": TIMES,
    "integer": NUMBERS,
    "smallint": NUMBERS,
    "bigint": NUMBERS,
    "real": FLOATS,
    "double precision": FLOATS,
    "json": JSONS,
    "jsonb": JSONS,
    "text": TEXTS,
    "uuid": IDS,
    "boolean": BOOLEANS,
    "ARRAY": ARRAYS,
}
"""By the type of the column, as information_schema calls it."""
ON_SQLITE = [
    "NULL", "''", "' '", "'soon'", "'{'", "'[1]'", "'{}'", "'null'", "'0'", "'1.5'", "'-1'", "' 7 '", "'1e3'", "'0x10'",
    "x'ff'", "x''", "x'00'", "x'31'", "zeroblob(100000)", "CAST(x'fffe' AS TEXT)", "CAST(x'00' AS TEXT)",
    "CAST(x'610062' AS TEXT)", "CAST(x'eda080' AS TEXT)", "0", "1", "2", "-1", "-0.0", "0.5", "1.5", "1e15", "1e19",
    "1e308", "-1e308", "9e999", "-9e999", "9223372036854775807", "-9223372036854775808", "4611686018427387904",
    "-4611686018427387904", "2147483648", "253402300800000000", "-62135596800000001", "char(0xd83d)", "char(0x10ffff)",
    "'ABCDEF00-0000-7000-8000-000000000000'", "'00000000-0000-0000-0000-000000000000'", "'[{\"type\": 1}]'",
    "printf('%.*c', 100000, 'x')", "printf('%.*c', 5000, '[')",
]  # fmt: skip
"""SQLite takes any of them in any column, unless a constraint forbids it."""
