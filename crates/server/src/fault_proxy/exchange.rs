//! Where on a connection a request is whole and where its answer begins: what a lost answer has to know.
//! What is not understood counts as no exchange, and passes.

use std::collections::VecDeque;

/// Longest head of an HTTP request that is looked for.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Most headers of one.
const HEADERS_MAX: usize = 128;

/// Most requests to Kafka without an answer on a connection; clients have five.
const UNANSWERED_MAX: usize = 1_000;

/// Size, which request, its version, its number.
const KAFKA_REQUEST_HEAD: usize = 12;

/// Size and number of the request.
const KAFKA_ANSWER_HEAD: usize = 8;

/// Which protocol passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 with one request under way on a connection.
    Http,
    /// Kafka's: of its exchanges those count that write records.
    Kafka,
}

/// The exchanges of one connection.
#[derive(Debug)]
pub enum Exchanges {
    /// HTTP.
    Http(Http),
    /// Kafka.
    Kafka(Kafka),
}

impl Exchanges {
    /// Of a new connection.
    pub fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http => Self::Http(Http::default()),
            Protocol::Kafka => Self::Kafka(Kafka::default()),
        }
    }

    /// These bytes went to the destination.
    pub fn asked(&mut self, bytes: &[u8]) {
        match self {
            Self::Http(http) => http.asked(bytes),
            Self::Kafka(kafka) => kafka.asked(bytes),
        }
    }

    /// These bytes came from the destination; how many of them come before an answer that is lost, all where
    /// none is. `lose` is asked once for each answer that begins and whose request was whole.
    pub fn answered(&mut self, bytes: &[u8], lose: &mut dyn FnMut() -> bool) -> usize {
        let passes = match self {
            Self::Http(http) => http.answered(lose),
            Self::Kafka(kafka) => return kafka.answered(bytes, lose),
        };
        if passes { bytes.len() } else { 0 }
    }
}

/// HTTP/1.1: request and answer take turns.
#[derive(Debug, Default)]
pub struct Http(Turn);

#[derive(Debug)]
enum Turn {
    /// Of the request's head so much is there.
    Head(Vec<u8>),
    /// So many bytes of its body are missing.
    Body(u64),
    /// The request is whole, or its length is not stated, so that it is whole when an answer comes.
    Whole,
    /// Its answer has begun.
    Answering,
    /// Not understood from here on.
    Foreign,
}

impl Default for Turn {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

impl Http {
    fn asked(&mut self, bytes: &[u8]) {
        if matches!(self.0, Turn::Answering) {
            self.0 = Turn::default();
        }
        self.0 = match std::mem::replace(&mut self.0, Turn::Foreign) {
            Turn::Head(mut head) => {
                head.extend_from_slice(bytes);
                after_head(head)
            }
            Turn::Body(missing) => after_body(missing, bytes.len() as u64),
            // A body without a stated length goes on.
            Turn::Whole => Turn::Whole,
            Turn::Answering | Turn::Foreign => Turn::Foreign,
        };
    }

    fn answered(&mut self, lose: &mut dyn FnMut() -> bool) -> bool {
        match &self.0 {
            Turn::Whole => {
                self.0 = Turn::Answering;
                !lose()
            }
            Turn::Answering | Turn::Foreign => true,
            // An answer before the request was whole says that the rest is not wanted.
            Turn::Head(_) | Turn::Body(_) => {
                self.0 = Turn::Foreign;
                true
            }
        }
    }
}

fn after_head(head: Vec<u8>) -> Turn {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&head) {
        Ok(httparse::Status::Complete(length)) => {
            let stated = |name: &str| {
                let mut headers = request.headers.iter();
                headers.find(|header| header.name.eq_ignore_ascii_case(name))
            };
            if stated("transfer-encoding").is_some() {
                return Turn::Whole;
            }
            let body = stated("content-length").map_or(Some(0), |header| {
                std::str::from_utf8(header.value).ok()?.trim().parse().ok()
            });
            let there = (head.len() - length) as u64;
            body.map_or(Turn::Foreign, |body| after_body(body, there))
        }
        Ok(httparse::Status::Partial) if head.len() <= HEAD_BYTES_MAX => Turn::Head(head),
        Ok(httparse::Status::Partial) | Err(_) => Turn::Foreign,
    }
}

/// Bytes beyond a body would be a second request under way.
fn after_body(missing: u64, there: u64) -> Turn {
    match missing.checked_sub(there) {
        Some(0) => Turn::Whole,
        Some(missing) => Turn::Body(missing),
        None => Turn::Foreign,
    }
}

/// Kafka: frames with a size before them, answers in the order of their requests.
#[derive(Debug, Default)]
pub struct Kafka {
    requests: Frames<KAFKA_REQUEST_HEAD>,
    answers: Frames<KAFKA_ANSWER_HEAD>,
    /// Numbers of the requests that write records and have no answer yet.
    writing: VecDeque<[u8; 4]>,
}

/// `Produce` among the kinds of requests.
const PRODUCE: [u8; 2] = [0, 0];

impl Kafka {
    fn asked(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(head) = self.requests.next(&mut rest) {
            let [_, _, _, _, kind @ .., _, _, a, b, c, d] = head;
            if kind == PRODUCE && self.writing.len() < UNANSWERED_MAX {
                self.writing.push_back([a, b, c, d]);
            }
        }
    }

    fn answered(&mut self, bytes: &[u8], lose: &mut dyn FnMut() -> bool) -> usize {
        let mut rest = bytes;
        loop {
            // Where a head is cut in two, its first part has passed already and is of no use alone.
            let begins = bytes.len() - rest.len() + self.answers.left_of_frame(rest.len());
            let Some([_, _, _, _, number @ ..]) = self.answers.next(&mut rest) else {
                return bytes.len();
            };
            if self.writing.front() == Some(&number) {
                self.writing.pop_front();
                if lose() {
                    return begins;
                }
            }
        }
    }
}

/// Finds the first bytes of each frame in a stream of any pieces.
#[derive(Debug)]
struct Frames<const HEAD: usize> {
    head: Vec<u8>,
    /// Bytes of the frame that are still to come and of no interest.
    skip: usize,
}

impl<const HEAD: usize> Default for Frames<HEAD> {
    fn default() -> Self {
        Self {
            head: Vec::with_capacity(HEAD),
            skip: 0,
        }
    }
}

impl<const HEAD: usize> Frames<HEAD> {
    /// How many of so many bytes belong to the frame whose head is known.
    fn left_of_frame(&self, bytes: usize) -> usize {
        self.skip.min(bytes)
    }

    /// The next head that these bytes complete; takes away what it looked at.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<[u8; HEAD]> {
        let skipped = self.left_of_frame(bytes.len());
        *bytes = bytes.split_at(skipped).1;
        self.skip -= skipped;
        let (head, rest) = bytes.split_at((HEAD - self.head.len()).min(bytes.len()));
        self.head.extend_from_slice(head);
        *bytes = rest;
        let whole: [u8; HEAD] = self.head.as_slice().try_into().ok()?;
        self.head.clear();
        let size = whole
            .first_chunk()
            .map_or(0, |size| u32::from_be_bytes(*size));
        // The size does not count itself.
        let size = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .saturating_add(4);
        self.skip = size.saturating_sub(HEAD);
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";

    #[test]
    fn an_answer_is_lost_when_its_request_was_whole_and_however_it_came() {
        for cut in 0..=REQUEST.len() {
            let mut http = Exchanges::of(Protocol::Http);
            for round in 0..2 {
                let (first, second) = REQUEST.split_at(cut);
                http.asked(first);
                http.asked(second);
                let passes = http.answered(b"HTTP/1.1 200 OK", &mut || round == 1);
                assert_eq!(passes, if round == 1 { 0 } else { 15 }, "{cut}");
                let rest = http.answered(b"\r\n\r\n", &mut || true);
                assert_eq!(rest, 4, "an answer is asked about once");
            }
        }
    }

    #[test]
    fn what_is_no_exchange_passes() {
        for asked in [
            &b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhell"[..],
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello and more",
            b"POST / HTTP/1.1\r\nContent-Length: five\r\n\r\nhello",
            b"\x16\x03\x01 this is TLS",
        ] {
            let mut http = Exchanges::of(Protocol::Http);
            http.asked(asked);
            assert_eq!(http.answered(b"HTTP/1.1 413", &mut || true), 12);
        }
        let mut http = Exchanges::of(Protocol::Http);
        http.asked(&vec![b'a'; HEAD_BYTES_MAX + 1]);
        assert_eq!(http.answered(b"x", &mut || true), 1);
    }

    #[test]
    fn a_body_without_a_length_is_whole_when_it_is_answered() {
        let mut http = Exchanges::of(Protocol::Http);
        http.asked(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
        http.asked(b"0\r\n\r\n");
        assert_eq!(http.answered(b"HTTP", &mut || true), 0);
    }

    fn kafka_request(kind: u16, number: u32) -> Vec<u8> {
        let mut frame = 13_u32.to_be_bytes().to_vec();
        frame.extend(kind.to_be_bytes());
        frame.extend([0, 9]);
        frame.extend(number.to_be_bytes());
        frame.extend(b"hello");
        frame
    }

    fn kafka_answer(number: u32) -> Vec<u8> {
        let mut frame = 9_u32.to_be_bytes().to_vec();
        frame.extend(number.to_be_bytes());
        frame.extend(b"hello");
        frame
    }

    #[test]
    fn of_kafka_only_answers_to_writes_are_lost_and_what_came_before_passes() {
        let asked = [
            kafka_request(18, 1),
            kafka_request(0, 2),
            kafka_request(3, 3),
            kafka_request(0, 4),
        ]
        .concat();
        let answers = [1, 2, 3, 4].map(kafka_answer).concat();
        for cut in 0..asked.len() {
            let mut kafka = Exchanges::of(Protocol::Kafka);
            let (first, second) = asked.split_at(cut);
            kafka.asked(first);
            kafka.asked(second);
            let mut lose = [false, true].into_iter();
            let passes = kafka.answered(&answers, &mut || lose.next().unwrap());
            assert_eq!(passes, kafka_answer(0).len() * 3, "{cut}");
        }
        let mut kafka = Exchanges::of(Protocol::Kafka);
        kafka.asked(&asked);
        let mut passed = 0;
        for byte in &answers {
            passed += kafka.answered(&[*byte], &mut || true);
            if passed == kafka_answer(0).len() + KAFKA_ANSWER_HEAD - 1 {
                break;
            }
        }
        let head_of_second = kafka_answer(0).len() + KAFKA_ANSWER_HEAD - 1;
        let end = answers[head_of_second];
        assert_eq!(kafka.answered(&[end], &mut || true), 0);
    }
}
