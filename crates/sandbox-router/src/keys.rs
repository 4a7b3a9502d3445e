//! The public keys of scoped tokens, read again when their file changes, so that keys can rotate without a restart.

use std::path::PathBuf;
use std::sync::Arc;

use asb_router::authorize::v2::Keys;

use crate::changes::Changes;

/// Follows the file until the future is dropped. A file that cannot be used changes nothing.
pub async fn follow(keys: Arc<Keys>, file: PathBuf) {
    let mut changes = Changes::of([file.as_path()]);
    let path = file.display();
    loop {
        // Before the first change too: the file may have changed after it was read and before it was watched.
        let read = std::fs::read(&file).map_err(|error| error.to_string());
        match read.and_then(|bytes| keys.reload(&bytes).map_err(|error| error.to_string())) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(file = %path, ids = keys.ids().join(","), "token verification keys replaced");
            }
            Err(error) => {
                tracing::warn!(file = %path, error, "token verification keys not usable; those before stay")
            }
        }
        changes.next().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use asb_router::authorize::v2::SigningKey;

    use super::*;

    fn public_key() -> String {
        SigningKey::generate().unwrap().public_pem()
    }

    fn replace(file: &std::path::Path, content: &str) {
        let new = file.with_extension("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    async fn eventually(what: &str, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect(what);
    }

    /// A router whose file holds two keys, after it has read the first of them.
    async fn rotated() -> (tempfile::TempDir, PathBuf, Arc<Keys>, tokio::task::JoinHandle<()>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.pem");
        let [first, second] = [public_key(), public_key()];
        let keys = Arc::new(Keys::new(first.as_bytes()).unwrap());
        replace(&file, &format!("{first}{second}"));
        let following = tokio::spawn(follow(keys.clone(), file.clone()));
        eventually("both keys are used", || keys.ids().len() == 2).await;
        (directory, file, keys, following)
    }

    #[tokio::test]
    async fn a_key_that_was_added_before_the_watch_began_is_used() {
        let (_directory, _, _, following) = rotated().await;
        following.abort();
    }

    #[tokio::test]
    async fn new_keys_are_used_and_a_broken_file_changes_nothing() {
        let (_directory, file, keys, following) = rotated().await;
        let before = keys.ids();
        replace(&file, "not a key");
        // Read after the broken file: directories report changes in order.
        tokio::time::sleep(crate::changes::BUNCH * 2).await;
        assert_eq!(keys.ids(), before);
        replace(&file, &public_key());
        eventually("the old keys are dropped", || keys.ids().len() == 1).await;
        assert!(!before.contains(&keys.ids()[0]));
        following.abort();
    }
}
