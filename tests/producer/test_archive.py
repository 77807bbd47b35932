"""Archives are read as a stream, and every place that is no document is named."""

import json
import os

import pytest

from producer.archive import Entry, Rejected, open_archive, scan
from worker.contract import ErrorKind, UsageError

QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}


def jsonl(tmp_path, *lines):
    path = tmp_path / "archive.jsonl"
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n")
    return path


def read(path):
    return list(open_archive(path).read())


def only_rejected(path):
    (place,) = (place for place in read(path) if isinstance(place, Rejected))
    return place


def test_a_line_becomes_a_document_with_its_other_fields_in_order(tmp_path):
    path = jsonl(tmp_path, {"zeta": 1, "id": 7, "text": "Hello", "alpha": [1]}, {"id": "b", "state": {"a": 1}})
    first, second = read(path)
    assert first == Entry(0, "7", "Hello", None, {"zeta": 1, "alpha": [1]})
    assert list(first.columns) == ["zeta", "alpha"]
    assert second == Entry(1, "b", {"a": 1}, None, {})


def test_invalid_json_on_line_3_is_reported_with_its_line_and_the_rest_goes_on(tmp_path):
    path = jsonl(
        tmp_path, {"id": "a", "text": "x"}, {"id": "b", "text": "x"}, b'{"id": "c", ', {"id": "d", "text": "x"}
    )
    places = read(path)
    assert [place.document_id for place in places] == ["a", "b", "line 3", "d"]
    assert places[2].kind == ErrorKind.INVALID_JSON
    assert "archive.jsonl line 3" in places[2].reason
    assert [place.position for place in places] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        (b'{"id": "a", "text": "\xff"}', ErrorKind.INVALID_JSON, "UTF-8"),
        (b'["a"]', ErrorKind.INVALID_JSON, "an array"),
        (b'{"id": "a", "text": NaN}', ErrorKind.INVALID_JSON, "invalid JSON"),
        ({"text": "x"}, ErrorKind.INVALID_DOCUMENT, "no `id`"),
        ({"id": True, "text": "x"}, ErrorKind.INVALID_DOCUMENT, "true or false"),
        ({"id": 1.5, "text": "x"}, ErrorKind.INVALID_DOCUMENT, "a number"),
        ({"id": " ", "text": "x"}, ErrorKind.INVALID_DOCUMENT, "empty"),
        ({"id": "a"}, ErrorKind.INVALID_DOCUMENT, "neither"),
        ({"id": "a", "text": "x", "state": "y"}, ErrorKind.INVALID_DOCUMENT, "both"),
        ({"id": "a", "text": 3}, ErrorKind.INVALID_DOCUMENT, "a number"),
        ({"id": "a", "text": " \n"}, ErrorKind.EMPTY_DOCUMENT, "empty"),
        ({"id": "a", "state": {}}, ErrorKind.EMPTY_DOCUMENT, "empty"),
        (
            {"id": "a", "text": "x", "questions": {"q": {"type": "choice", "ask": "?"}}},
            ErrorKind.INVALID_QUESTIONS,
            "'q'",
        ),
        ({"id": "a", "text": "x", "questions": []}, ErrorKind.INVALID_QUESTIONS, "expected a map"),
    ],
)
def test_a_place_that_is_no_document_is_rejected_with_its_kind_and_line(tmp_path, line, kind, words):
    place = only_rejected(jsonl(tmp_path, {"id": "ok", "text": "fine"}, line))
    assert place.kind == kind
    assert words in place.reason
    assert "archive.jsonl line 2" in place.reason


def test_of_two_documents_with_one_id_the_first_is_scored(tmp_path):
    first, second = read(jsonl(tmp_path, {"id": 1, "text": "x"}, {"id": "1", "text": "y"}))
    assert first.state == "x"
    assert (second.kind, second.document_id, second.position) == (ErrorKind.DUPLICATE_ID, "1", 1)
    assert "line 2" in second.reason


def test_a_byte_order_mark_and_blank_lines_are_no_places(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "x"}\r\n\r\n  \n{"id": "b", "text": "y"}')
    assert [(place.position, place.document_id) for place in read(path)] == [(0, "a"), (1, "b")]


def test_a_log_of_requests_is_named_by_its_lines(tmp_path):
    request = {"model": "m", "state": "x", "questions": QUESTIONS}
    (entry,) = read(jsonl(tmp_path, request))
    assert entry.document_id == "line-1"
    assert entry.questions.ids() == ["urgent"]
    assert entry.columns == {"model": "m"}


def test_the_order_of_a_documents_own_options_is_kept_from_line_to_line(tmp_path):
    path = jsonl(
        tmp_path,
        {"id": "a", "text": "x", "questions": {"q": ["one", "two"]}},
        {"id": "b", "text": "x", "questions": {"q": ["two", "one"]}},
    )
    assert [[o.key for o in entry.questions["q"].options] for entry in read(path)] == [["one", "two"], ["two", "one"]]


def test_a_scan_counts_and_types_what_the_results_will_hold(tmp_path):
    path = jsonl(
        tmp_path,
        {"id": "a", "text": "12345", "none": None, "n": 1, "f": 1, "flag": True, "mixed": 1, "big": 2**63},
        {"id": "b", "state": {"k": 1}, "f": 0.5, "s": "x", "mixed": "x", "obj": {"a": 1}, "questions": QUESTIONS},
        {"id": "a", "text": "again", "only_rejected": 1},
    )
    found = scan(open_archive(path), None)
    assert (found.documents, found.rejected, found.without_questions) == (2, 1, 1)
    assert found.characters == len("12345") + len('{"k":1}')
    assert list(found.columns.items()) == [
        ("none", "string"), ("n", "int64"), ("f", "double"), ("flag", "bool"),
        ("mixed", "json"), ("big", "json"), ("s", "string"), ("obj", "json"),
    ]  # fmt: skip


def test_a_limit_counts_rejected_places_too(tmp_path):
    found = scan(open_archive(jsonl(tmp_path, b"{", {"id": "a", "text": "x"}, {"id": "b", "text": "x"})), 2)
    assert (found.documents, found.rejected) == (1, 1)


def test_a_folder_is_read_deeply_in_sorted_order_by_relative_path(tmp_path):
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfsecond")
    (tmp_path / "a.TXT").write_text("first")
    (tmp_path / "note.md").write_text("no document")
    (tmp_path / "sub" / "deep" / "c.v2.txt").write_text("third")
    assert [(e.document_id, e.state) for e in read(tmp_path)] == [
        ("a", "first"), ("b", "second"), ("sub/deep/c.v2", "third"),
    ]  # fmt: skip


def test_undecodable_and_empty_files_are_rejected_and_the_rest_goes_on(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "b.txt").write_text(" ")
    (tmp_path / "c.txt").write_text("fine")
    bad, empty, good = read(tmp_path)
    assert (bad.document_id, bad.kind) == ("a", ErrorKind.INVALID_DOCUMENT)
    assert "a.txt" in bad.reason and "UTF-8" in bad.reason
    assert (empty.document_id, empty.kind) == ("b", ErrorKind.EMPTY_DOCUMENT)
    assert good.document_id == "c"


def test_no_link_leads_out_of_the_folder(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "s.txt").write_text("secret")
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "own.txt").write_text("own")
    (archive / "link.txt").symlink_to(tmp_path / "secret" / "s.txt")
    (archive / "linked").symlink_to(tmp_path / "secret")
    places = read(archive)
    assert [place.document_id for place in places if isinstance(place, Entry)] == ["own"]
    assert sorted(place.document_id for place in places if isinstance(place, Rejected)) == ["link", "linked"]


@pytest.mark.skipif(os.name == "nt", reason="names there are Unicode")
def test_a_file_whose_name_is_not_utf8_is_rejected(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    (place,) = read(tmp_path)
    assert place.kind == ErrorKind.INVALID_DOCUMENT
    place.document_id.encode()


def test_an_archive_that_cannot_be_read_is_refused_with_what_was_expected(tmp_path):
    (tmp_path / "empty.jsonl").write_bytes(b"\xef\xbb\xbf\n \n")
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "folder").mkdir()
    for name, words in [
        ("missing.jsonl", "not found"),
        ("empty.jsonl", "empty"),
        ("table.csv", ".csv"),
        ("folder", "no .txt file"),
    ]:
        with pytest.raises(UsageError, match="expected") as caught:
            open_archive(tmp_path / name)
        assert words in str(caught.value)
        assert name in str(caught.value)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_archive_is_refused(tmp_path):
    path = jsonl(tmp_path, {"id": "a", "text": "x"})
    path.chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        open_archive(path)
