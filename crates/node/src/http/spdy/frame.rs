//! Frames of SPDY/3.1, as far as Kubernetes' clients use them.
//!
//! The decoder holds no more than one control frame: data is handed on in pieces as it comes.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::Decoder;

use super::headers::{Headers, Packer, Unpacker};

const HEAD: usize = 8;
const VERSION: u16 = 3;
const CONTROL: u8 = 0x80;
const FIN: u8 = 1;
/// The largest control frame: a few headers and room to spare.
const LARGEST_CONTROL: usize = 16 << 10;
/// The largest piece of data handed on at once.
pub const LARGEST_PIECE: usize = 32 << 10;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// Why a stream is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reset {
    ProtocolError = 1,
    RefusedStream = 3,
    Cancel = 5,
}

/// The peer does not speak SPDY/3.1: it sent this. Nothing that follows can be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the client sent {0}")]
pub struct Broken(pub &'static str);

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        Self::new(io::ErrorKind::InvalidData, broken)
    }
}

/// What the peer said.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Open {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    /// A piece of what was sent on a stream; `fin` with the last one.
    Data {
        stream: u32,
        fin: bool,
        bytes: Bytes,
    },
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
}

/// Turns bytes into frames.
pub struct FrameDecoder {
    unpacker: Unpacker,
    /// The data frame that is being read.
    data: Option<DataFrame>,
}

#[derive(Clone, Copy)]
struct DataFrame {
    stream: u32,
    fin: bool,
    left: usize,
}

impl FrameDecoder {
    pub fn new() -> Self {
        Self { unpacker: Unpacker::new(), data: None }
    }

    /// The next piece of the data frame that is being read.
    fn piece(&mut self, frame: DataFrame, buffer: &mut BytesMut) -> Option<Frame> {
        let length = frame.left.min(buffer.len()).min(LARGEST_PIECE);
        if length == 0 && frame.left > 0 {
            return None;
        }
        let left = frame.left - length;
        self.data = (left > 0).then_some(DataFrame { left, ..frame });
        let bytes = buffer.split_to(length).freeze();
        Some(Frame::Data { stream: frame.stream, fin: frame.fin && left == 0, bytes })
    }

    /// What a control frame says; `None` for what does not concern us.
    fn control(&mut self, kind: u16, flags: u8, mut payload: &[u8]) -> Result<Option<Frame>, Broken> {
        let mut number = || payload.try_get_u32().map_err(|_| Broken("a frame that is too short"));
        Ok(match kind {
            SYN_STREAM => {
                let (stream, _associated) = (number()? & STREAM, number()?);
                let headers = payload.get(2..).ok_or(Broken("a frame that is too short"))?;
                let headers = self.unpacker.unpack(headers)?;
                Some(Frame::Open { stream, fin: flags & FIN != 0, headers })
            }
            // Nobody waits for these, but the next headers cannot be unpacked without them.
            SYN_REPLY | HEADERS => {
                number()?;
                self.unpacker.unpack(payload)?;
                None
            }
            RST_STREAM => Some(Frame::Reset { stream: number()? & STREAM }),
            PING => Some(Frame::Ping { id: number()? }),
            GOAWAY => Some(Frame::GoAway),
            _ => None,
        })
    }
}

const STREAM: u32 = u32::MAX >> 1;

impl Decoder for FrameDecoder {
    type Item = Frame;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.data {
                return Ok(self.piece(frame, buffer));
            }
            let Some(&[a, b, c, d, flags, e, f, g]) = buffer.first_chunk::<HEAD>() else { return Ok(None) };
            let length = u32::from_be_bytes([0, e, f, g]) as usize;
            if a & CONTROL == 0 {
                buffer.advance(HEAD);
                let stream = u32::from_be_bytes([a, b, c, d]);
                self.data = Some(DataFrame { stream, fin: flags & FIN != 0, left: length });
                continue;
            }
            if u16::from_be_bytes([a & !CONTROL, b]) != VERSION {
                return Err(Broken("a frame of another version than SPDY/3").into());
            }
            if length > LARGEST_CONTROL {
                return Err(Broken("a control frame that is too large").into());
            }
            if buffer.len() < HEAD + length {
                buffer.reserve(HEAD + length - buffer.len());
                return Ok(None);
            }
            let frame = buffer.split_to(HEAD + length);
            if let Some(frame) = self.control(u16::from_be_bytes([c, d]), flags, &frame[HEAD..])? {
                return Ok(Some(frame));
            }
        }
    }
}

/// Accepts a stream.
pub fn reply(stream: u32, packer: &mut Packer) -> Bytes {
    control(SYN_REPLY, &[&stream.to_be_bytes(), &packer.empty()])
}

pub fn reset(stream: u32, why: Reset) -> Bytes {
    control(RST_STREAM, &[&stream.to_be_bytes(), &(why as u32).to_be_bytes()])
}

pub fn ping(id: u32) -> Bytes {
    control(PING, &[&id.to_be_bytes()])
}

/// The last word to a peer that broke the protocol.
pub fn go_away(last_stream: u32) -> Bytes {
    control(GOAWAY, &[&last_stream.to_be_bytes(), &(Reset::ProtocolError as u32).to_be_bytes()])
}

/// Lets the peer send so many bytes more; stream 0 is the connection.
pub fn window_update(stream: u32, bytes: u32) -> Bytes {
    control(WINDOW_UPDATE, &[&stream.to_be_bytes(), &bytes.to_be_bytes()])
}

/// `bytes` must be shorter than 16 MiB.
pub fn data(stream: u32, bytes: &[u8]) -> Bytes {
    let head = [stream.to_be_bytes(), (bytes.len() as u32).to_be_bytes()].concat();
    [&head, bytes].concat().into()
}

/// Nothing more comes on a stream.
pub fn fin(stream: u32) -> Bytes {
    [stream.to_be_bytes(), [FIN, 0, 0, 0]].concat().into()
}

fn control(kind: u16, parts: &[&[u8]]) -> Bytes {
    let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    let mut frame = Vec::with_capacity(HEAD + length as usize);
    frame.extend_from_slice(&[CONTROL, VERSION as u8]);
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame.into()
}

#[cfg(test)]
pub mod tests {
    use super::super::headers::tests::ClientPacker;
    use super::*;

    pub fn open(packer: &mut ClientPacker, stream: u32, headers: &[(&str, &str)]) -> Bytes {
        control(SYN_STREAM, &[&stream.to_be_bytes(), &[0; 6], &packer.pack(headers)])
    }

    fn decode_all(decoder: &mut FrameDecoder, buffer: &mut BytesMut) -> io::Result<Vec<Frame>> {
        std::iter::from_fn(|| decoder.decode(buffer).transpose()).collect()
    }

    /// What a well-behaved client may send.
    fn conversation() -> Vec<u8> {
        let mut packer = ClientPacker::new();
        let frames = [
            open(&mut packer, 1, &[("streamtype", "error"), ("port", "80")]),
            fin(1),
            open(&mut packer, 3, &[("streamtype", "data"), ("port", "80")]),
            data(3, b"hello"),
            window_update(3, 5),
            ping(1),
            fin(3),
            reset(3, Reset::ProtocolError),
            go_away(0),
        ];
        frames.concat()
    }

    #[test]
    fn frames_are_the_same_however_the_bytes_are_cut() {
        let whole = decode_all(&mut FrameDecoder::new(), &mut BytesMut::from(&*conversation())).unwrap();
        assert_eq!(whole.len(), 8, "all but the window: {whole:?}");
        let (mut decoder, mut buffer, mut cut) = (FrameDecoder::new(), BytesMut::new(), Vec::new());
        for byte in conversation() {
            buffer.extend_from_slice(&[byte]);
            cut.extend(decode_all(&mut decoder, &mut buffer).unwrap());
        }
        let text = |frames: &[Frame]| -> Vec<u8> {
            let bytes = frames.iter().map(|frame| match frame {
                Frame::Data { bytes, .. } => bytes.to_vec(),
                _ => Vec::new(),
            });
            bytes.flatten().collect()
        };
        assert_eq!((text(&whole), text(&cut)), (b"hello".to_vec(), b"hello".to_vec()));
        let control = |frames: Vec<Frame>| -> Vec<Frame> {
            frames.into_iter().filter(|frame| !matches!(frame, Frame::Data { .. })).collect()
        };
        assert_eq!(control(whole), control(cut));
    }

    #[test]
    fn data_of_any_size_comes_in_pieces_and_is_never_kept() {
        let (mut decoder, mut buffer) = (FrameDecoder::new(), BytesMut::new());
        buffer.extend_from_slice(&[0, 0, 0, 3, FIN, 0xff, 0xff, 0xff]);
        let mut left = 0xff_ffff;
        while left > 0 {
            buffer.extend_from_slice(&vec![7; left.min(100_000)]);
            for frame in decode_all(&mut decoder, &mut buffer).unwrap() {
                let Frame::Data { stream: 3, fin, bytes } = frame else { panic!("{frame:?}") };
                assert!(bytes.len() <= LARGEST_PIECE);
                left -= bytes.len();
                assert_eq!(fin, left == 0, "the end comes with the last piece");
            }
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn other_protocols_and_monsters_are_refused() {
        let refused = |bytes: &[u8]| FrameDecoder::new().decode(&mut BytesMut::from(bytes)).is_err();
        assert!(refused(&[0x80, 2, 0, 1, 0, 0, 0, 0]), "SPDY/2");
        assert!(refused(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]), "16 MiB of headers");
        assert!(refused(&[0x80, 3, 0, 6, 0, 0, 0, 1, 0]), "a ping of one byte");
        assert!(refused(&[0x80, 3, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0]), "half a SYN_STREAM");
    }

    #[test]
    fn changed_bytes_never_panic_nor_pile_up() {
        let good = conversation();
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize
        };
        for _ in 0..20_000 {
            let mut bad = good.clone();
            for _ in 0..=next() % 4 {
                let place = next() % bad.len();
                bad[place] = next() as u8;
            }
            bad.truncate(1 + next() % bad.len());
            let (mut decoder, mut buffer) = (FrameDecoder::new(), BytesMut::from(&*bad));
            let _ = decode_all(&mut decoder, &mut buffer);
            assert!(buffer.capacity() <= HEAD + LARGEST_CONTROL + bad.len(), "no more than a frame is kept");
        }
    }
}
