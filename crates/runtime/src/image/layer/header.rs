//! One block of a tar archive: what its fields say. Pure.

/// Tar is made of blocks of this size.
pub const BLOCK: usize = 512;

/// A header block whose checksum is right.
pub struct Header<'a>(&'a [u8; BLOCK]);

/// A stretch of a sparse file that holds data; what lies between is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub length: u64,
}

impl<'a> Header<'a> {
    pub fn new(block: &'a [u8; BLOCK]) -> Result<Self, String> {
        // The checksum counts its own field as spaces.
        let sum = |byte: fn(u8) -> i64| -> i64 {
            block
                .iter()
                .enumerate()
                .map(|(at, it)| if (148..156).contains(&at) { 32 } else { byte(*it) })
                .sum()
        };
        let stored = number(&block[148..156]).and_then(|sum| i64::try_from(sum).ok());
        // Some old programs summed up signed bytes.
        if stored == Some(sum(i64::from)) || stored == Some(sum(|byte| i64::from(byte.cast_signed()))) {
            return Ok(Self(block));
        }
        Err("a header has a wrong checksum".to_owned())
    }

    pub fn kind(&self) -> u8 {
        self.0[156]
    }

    pub fn path(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = text(&self.0[345..500]);
        // Only POSIX archives have a prefix; GNU ones keep times there.
        if &self.0[257..263] == b"ustar\0" && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_owned()
    }

    pub fn link(&self) -> Vec<u8> {
        text(&self.0[157..257]).to_owned()
    }

    pub fn mode(&self) -> Result<u64, String> {
        self.number(100..108, "mode")
    }

    pub fn uid(&self) -> Result<u64, String> {
        self.number(108..116, "uid")
    }

    pub fn gid(&self) -> Result<u64, String> {
        self.number(116..124, "gid")
    }

    pub fn size(&self) -> Result<u64, String> {
        self.number(124..136, "size")
    }

    /// Times before 1970 are taken for 1970.
    pub fn mtime(&self) -> u64 {
        number(&self.0[136..148]).unwrap_or(0)
    }

    /// Size and segments of a GNU sparse file; whether more segments follow in further blocks.
    pub fn sparse(&self) -> Result<(u64, Vec<Segment>, bool), String> {
        let segments = segments(&self.0[386..482])?;
        Ok((self.number(483..495, "real size")?, segments, self.0[482] != 0))
    }

    fn number(&self, range: std::ops::Range<usize>, field: &str) -> Result<u64, String> {
        number(&self.0[range]).ok_or_else(|| format!("the {field} of a header is not a number"))
    }
}

/// Segments of a block that follows the header of a GNU sparse file; whether yet another one follows.
pub fn more_segments(block: &[u8; BLOCK]) -> Result<(Vec<Segment>, bool), String> {
    Ok((segments(&block[..504])?, block[504] != 0))
}

fn segments(fields: &[u8]) -> Result<Vec<Segment>, String> {
    let used = fields.chunks_exact(24).take_while(|field| field[0] != 0);
    let segment = |field: &[u8]| {
        let (offset, length) = (number(&field[..12])?, number(&field[12..])?);
        Some(Segment { offset, length })
    };
    used.map(segment).collect::<Option<_>>().ok_or_else(|| "a sparse map is not made of numbers".to_owned())
}

/// Octal digits, or a big-endian number when the first bit is set. An empty field is 0.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len().saturating_sub(8));
        let negative = field[0] & 0x40 != 0;
        let spare =
            high.iter().enumerate().any(|(at, byte)| if at == 0 { byte & 0x7f != 0 } else { *byte != 0 });
        let low: [u8; 8] = match low.try_into() {
            Ok(low) if field.len() > 8 => low,
            // Eight bytes: the first bit is the mark.
            Ok(mut low) => {
                low[0] &= 0x7f;
                low
            }
            Err(_) => return None,
        };
        return (!negative && !spare).then(|| u64::from_be_bytes(low));
    }
    let digits = text(field);
    let digits = digits.trim_ascii();
    if digits.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"9\0"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(2 << 32));
        assert_eq!(number(b"\x80\0\0\0\0\x01\0\0"), Some(1 << 16));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None, "negative");
    }

    #[test]
    fn block_with_a_wrong_checksum_is_no_header() {
        let mut tar = tar::Header::new_gnu();
        tar.set_size(7);
        tar.set_cksum();
        let mut block = *tar.as_bytes();
        assert_eq!(Header::new(&block).map(|header| header.size()), Ok(Ok(7)));
        block[0] = b'x';
        assert!(Header::new(&block).is_err());
    }
}
