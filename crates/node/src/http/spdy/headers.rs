//! Header blocks of SPDY/3: names and values in one zlib stream per direction, which begins with a known dictionary.

use std::sync::LazyLock;

use zlib_rs::{Inflate, InflateError, InflateFlush, Status};

use super::frame::Broken;

/// What the headers of one stream may take when unpacked.
const LIMIT: usize = 16 << 10;
/// SPDY's window, that of zlib.
const WINDOW_BITS: u8 = 15;

/// Words that the dictionary holds with their lengths, as headers are written.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding \
    content-language content-length content-location content-md5 content-range content-type date etag expect \
    expires from host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified \
    location max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after server te \
    trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get status 200_OK \
    version HTTP/1.1 url public set-cookie keep-alive origin";
/// Values that follow the words without lengths.
const VALUES: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
    403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,\
    text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS.split(' ').map(|word| word.replace('_', " ")) {
        dictionary.extend_from_slice(&(word.len() as u32).to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(VALUES.as_bytes());
    dictionary
});

/// Names, in lower case, and values.
pub type Headers = Vec<(String, String)>;

/// Unpacks the header blocks of one direction, in the order in which they came.
pub struct Unpacker(Inflate);

impl Unpacker {
    pub fn new() -> Self {
        Self(Inflate::new(true, WINDOW_BITS))
    }

    /// After an error the stream is lost, and the connection with it.
    pub fn unpack(&mut self, block: &[u8]) -> Result<Headers, Broken> {
        let mut plain = vec![0; LIMIT];
        let (first_in, first_out) = (self.0.total_in(), self.0.total_out());
        loop {
            let (read, written) = (self.0.total_in() - first_in, self.0.total_out() - first_out);
            let (rest, room) = (&block[read as usize..], &mut plain[written as usize..]);
            if rest.is_empty() {
                plain.truncate(written as usize);
                return parse(&plain);
            }
            if room.is_empty() {
                return Err(Broken("headers that are too large"));
            }
            match self.0.decompress(rest, room, InflateFlush::SyncFlush) {
                Ok(Status::Ok) => {}
                Ok(Status::BufError | Status::StreamEnd) => return Err(Broken("headers that end half way")),
                Err(InflateError::NeedDict { .. }) => {
                    self.0
                        .set_dictionary(&DICTIONARY)
                        .map_err(|_| Broken("headers with an unknown dictionary"))?;
                }
                Err(_) => return Err(Broken("headers that cannot be unpacked")),
            }
        }
    }
}

fn parse(mut plain: &[u8]) -> Result<Headers, Broken> {
    const SHORT: Broken = Broken("headers that are shorter than they say");
    let count = number(&mut plain).ok_or(SHORT)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut plain).ok_or(SHORT)?;
        headers.push((name.to_ascii_lowercase(), text(&mut plain).ok_or(SHORT)?));
    }
    Ok(headers)
}

fn number(plain: &mut &[u8]) -> Option<u32> {
    let (number, rest) = plain.split_first_chunk()?;
    *plain = rest;
    Some(u32::from_be_bytes(*number))
}

fn text(plain: &mut &[u8]) -> Option<String> {
    let length = number(plain)? as usize;
    let (text, rest) = plain.split_at_checked(length)?;
    *plain = rest;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Writes header blocks that hold nothing, which is all that we ever say.
#[derive(Default)]
pub struct Packer {
    begun: bool,
}

impl Packer {
    /// An empty list, stored as it is. The second, empty part tells zlib that nothing is held back.
    pub fn empty(&mut self) -> Vec<u8> {
        const ZLIB: [u8; 2] = [0x78, 0x01];
        const NONE: [u8; 14] = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let start = if std::mem::replace(&mut self.begun, true) { &[][..] } else { &ZLIB };
        [start, &NONE].concat()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use zlib_rs::{Deflate, DeflateFlush};

    /// Packs as a client does.
    pub struct ClientPacker(Deflate);

    impl ClientPacker {
        pub fn new() -> Self {
            let mut deflate = Deflate::new(9, true, WINDOW_BITS);
            deflate.set_dictionary(&DICTIONARY).unwrap();
            Self(deflate)
        }

        pub fn pack(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
            let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
            for text in headers.iter().flat_map(|(name, value)| [name, value]) {
                plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
                plain.extend_from_slice(text.as_bytes());
            }
            let (mut block, before) = (vec![0; plain.len() + 100], self.0.total_out());
            self.0.compress(&plain, &mut block, DeflateFlush::SyncFlush).unwrap();
            block.truncate((self.0.total_out() - before) as usize);
            block
        }
    }

    #[test]
    fn dictionary_is_that_of_the_specification() {
        let mut inflate = Inflate::new(true, WINDOW_BITS);
        // A zlib stream that asks for SPDY's dictionary by its checksum.
        let asks = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
        let asked = inflate.decompress(&asks, &mut [0; 8], InflateFlush::SyncFlush);
        assert_eq!(asked, Err(InflateError::NeedDict { dict_id: 0xe3c6_a7c2 }));
        inflate.set_dictionary(&DICTIONARY).unwrap();
    }

    #[test]
    fn headers_of_many_streams_come_out_as_they_went_in() {
        let (mut client, mut server) = (ClientPacker::new(), Unpacker::new());
        for round in 0..100 {
            let port = round.to_string();
            let block = client.pack(&[("StreamType", "error"), ("port", &port)]);
            let expected =
                [("streamtype", "error"), ("port", &port)].map(|(a, b)| (a.to_owned(), b.to_owned()));
            assert_eq!(server.unpack(&block), Ok(expected.to_vec()));
        }
    }

    #[test]
    fn headers_may_not_unpack_to_more_than_the_limit() {
        let block = ClientPacker::new().pack(&[("a", &"x".repeat(LIMIT))]);
        assert!(block.len() < 200, "the bomb is small");
        assert_eq!(Unpacker::new().unpack(&block), Err(Broken("headers that are too large")));
    }

    #[test]
    fn our_empty_headers_are_understood() {
        let (mut packer, mut client) = (Packer::default(), Unpacker::new());
        for _ in 0..3 {
            assert_eq!(client.unpack(&packer.empty()), Ok(Vec::new()));
        }
    }
}
