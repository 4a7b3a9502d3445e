//! One blob from a registry to a file. What was cut short is gone on with, also by another process.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::StatusCode;

use super::pull::Progress;
use super::session::Session;
use crate::image::Error;
use crate::image::error::{malformed, storage};
use crate::image::manifest::Descriptor;

/// Tries in a row that bring nothing.
const TRIES: u32 = 5;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A blob on its way; locked, so that only one process writes to it.
pub struct Download {
    pub path: PathBuf,
    pub file: File,
    /// It was begun by somebody else: what is there may be anything.
    pub inherited: bool,
}

impl Download {
    /// Takes hold of the file. Waits while another process fetches the same blob.
    pub fn open(path: PathBuf) -> Result<Self, Error> {
        loop {
            let opened = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path);
            let file = opened.and_then(|file| file.lock().map(|()| file)).map_err(storage("open", &path))?;
            let found = file.metadata().map_err(storage("inspect", &path))?;
            // Whoever had it before may have finished and removed it.
            if found.nlink() > 0 {
                return Ok(Self { path, file, inherited: found.len() > 0 });
            }
        }
    }

    /// Everything was taken from it.
    pub fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(storage("remove", &self.path))
    }

    pub fn restart(&mut self) -> Result<(), Error> {
        self.inherited = false;
        self.file.set_len(0).map_err(storage("empty", &self.path))
    }

    fn length(&self) -> Result<u64, Error> {
        Ok(self.file.metadata().map_err(storage("inspect", &self.path))?.len())
    }

    /// Fetches what is missing.
    pub async fn complete(
        &mut self,
        session: &Session,
        blob: &Descriptor,
        first_pause: Duration,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), Error> {
        let mut in_vain = 0;
        loop {
            let before = self.length()?;
            if before > blob.size {
                self.restart()?;
                continue;
            }
            progress(Progress::Have { layer: blob.digest.clone(), bytes: before });
            if before == blob.size {
                return Ok(());
            }
            let error = match self.fetch(session, blob, before, progress).await {
                Ok(()) => continue,
                Err(error) if !error.passes() => return Err(error),
                Err(error) => error,
            };
            in_vain = if self.length()? > before { 1 } else { in_vain + 1 };
            if in_vain >= TRIES {
                return Err(error);
            }
            tracing::debug!(blob = %blob.digest, %error, "download cut short; going on");
            tokio::time::sleep(pause(first_pause, in_vain)).await;
        }
    }

    async fn fetch(
        &mut self,
        session: &Session,
        blob: &Descriptor,
        mut have: u64,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), Error> {
        let what = format!("blob {}", blob.digest);
        let mut answer = session.blob(&blob.digest, have).await?;
        let goes_on = answer.status == StatusCode::PARTIAL_CONTENT
            && answer
                .header("content-range")
                .is_some_and(|range| range.starts_with(&format!("bytes {have}-")));
        if have > 0 && !goes_on {
            // The registry starts anew, whatever we have.
            self.restart()?;
            have = 0;
            if answer.status != StatusCode::OK {
                return Err(session.transfer(&what, "it cannot go on where it was cut off"));
            }
        }
        while let Some(chunk) = answer.chunk().await.map_err(|problem| session.transfer(&what, problem))? {
            have += chunk.len() as u64;
            if have > blob.size {
                self.restart()?;
                return Err(malformed(
                    what,
                    format!("it has more than the {} bytes it should have", blob.size),
                ));
            }
            // Small writes to the page cache: not worth another thread.
            self.file.write_all(&chunk).map_err(storage("write", &self.path))?;
            progress(Progress::Have { layer: blob.digest.clone(), bytes: have });
        }
        match have == blob.size {
            true => Ok(()),
            false => Err(session.transfer(&what, format!("it ended after {have} of {} bytes", blob.size))),
        }
    }
}

/// Doubles from try to try.
pub fn pause(first: Duration, tries: u32) -> Duration {
    first.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}

/// A second handle that reads from the beginning.
pub fn reader(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(storage("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let first = Duration::from_millis(250);
        let pauses: Vec<_> = (1..=8).map(|tries| pause(first, tries).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    }
}
