//! Every broken safetensors header is refused with the bound and the value.

mod common;

use calla_weights::header::{self, HEADER_LEN_MAX, HeaderError};
use common::{assert_says, file_of};

fn refusal(file: &[u8]) -> String {
    header::read(file).unwrap_err().to_string()
}

/// A file that only consists of a header length and some bytes.
fn with_length(length: u64, rest: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes()[..], rest].concat()
}

#[test]
fn lengths_are_bounded_by_the_file() {
    assert_says(&refusal(b""), &["the file has 0 bytes", "8 bytes of header length"]);
    assert_says(&refusal(b"1234567"), &["the file has 7 bytes"]);
    assert_says(&refusal(&with_length(0, b"{}")), &["does not begin with '{'"]);
    assert_says(&refusal(&with_length(1, b"{}")), &["not a JSON object", "EOF"]);
    assert_says(&refusal(&with_length(7, b"{\"a\":1}")), &["tensor \"a\"", "invalid type"]);
    assert_says(
        &refusal(&with_length(7, b"{}")),
        &["claims 7 bytes", "only 2 follow", "truncated"],
    );
    let too_long = HEADER_LEN_MAX + 1;
    assert_eq!(header::read(&with_length(too_long, b"{}")), Err(HeaderError::TooLong(too_long)));
    assert_says(&refusal(&with_length(too_long, b"{}")), &["100000001", "the limit is 100000000"]);
    assert_says(&refusal(&with_length(1 << 63, b"{}")), &["9223372036854775808", "the limit is"]);
    assert_says(&refusal(&with_length(u64::MAX, b"{}")), &["the limit is"]);
    assert_says(&refusal(&with_length(HEADER_LEN_MAX, b"{}")), &["only 2 follow"]);
}

#[test]
fn headers_must_be_objects_of_tensors() {
    let says = |header: &str, parts: &[&str]| assert_says(&refusal(&file_of(header, b"")), parts);
    says("hello", &["does not begin with '{'"]);
    says("[1, 2]", &["does not begin with '{'"]);
    says("{\"a\":", &["not a JSON object", "EOF"]);
    says("{} x", &["not a JSON object", "trailing characters"]);
    says("{\"a\":{}}", &["tensor \"a\"", "missing field `dtype`"]);
    says("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", &["missing field `data_offsets`"]);
    says(
        "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}",
        &["tensor \"a\"", "\"dtype\" occurs twice"],
    );
    says("{\"__metadata__\":{\"a\":1}}", &["invalid type", "expected a string"]);
    says("{\"__metadata__\":{},\"__metadata__\":{}}", &["\"__metadata__\" occurs twice"]);
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    says(&deep, &["tensor \"a\"", "expected an object"]);
    let deep = format!("{{\"a\":{{\"x\":{}", "[".repeat(100_000));
    says(&deep, &["not a JSON object"]);
    assert_says(&refusal(&with_length(5, b"{\"\xff\":1")), &["not UTF-8", "bad byte at 2"]);
    assert_eq!(header::read(&file_of("{}", b"")), Ok(vec![]));
    assert_eq!(header::read(&file_of("{\"__metadata__\":null}  ", b"")), Ok(vec![]));
}

#[test]
fn one_tensor_must_fit_its_shape_and_the_file() {
    let says = |dtype: &str, shape: &str, offsets: &str, data: usize, parts: &[&str]| {
        let header = format!(
            "{{\"w\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}"
        );
        assert_says(&refusal(&file_of(&header, &vec![0; data])), parts);
    };
    let name = "tensor \"w\"";
    says("U9", "[1]", "[0,1]", 1, &[name, "unknown dtype \"U9\""]);
    says("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1, &[name, "more than 8 dimensions"]);
    says("U8", "[3,0]", "[0,0]", 0, &[name, "[3, 0] has a zero dimension"]);
    says("U8", "[-1]", "[0,1]", 1, &[name, "integer `-1`"]);
    says("U8", "[1.5]", "[0,1]", 1, &[name, "floating point"]);
    says("F4", "[3]", "[0,1]", 1, &[name, "not a whole number of bytes"]);
    // Products that wrap around to small numbers in 64 bits.
    for shape in
        ["[4194305,4194305,211106198978564]", "[4294967296,4294967296]", "[4611686018427387904]"]
    {
        says("F32", shape, "[0,4]", 4, &[name, "overflows"]);
    }
    says("U8", "[4]", "[4,0]", 4, &[name, "data_offsets [4, 0] are reversed"]);
    says("U8", "[4]", "[0,3]", 4, &[name, "[0, 3] hold 3 bytes", "shape [4] of U8 needs 4"]);
    says("F32", "[4]", "[0,17]", 17, &[name, "hold 17 bytes", "needs 16"]);
    says("U8", "[4]", "[0,4]", 3, &[name, "[0, 4] reach beyond the 3 bytes", "truncated"]);
    says("U8", "[4]", "[1,5]", 5, &[name, "begin at 1", "ends at 0: a gap"]);
    says("U8", "[4]", "[0,4]", 6, &["end at byte 4", "6 bytes are there: 2 trailing bytes"]);
    let huge = u64::MAX;
    says("U8", "[1]", &format!("[{},{huge}]", huge - 1), 1, &[name, "reach beyond the 1 bytes"]);
    says("U8", "[1]", "[18446744073709551616,1]", 1, &[name]);
    says("U8", "[1]", "[0]", 1, &[name]);
    says("U8", "[1]", "[0,1,2]", 1, &["not a JSON object"]);
}

#[test]
fn tensors_must_cover_the_data_once() {
    let entry = |name: &str, begin: usize, end: usize| {
        let len = end - begin;
        format!(
            "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{begin},{end}]}}"
        )
    };
    let says = |entries: &[String], parts: &[&str]| {
        let header = format!("{{{}}}", entries.join(","));
        assert_says(&refusal(&file_of(&header, &[0; 8])), parts);
    };
    let overlap = ["tensor \"b\"", "begin at 3, inside the tensor before, which ends at 4"];
    says(&[entry("a", 0, 4), entry("b", 3, 8)], &overlap);
    says(&[entry("b", 3, 8), entry("a", 0, 4)], &overlap);
    says(
        &[entry("a", 0, 4), entry("b", 5, 8)],
        &["tensor \"b\"", "begin at 5", "ends at 4: a gap"],
    );
    says(&[entry("a", 0, 4), entry("a", 4, 8)], &["tensor \"a\" occurs twice"]);
    // Escapes can spell one name in two ways.
    says(&[entry("a", 0, 4), entry("\\u0061", 4, 8)], &["tensor \"a\" occurs twice"]);
    says(&[entry("a", 0, 8), entry("b", 0, 8)], &["tensor \"b\"", "inside the tensor before"]);
}

#[test]
fn many_tensors_are_read_and_too_many_refused() {
    let file = |count: usize| {
        let entries: Vec<String> = (0..count)
            .map(|i| {
                format!(
                    "\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{i},{}]}}",
                    i + 1
                )
            })
            .collect();
        file_of(&format!("{{{}}}", entries.join(",")), &vec![0; count])
    };
    assert_eq!(header::read(&file(100_000)).unwrap().len(), 100_000);
    assert_says(&refusal(&file(header::TENSORS_MAX + 1)), &["more than 262144 tensors"]);
}

#[test]
fn messages_show_hostile_names_harmlessly() {
    let header = format!("{{\"a\\u001b[31m\\n{}\":{{}}}}", "x".repeat(1_000_000));
    let message = refusal(&file_of(&header, b""));
    assert!(message.len() < 500 && !message.contains(['\u{1b}', '\n']), "{message:?}");
}
