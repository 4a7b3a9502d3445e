//! Compressed layers: gzip, zstd or plain, told by their first bytes.
//!
//! ```text
//! blob ─► digest, count ─► decoder ─► ratio and budget ─► diff id ─► tar
//! ```

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::image::Error;
use crate::image::digest::{Digest, Hashing};
use crate::image::limits::Limits;

const BUFFER: usize = 128 << 10;

/// A blob that is read in its uncompressed form.
pub struct Decompressed<R: Read> {
    decoder: Decoder<BufReader<Counted<Hashing<R>>>>,
    compressed: Rc<Cell<u64>>,
    plain: u64,
    limits: Limits,
}

enum Decoder<R: BufRead> {
    Plain(R),
    Gzip(Box<flate2::bufread::MultiGzDecoder<R>>),
    Zstd(Box<Frames<R>>),
}

impl<R: Read> Decompressed<R> {
    pub fn new(blob: R, limits: Limits) -> io::Result<Self> {
        let compressed = Rc::new(Cell::new(0));
        let counted = Counted { source: Hashing::new(blob), count: compressed.clone() };
        let mut source = BufReader::with_capacity(BUFFER, counted);
        let start = source.fill_buf()?;
        let decoder = if start.starts_with(&[0x1f, 0x8b]) {
            Decoder::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(source)))
        } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || is_skippable(start) {
            Decoder::Zstd(Box::new(Frames { source, decoder: FrameDecoder::new(), within: false }))
        } else {
            Decoder::Plain(source)
        };
        Ok(Self { decoder, compressed, plain: 0, limits })
    }

    /// Digest and size of the blob itself, read to its end.
    pub fn finish(self) -> io::Result<(Digest, u64)> {
        let mut source = match self.decoder {
            Decoder::Plain(source) => source,
            Decoder::Gzip(decoder) => decoder.into_inner(),
            Decoder::Zstd(frames) => frames.source,
        };
        io::copy(&mut source, &mut io::sink())?;
        Ok(source.into_inner().source.finish())
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.decoder {
            Decoder::Plain(source) => source.read(buffer)?,
            Decoder::Gzip(decoder) => decoder.read(buffer)?,
            Decoder::Zstd(frames) => frames.read(buffer)?,
        };
        self.plain += count as u64;
        let most = self.limits.ratio.saturating_mul(self.compressed.get().max(1));
        if self.plain > self.limits.ratio_from && self.plain > most {
            let problem =
                format!("a layer is more than {} times larger than its compressed form", self.limits.ratio);
            return Err(io::Error::other(Error::TooLarge { problem }));
        }
        Ok(count)
    }
}

struct Counted<R> {
    source: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// Zstandard data is a row of frames, of which some are to be skipped. The decoder takes one at a time.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame; false at the end.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within && !self.advance()? {
                return Ok(0);
            }
            self.within = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.source, one);
                decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            }
            match self.decoder.read(buffer)? {
                0 => self.within = false,
                count => return Ok(count),
            }
        }
    }
}

/// A zstd frame that decoders pass over; some programs begin with one.
fn is_skippable(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).expect("written");
        encoder.finish().expect("finished")
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn read(blob: &[u8]) -> io::Result<(Vec<u8>, Digest)> {
        let mut decompressed = Decompressed::new(blob, Limits::default())?;
        let mut plain = Vec::new();
        decompressed.read_to_end(&mut plain)?;
        Ok((plain, decompressed.finish()?.0))
    }

    #[test]
    fn every_form_is_told_by_its_first_bytes_and_digested_whole() {
        let text = b"some words ".repeat(30_000);
        let skippable = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        for blob in [
            text.clone(),
            gzip(&text),
            zstd(&text),
            [gzip(&text[..100]), gzip(&text[100..])].concat(),
            [skippable.clone(), zstd(&text[..100]), skippable, zstd(&text[100..])].concat(),
        ] {
            let (plain, digest) = read(&blob).expect("readable");
            assert_eq!((plain.len(), plain == text, digest), (text.len(), true, Digest::of(&blob)));
        }
    }

    #[test]
    fn broken_data_is_an_error() {
        let whole = gzip(b"some words");
        assert!(read(&whole[..whole.len() - 5]).is_err());
        let whole = zstd(&b"some words".repeat(100));
        assert!(read(&whole[..whole.len() - 5]).is_err());
    }

    #[test]
    fn data_that_swells_beyond_the_ratio_is_refused() {
        let zeros = vec![0; 4 << 20];
        let limits = Limits { ratio_from: 1 << 20, ..Limits::default() };
        for bomb in [gzip(&zeros), zstd(&zeros)] {
            let mut decompressed = Decompressed::new(&bomb[..], limits).expect("begins");
            let error = io::copy(&mut decompressed, &mut io::sink()).expect_err("refused");
            assert!(error.to_string().contains("200 times"), "{error}");
        }
    }
}
