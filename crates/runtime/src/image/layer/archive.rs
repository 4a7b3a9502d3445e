//! Reads a tar archive entry by entry: ustar, GNU and pax.
//!
//! Unlike a general reader it never takes more memory than its limits say: names and pax headers are bounded, and
//! nothing is read ahead.

use std::io::{self, Read};

use super::header::{BLOCK, Header, Segment, more_segments};
use crate::image::error::malformed;
use crate::image::{Error, Limits};

/// A pax header holds names and extended attributes.
const PAX_BYTES: u64 = 1 << 20;
/// Segments of one sparse file.
const SEGMENTS: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    Device,
    /// Something that no layer has a use for.
    Other(u8),
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub kind: Kind,
    pub path: Vec<u8>,
    /// Target of a symbolic or hard link.
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (u64, u32),
    /// Bytes of the file, holes included.
    pub size: u64,
    /// Where the data of a sparse file goes; `None` for any other file.
    pub segments: Option<Vec<Segment>>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads entries; between two calls of [`Archive::next`] it reads the data of the last one.
pub struct Archive<R> {
    source: R,
    limits: Limits,
    /// Of the current entry: data and padding that were not read yet.
    data: u64,
    padding: u64,
    position: u64,
}

/// What extension headers say about the entry that follows.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(u64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Sparse,
}

/// The sparse files of GNU tar in pax archives: map in the header (0.1) or before the data (1.0).
#[derive(Default)]
struct Sparse {
    major: Option<u64>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    map: Option<Vec<Segment>>,
}

impl<R: Read> Archive<R> {
    pub fn new(source: R, limits: Limits) -> Self {
        Self { source, limits, data: 0, padding: 0, position: 0 }
    }

    /// Where in the archive the data of the current entry begins, before any of it was read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Entry>, Error> {
        let mut extensions = Extensions::default();
        loop {
            self.skip()?;
            let Some(block) = self.block()? else { return Ok(None) };
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header::new(&block).map_err(wrong)?;
            let size =
                extensions.size.filter(|_| header.kind() != b'x').unwrap_or(header.size().map_err(wrong)?);
            let padded =
                size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| wrong("a size is too large"))?;
            (self.data, self.padding) = (size, padded - size);
            match header.kind() {
                b'x' => extensions.read(&self.document(PAX_BYTES)?).map_err(wrong)?,
                b'g' => drop(self.document(PAX_BYTES)?),
                b'L' => extensions.path = Some(self.name()?),
                b'K' => extensions.link = Some(self.name()?),
                _ => return self.entry(&header, extensions).map(Some),
            }
        }
    }

    /// Reads on to the end of the source, so that whoever counts or digests it has seen all of it.
    pub fn finish(mut self) -> Result<R, Error> {
        let mut buffer = [0; 16 << 10];
        while self.source.read(&mut buffer).map_err(unreadable)? > 0 {}
        Ok(self.source)
    }

    fn entry(&mut self, header: &Header<'_>, extensions: Extensions) -> Result<Entry, Error> {
        let Extensions { path, link, uid, gid, mtime, xattrs, sparse, .. } = extensions;
        let id = |value: u64, field: &str| {
            u32::try_from(value).map_err(|_| wrong(format!("the {field} {value} is larger than any id")))
        };
        let path = sparse.name.or(path).unwrap_or_else(|| header.path());
        let kind = match header.kind() {
            // Old archives mark a directory by a slash.
            0 | b'0' | b'7' | b'S' if !path.ends_with(b"/") => Kind::File,
            0 | b'0' | b'5' => Kind::Directory,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'6' => Kind::Fifo,
            other => Kind::Other(other),
        };
        let mut entry = Entry {
            kind,
            path,
            link: link.unwrap_or_else(|| header.link()),
            mode: (header.mode().map_err(wrong)? & 0o7777) as u32,
            uid: id(uid.map_or_else(|| header.uid(), Ok).map_err(wrong)?, "uid")?,
            gid: id(gid.map_or_else(|| header.gid(), Ok).map_err(wrong)?, "gid")?,
            mtime: mtime.unwrap_or((header.mtime(), 0)),
            size: self.data,
            segments: None,
            xattrs,
        };
        if header.kind() == b'S' {
            self.gnu_sparse(header, &mut entry)?;
        } else if sparse.major == Some(1) {
            entry.segments = Some(self.map()?);
            entry.size = sparse.size.ok_or_else(|| wrong("a sparse file has no size"))?;
        } else if let Some(map) = sparse.map {
            entry.segments = Some(map);
            entry.size = sparse.size.ok_or_else(|| wrong("a sparse file has no size"))?;
        }
        if let Some(segments) = &entry.segments {
            check(segments, entry.size, self.data)?;
        }
        Ok(entry)
    }

    fn gnu_sparse(&mut self, header: &Header<'_>, entry: &mut Entry) -> Result<(), Error> {
        let (size, mut segments, mut more) = header.sparse().map_err(wrong)?;
        while more {
            let block = self.block()?.ok_or_else(|| wrong("it ends within a sparse map"))?;
            let (further, again) = more_segments(&block).map_err(wrong)?;
            segments.extend(further);
            more = again;
            limit(&segments)?;
        }
        (entry.size, entry.segments) = (size, Some(segments));
        Ok(())
    }

    /// The map before the data of a pax sparse file: decimal numbers, one in a line, padded to a block.
    fn map(&mut self) -> Result<Vec<Segment>, Error> {
        let mut read = 0;
        let mut number = |archive: &mut Self| -> Result<u64, Error> {
            let mut value = 0u64;
            loop {
                let mut byte = [0];
                archive.read_exact(&mut byte).map_err(unreadable)?;
                read += 1;
                match byte[0] {
                    b'\n' => return Ok(value),
                    digit @ b'0'..=b'9' => {
                        let next =
                            value.checked_mul(10).and_then(|it| it.checked_add(u64::from(digit - b'0')));
                        value = next.ok_or_else(|| wrong("a sparse map has a number that is too large"))?;
                    }
                    _ => return Err(wrong("a sparse map is not made of numbers")),
                }
            }
        };
        let count = number(self)?;
        let mut segments = Vec::new();
        for _ in 0..count {
            segments.push(Segment { offset: number(self)?, length: number(self)? });
            limit(&segments)?;
        }
        let mut rest = vec![0; (read as usize).next_multiple_of(BLOCK) - read as usize];
        self.read_exact(&mut rest).map_err(unreadable)?;
        Ok(segments)
    }

    fn name(&mut self) -> Result<Vec<u8>, Error> {
        // A NUL follows it.
        let mut name = self.document(self.limits.path_bytes as u64 + 1)?;
        while name.pop_if(|byte| *byte == 0).is_some() {}
        Ok(name)
    }

    fn document(&mut self, most: u64) -> Result<Vec<u8>, Error> {
        if self.data > most {
            return Err(wrong(format!("a name or header in it has {} bytes; {most} are allowed", self.data)));
        }
        let mut bytes = vec![0; self.data as usize];
        self.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    fn skip(&mut self) -> Result<(), Error> {
        let mut left = std::mem::take(&mut self.data) + std::mem::take(&mut self.padding);
        let mut buffer = [0; 16 << 10];
        while left > 0 {
            let wanted = left.min(buffer.len() as u64) as usize;
            let count = self.source.read(&mut buffer[..wanted]).map_err(unreadable)?;
            if count == 0 {
                return Err(wrong("it ends within a file"));
            }
            self.position += count as u64;
            left -= count as u64;
        }
        Ok(())
    }

    /// `None` when the source is at its end.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, Error> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.source.read(&mut block[filled..]).map_err(unreadable)? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(wrong("it ends within a header")),
                count => filled += count,
            }
        }
        self.position += BLOCK as u64;
        Ok(Some(block))
    }
}

/// The data of the current entry.
impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = self.data.min(buffer.len() as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        match self.source.read(&mut buffer[..wanted])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.data -= count as u64;
                self.position += count as u64;
                Ok(count)
            }
        }
    }
}

impl Extensions {
    /// Records of the form `LENGTH KEY=VALUE\n`.
    fn read(&mut self, mut records: &[u8]) -> Result<(), String> {
        let cut = || "a pax header is cut off".to_owned();
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(cut)?;
            let length: usize =
                std::str::from_utf8(&records[..space]).ok().and_then(|it| it.parse().ok()).ok_or_else(cut)?;
            let record = records.get(space + 1..length.saturating_sub(1)).ok_or_else(cut)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(cut)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            records = records.get(length..).ok_or_else(cut)?;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let number = || {
            let text = std::str::from_utf8(value).ok();
            text.and_then(|text| text.parse().ok())
                .ok_or_else(|| format!("{} in a pax header is not a number", key.escape_ascii()))
        };
        match key {
            b"path" => self.path = Some(value.to_owned()),
            b"linkpath" => self.link = Some(value.to_owned()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => self.mtime = Some(time(value)),
            b"GNU.sparse.major" => self.sparse.major = Some(number()?),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_owned()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.size = Some(number()?),
            b"GNU.sparse.map" => self.sparse.map = Some(pairs(value)?),
            b"GNU.sparse.offset" => return Err("sparse files of the form 0.0 are not supported".to_owned()),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_owned(), value.to_owned()));
                }
            }
        }
        Ok(())
    }
}

/// `offset,length,offset,length…`
fn pairs(value: &[u8]) -> Result<Vec<Segment>, String> {
    let wrong = || "a sparse map is not made of numbers".to_owned();
    let text = std::str::from_utf8(value).map_err(|_| wrong())?;
    let numbers: Vec<u64> =
        text.split(',').map(|it| it.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    Ok(numbers.chunks_exact(2).map(|pair| Segment { offset: pair[0], length: pair[1] }).collect())
}

/// Seconds with a fraction. Anything odd is 1970: no layer is refused for a time.
fn time(value: &[u8]) -> (u64, u32) {
    let text = String::from_utf8_lossy(value);
    let (seconds, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let nanoseconds = format!("{fraction:0<9.9}").parse().unwrap_or(0);
    (seconds.parse().unwrap_or(0), nanoseconds)
}

/// Segments must follow each other within the file, and have the data that is there.
fn check(segments: &[Segment], size: u64, data: u64) -> Result<(), Error> {
    limit(segments)?;
    let mut reached = 0;
    for segment in segments {
        let end = segment.offset.checked_add(segment.length).filter(|end| *end <= size);
        match end {
            Some(end) if segment.offset >= reached => reached = end,
            _ => return Err(wrong("the map of a sparse file does not fit it")),
        }
    }
    match segments.iter().map(|segment| segment.length).sum::<u64>() == data {
        true => Ok(()),
        false => Err(wrong("the map of a sparse file does not fit its data")),
    }
}

fn limit(segments: &[Segment]) -> Result<(), Error> {
    match segments.len() > SEGMENTS {
        true => Err(wrong(format!("a sparse file in it has more than {SEGMENTS} segments"))),
        false => Ok(()),
    }
}

fn wrong(problem: impl ToString) -> Error {
    malformed("the tar archive", problem)
}

/// Limits of the layers below travel inside I/O errors.
pub(super) fn unreadable(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => wrong("it ends too early"),
        Err(source) => Error::Read { what: "the tar archive".to_owned(), source },
    }
}
