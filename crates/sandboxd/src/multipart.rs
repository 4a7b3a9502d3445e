//! Reads `multipart/form-data` as it arrives, keeping at most one chunk in memory.

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

/// Headers of one part; a file name is the only long thing in them.
const MAX_PART_HEADER: usize = 16 * 1024;
const MAX_BOUNDARY: usize = 200;

/// The parts of one body, in order.
pub struct Multipart<B> {
    body: B,
    buffer: BytesMut,
    /// What stands between two parts: a line break, two dashes and the boundary.
    delimiter: Vec<u8>,
    ended: bool,
}

/// How a part calls itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    /// Only files have one. Exactly as sent, directories included.
    pub filename: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The body ends or breaks off before the last boundary.
    Broken,
    /// Not what the format allows.
    Malformed(&'static str),
}

/// The boundary a content type announces.
pub fn boundary(content_type: &str) -> Option<Vec<u8>> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let parameters = self::parameters(parameters.as_bytes());
    let (_, boundary) = parameters.into_iter().find(|(name, _)| name == "boundary")?;
    (1..=MAX_BOUNDARY).contains(&boundary.len()).then_some(boundary)
}

// === impl Multipart ===

impl<B: Body<Data = Bytes> + Unpin> Multipart<B> {
    pub fn new(body: B, boundary: &[u8]) -> Self {
        let delimiter = [b"\r\n--", boundary].concat();
        // The first boundary has no line break before it; with one put there, all are alike.
        Self { body, buffer: BytesMut::from(&b"\r\n"[..]), delimiter, ended: false }
    }

    /// The next part, after skipping what is left of the one before.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        while self.chunk().await?.is_some() {}
        if self.ended {
            return Ok(None);
        }
        self.buffer.advance(self.delimiter.len());
        while self.buffer.len() < 2 {
            self.read().await?;
        }
        if self.buffer.starts_with(b"--") {
            self.ended = true;
            return Ok(None);
        }
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.buffer.len() > MAX_PART_HEADER {
                return Err(Error::Malformed("the headers of a part are too long"));
            }
            self.read().await?;
        };
        let header = self.buffer.split_to(end);
        self.buffer.advance(2);
        self.skip_blank_line().await?;
        part(&header).map(Some)
    }

    /// The next bytes of the current part; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        if self.ended {
            return Ok(None);
        }
        loop {
            if let Some(end) = find(&self.buffer, &self.delimiter) {
                return Ok((end > 0).then(|| self.buffer.split_to(end).freeze()));
            }
            // The tail may be the beginning of a delimiter.
            let safe = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
            if safe > 0 {
                return Ok(Some(self.buffer.split_to(safe).freeze()));
            }
            self.read().await?;
        }
    }

    /// Takes the line break that ends the headers, unless it is also the one that begins the next delimiter: a part
    /// without content may share it.
    async fn skip_blank_line(&mut self) -> Result<(), Error> {
        while self.buffer.len() < self.delimiter.len() {
            self.read().await?;
        }
        if !self.buffer.starts_with(&self.delimiter) {
            self.buffer.advance(2);
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Error> {
        loop {
            let frame = self.body.frame().await.ok_or(Error::Broken)?.map_err(|_| Error::Broken)?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
                return Ok(());
            }
        }
    }
}

fn part(header: &[u8]) -> Result<Part, Error> {
    let mut part = Part::default();
    for line in header.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        if !line[..colon].trim_ascii().eq_ignore_ascii_case(b"content-disposition") {
            continue;
        }
        for (name, value) in parameters(&line[colon + 1..]) {
            match name.as_str() {
                "name" => part.name = String::from_utf8_lossy(&value).into_owned(),
                "filename" => part.filename = Some(value),
                // RFC 5987: UTF-8''percent-encoded. The plain form wins when both are there.
                "filename*" if part.filename.is_none() => {
                    let text = String::from_utf8_lossy(&value);
                    let encoded =
                        text.splitn(3, '\'').nth(2).ok_or(Error::Malformed("`filename*` has no charset"))?;
                    part.filename = Some(percent_encoding::percent_decode_str(encoded).collect());
                }
                _ => {}
            }
        }
    }
    Ok(part)
}

/// The `name=value` pairs of a header value. Values may be quoted, with `\"` and `\\` inside.
fn parameters(text: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| matches!(byte, b'=' | b';')).unwrap_or(rest.len());
        let name = String::from_utf8_lossy(rest[..end].trim_ascii()).to_ascii_lowercase();
        let is_pair = rest.get(end) == Some(&b'=');
        rest = rest.get(end + 1..).unwrap_or_default();
        if is_pair {
            let (value, after) = value(rest.trim_ascii_start());
            found.push((name, value));
            rest = after;
        }
    }
    found
}

fn value(text: &[u8]) -> (Vec<u8>, &[u8]) {
    let after = |text: &'_ [u8]| text.iter().position(|&byte| byte == b';').map_or(text.len(), |end| end + 1);
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|&byte| byte == b';').unwrap_or(text.len());
        return (text[..end].trim_ascii().to_owned(), &text[after(text)..]);
    };
    let mut value = Vec::new();
    let mut position = 0;
    while position < quoted.len() && quoted[position] != b'"' {
        if quoted[position] == b'\\' && matches!(quoted.get(position + 1), Some(b'"' | b'\\')) {
            position += 1;
        }
        value.push(quoted[position]);
        position += 1;
    }
    let rest = &quoted[position..];
    (value, &rest[after(rest)..])
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = haystack[from..].iter().position(|&byte| byte == needle[0]) {
        from += found;
        if haystack[from..].starts_with(needle) {
            return Some(from);
        }
        from += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    struct Chunks(VecDeque<Bytes>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    /// All parts with their content, of a body that arrives `size` bytes at a time.
    fn read(body: &[u8], size: usize) -> Result<Vec<(Part, Vec<u8>)>, Error> {
        let chunks = body.chunks(size).map(Bytes::copy_from_slice).collect();
        let mut parts = Multipart::new(Chunks(chunks), b"XX");
        let mut found = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            while let Some(part) = parts.next().await? {
                let mut content = Vec::new();
                while let Some(chunk) = parts.chunk().await? {
                    content.extend_from_slice(&chunk);
                }
                found.push((part, content));
            }
            Ok(found)
        })
    }

    const BODY: &[u8] = b"--XX\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nhello\r\n--XX\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"d/\xc3\xbc;%22.bin\"\r\nContent-Type: text/plain\r\n\r\n\
        a\r\nb\r\n--XY\r\n\r\n--XX--\r\n";

    #[test]
    fn parts_are_the_same_however_the_body_is_cut() {
        for size in 1..BODY.len() {
            let parts = read(BODY, size).unwrap();
            assert_eq!(parts[0], (Part { name: "note".to_owned(), filename: None }, b"hello".to_vec()));
            assert_eq!(parts[1].0.filename.as_deref(), Some("d/ü;%22.bin".as_bytes()));
            assert_eq!(parts[1].1, b"a\r\nb\r\n--XY\r\n");
            assert_eq!(parts.len(), 2);
        }
    }

    #[test]
    fn a_body_that_ends_too_early_is_broken_at_every_point() {
        let last = BODY.len() - 4; // the final dashes and line break
        for end in 0..last {
            assert_eq!(read(&BODY[..end], 7), Err(Error::Broken), "cut at {end}");
        }
    }

    #[test]
    fn an_empty_file_has_no_content() {
        let body = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"e\"\r\n\r\n\r\n--XX--";
        assert_eq!(read(body, 3).unwrap()[0].1, b"");
    }

    #[test]
    fn a_file_name_may_come_escaped_or_encoded() {
        let name = |parameter: &str| {
            part(format!("Content-Disposition: form-data; name=file; {parameter}").as_bytes())
                .unwrap()
                .filename
                .unwrap()
        };
        assert_eq!(name(r#"filename="a\\b\"c\d""#), br#"a\b"c\d"#);
        assert_eq!(name("filename*=utf-8''%C3%BC%20x"), "ü x".as_bytes());
        assert_eq!(name("filename=plain.txt"), b"plain.txt");
    }

    #[test]
    fn the_boundary_comes_from_the_content_type() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some(&b"abc"[..]));
        assert_eq!(
            boundary("Multipart/Form-Data; charset=x; boundary=\"a b\"").as_deref(),
            Some(&b"a b"[..])
        );
        assert_eq!(boundary("application/json; boundary=abc"), None);
        assert_eq!(boundary("multipart/form-data"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_content_survives_however_it_is_cut(content: Vec<u8>, size in 1_usize..50) {
            proptest::prop_assume!(find(&content, b"\r\n--XX").is_none());
            let head = &b"--XX\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n"[..];
            let body = [head, &content, b"\r\n--XX--"].concat();
            let parts = read(&body, size).unwrap();
            proptest::prop_assert_eq!(&parts[0].1, &content);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(body: Vec<u8>, size in 1_usize..50) {
            let _ = read(&[&b"--XX\r\n"[..], &body].concat(), size);
            let _ = boundary(&String::from_utf8_lossy(&body));
        }
    }
}
