//! Just enough HTTP/1.1 to know when an answer is complete and what it said.

/// Most bytes of one answer's head: ours stay below one kibibyte.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// What lies in a connection's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// More has to come.
    Partial,
    /// A whole answer of this many bytes.
    Whole { status: u16, bytes: usize },
    /// Not HTTP/1.1 with a stated length.
    Foreign,
}

/// Reads the answer that begins `inbox`.
pub fn read(inbox: &[u8]) -> Answer {
    let Some(head_bytes) = inbox.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if inbox.len() < HEAD_BYTES_MAX {
            Answer::Partial
        } else {
            Answer::Foreign
        };
    };
    let (head, _) = inbox.split_at(head_bytes);
    let Some((status, length)) = status(head).zip(content_length(head)) else {
        return Answer::Foreign;
    };
    let bytes = head_bytes + 4 + length;
    if inbox.len() < bytes {
        Answer::Partial
    } else {
        Answer::Whole { status, bytes }
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let text = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let value = head.split(|&byte| byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then_some(value)
    })?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_last_byte_and_not_before() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\ndate: x\r\n\r\nabc";
        for end in 0..answer.len() {
            assert_eq!(read(&answer[..end]), Answer::Partial, "{end}");
        }
        let whole = Answer::Whole {
            status: 202,
            bytes: answer.len(),
        };
        assert_eq!(read(answer), whole);
    }

    #[test]
    fn what_states_no_length_is_foreign() {
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n"), Answer::Foreign);
        assert_eq!(read(b"SSH-2.0\r\n\r\n"), Answer::Foreign);
    }
}
