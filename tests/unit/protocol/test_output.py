"""The output of several attempts, told apart."""

from __future__ import annotations

from trialpod.protocol.output import Section, attempt_mark, lines_of, not_in, sections

FIRST, SECOND, THIRD = attempt_mark("a_1", 1), attempt_mark("b_2", 1), attempt_mark("a_1", 2)
OUTPUT = f"warming up\n{FIRST}one\n{SECOND}\n\ntwo, unended{THIRD}three\n"


def test_each_attempt_has_its_own_lines_and_its_mark() -> None:
    assert sections(OUTPUT) == [
        Section("a_1", 1, "warming up\n\ntrialpod: trial a_1 attempt 1\none\n"),
        Section("b_2", 1, "trialpod: trial b_2 attempt 1\n\n\ntwo, unended"),
        Section("a_1", 2, "trialpod: trial a_1 attempt 2\nthree\n"),
    ]


def test_what_comes_before_the_first_mark_of_a_part_is_nobodys() -> None:
    assert sections(f"rest of one\n{SECOND}two\n", whole=False) == [
        Section("b_2", 1, "trialpod: trial b_2 attempt 1\ntwo\n")
    ]


def test_output_without_marks_is_nobodys() -> None:
    assert sections("no work\n") == []


def test_an_attempt_that_has_printed_more_since_is_added_to() -> None:
    first, again = "trialpod: trial a_1 attempt 1\nLoading\n", "trialpod: trial a_1 attempt 2\nLoading\n"
    assert _rest(first, f"{first}and more\n") == "and more\n"
    assert _rest(f"{first}{again}", f"{first}and more\n") == "and more\n"
    assert _rest(f"{first}10%\n", f"{first}10% 20%\n") == " 20%\n"
    assert _rest(f"{first}{again}", f"{first}") == ""
    assert _rest(first, again) == again
    assert _rest("", first) == first


def test_unmarked_output_is_in_one_log_whole_or_not_at_all() -> None:
    assert _rest("Loading\nkilled\n", "Loading\n") == ""
    assert _rest("Loading\n", "Loading\nkilled\n") == "Loading\nkilled\n"


def _rest(log: str, printed: str) -> str:
    return not_in(log.encode(), printed.encode()).decode()


def test_lines_are_distinguished_as_they_come() -> None:
    lines = OUTPUT.encode().splitlines(keepends=True)
    assert b"".join(lines_of(lines, "b_2", "a_1")).decode() == ("trialpod: trial b_2 attempt 1\n\n\ntwo, unended\n")
    assert b"".join(lines_of(lines, "a_1", "a_1")).decode() == (
        "warming up\ntrialpod: trial a_1 attempt 1\none\ntrialpod: trial a_1 attempt 2\nthree\n"
    )
    assert b"".join(lines_of(lines, "a_1", "a_1", until=1)).decode() == (
        "warming up\ntrialpod: trial a_1 attempt 1\none\n"
    )
    more = [*lines, *attempt_mark("b_2", 2).encode().splitlines(keepends=True), b"four\n"]
    assert list(lines_of(more, "a_1", "a_1", until=2)) == list(lines_of(lines, "a_1", "a_1"))
    rest = lines[lines.index(b"trialpod: trial b_2 attempt 1\n") + 1 :]
    assert list(lines_of(rest, "a_1", "b_2", until=2)) == [b"trialpod: trial a_1 attempt 2\n", b"three\n"]
    assert list(lines_of([b"one\n", *more[-3:]], "a_1", "a_1", first_attempt=2, until=2)) == [b"one\n"]
    assert list(lines_of([b"\n", b"last\n", b"\n"], "a_1", "a_1")) == [b"\n", b"last\n", b"\n"]
