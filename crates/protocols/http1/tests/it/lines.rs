//! A field line means the same here as in another careful parser: the same lines are refused, and the others have the
//! same name and value.

use voile_http1::{Progress, Reject, RequestIndex};

/// Lines of every shape, to be damaged.
const LINES: [&[u8]; 8] = [
    b"a: b",
    b"ab:b",
    b"a:",
    b"a: \t ",
    b"a:  b c\t d \t",
    b"a-b: \x80\xff",
    b"a: b: c",
    b"accept-encoding: gzip, deflate, br",
];

fn head_with(line: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: x\r\n", line, b"\r\n\r\n"].concat()
}

/// Result of another parser, if it takes line ends in the same way: all of it, line by line.
fn by_httparse(head: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let lines = head.split(|byte| *byte == b'\n').count() - 1;
    let strict_ends = head
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte != b'\n' || (at > 0 && head[at - 1] == b'\r'));
    let mut fields = [httparse::EMPTY_HEADER; 8];
    let mut request = httparse::Request::new(&mut fields);
    let Ok(httparse::Status::Complete(used)) = request.parse(head) else {
        return None;
    };
    let whole = used == head.len() && request.headers.len() + 2 == lines && strict_ends;
    let pair = |field: &httparse::Header<'_>| (field.name.to_owned(), field.value.to_vec());
    whole.then(|| request.headers.iter().map(pair).collect())
}

fn by_us(head: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut index = RequestIndex::default();
    match index.parse(head) {
        Ok(Progress::Complete) if index.head_len() == head.len() => {
            let fields = index.head(head).headers();
            Some(fields.map(|(n, v)| (n.to_owned(), v.to_vec())).collect())
        }
        Ok(_) | Err(Reject::HeaderLine | Reject::BareLf) => None,
        Err(other) => panic!("{other:?}: {}", head.escape_ascii()),
    }
}

fn compare(line: &[u8]) {
    let head = head_with(line);
    assert_eq!(by_us(&head), by_httparse(&head), "{}", line.escape_ascii());
}

#[test]
fn damaged_lines_are_refused_and_whole_ones_read_as_elsewhere() {
    for line in LINES {
        compare(line);
        for at in 0..=line.len() {
            for byte in 0..=u8::MAX {
                let (before, after) = line.split_at(at);
                compare(&[before, &[byte], after].concat());
                if let [_, after @ ..] = after {
                    compare(&[before, &[byte], after].concat());
                }
            }
        }
    }
}
