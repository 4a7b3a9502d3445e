//! Pulling one image: what is missing, and only that.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;

use super::download::{Download, pause, reader};
use super::session::Session;
use super::{Endpoint, Http, Keyring, Registries};
use crate::image::Error;
use crate::image::assemble::{self, Assembled};
use crate::image::digest::Digest;
use crate::image::error::malformed;
use crate::image::limits::Budget;
use crate::image::manifest::{Descriptor, Document, Manifest, architecture, choose};
use crate::image::reference::Reference;
use crate::image::store::{Blob, Lease, Record, Store, wrong_digest};

/// Layers that are fetched or unpacked at once.
const AT_ONCE: usize = 3;
/// Tries for a manifest or config.
const TRIES: u32 = 4;

/// How far a pull has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A layer that must be fetched.
    Layer {
        layer: Digest,
        bytes: u64,
    },
    /// So many bytes of it are here.
    Have {
        layer: Digest,
        bytes: u64,
    },
    Unpacking {
        layer: Digest,
    },
    Done {
        layer: Digest,
    },
}

/// What is needed to pull one image.
pub struct Pull<'a> {
    pub store: &'a Store,
    pub http: &'a Http,
    pub registries: &'a Registries,
    pub keyring: &'a Keyring,
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
}

impl Pull<'_> {
    /// Brings the image here and names it. Asks mirrors first; the registry itself has the last word.
    pub async fn run(&self, reference: &Reference) -> Result<Record, Error> {
        let registry = reference.registry.as_deref();
        let registry = registry.ok_or_else(|| Error::NoRegistry { name: reference.to_string() })?;
        let mut last = Error::NoRegistry { name: reference.to_string() };
        for endpoint in self.registries.endpoints(registry)? {
            match self.from(endpoint, reference).await {
                Ok(record) => return Ok(record),
                Err(error @ (Error::Storage { .. } | Error::Unpack { .. } | Error::TooLarge { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!(image = %reference, %error, "not from this endpoint");
                    last = error;
                }
            }
        }
        Err(last)
    }

    async fn from(&self, endpoint: Endpoint, reference: &Reference) -> Result<Record, Error> {
        let login = self.keyring.find(&endpoint.host, &reference.repository).cloned();
        let session = Session::new(self.http.clone(), endpoint, reference.repository.clone(), login);
        let (text, named) = self.manifest(&session, reference).await?;
        // A tag that has not moved: nothing to do.
        let known = self.store.find(reference)?.filter(|known| known.manifest.as_ref() == Some(&named));
        if let Some(known) = known.filter(|known| known.layers.iter().all(|id| self.store.has_layer(id))) {
            return Ok(known);
        }
        let manifest = match Document::parse(&text)? {
            Document::Manifest(manifest) => manifest,
            Document::Index(manifests) => {
                let chosen = choose(&manifests, architecture())?.digest.clone();
                let text = self.document(&session, &chosen).await?;
                match Document::parse(&text)? {
                    Document::Manifest(manifest) => manifest,
                    Document::Index(_) => return Err(malformed("the index", "it leads to another index")),
                }
            }
        };
        self.layers(session, reference, named, manifest).await
    }

    /// What the name stands for now, and its digest, which is that of the name if the name has one.
    async fn manifest(&self, session: &Session, reference: &Reference) -> Result<(Vec<u8>, Digest), Error> {
        let version = reference.version();
        let most = self.store.limits.document_bytes;
        let (text, said) = self.again(|| session.manifest(&version, most)).await?;
        let found = Digest::of(&text);
        let said = said.and_then(|said| said.parse().ok());
        for expected in [reference.digest.as_ref(), said.as_ref()].into_iter().flatten() {
            if *expected != found {
                return Err(wrong_digest("the manifest", expected, found));
            }
        }
        Ok((text, found))
    }

    async fn document(&self, session: &Session, digest: &Digest) -> Result<Vec<u8>, Error> {
        let (version, most) = (digest.to_string(), self.store.limits.document_bytes);
        let (text, _) = self.again(|| session.manifest(&version, most)).await?;
        let found = Digest::of(&text);
        if found == *digest { Ok(text) } else { Err(wrong_digest("the manifest", digest, found)) }
    }

    async fn config(&self, session: &Session, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        let most = self.store.limits.document_bytes;
        let text = self
            .again(|| async {
                let answer = session.blob(&descriptor.digest, 0).await?;
                answer.bytes(most).await.map_err(|problem| session.transfer("the config", problem))
            })
            .await?;
        let found = Digest::of(&text);
        match found == descriptor.digest {
            true => Ok(text),
            false => Err(wrong_digest("the config", &descriptor.digest, found)),
        }
    }

    async fn layers(
        &self,
        session: Session,
        reference: &Reference,
        named: Digest,
        manifest: Manifest,
    ) -> Result<Record, Error> {
        let text = self.config(&session, &manifest.config).await?;
        let (config, layers) = manifest.describe(&text, &self.store.limits)?;
        let ids: Vec<_> = layers.iter().map(|(_, id)| id.clone()).collect();
        let lease = Arc::new(Lease::new(self.store, &ids)?);
        let budget = Arc::new(self.store.budget()?);
        let mut seen = BTreeSet::new();
        let missing: Vec<_> = layers
            .into_iter()
            .filter(|(_, id)| seen.insert(id.clone()) && !self.store.has_layer(id))
            .collect();
        // Before anything is fetched: a registry may say any size.
        budget.check(missing.iter().fold(0, |sum, (layer, _)| layer.size.saturating_add(sum)))?;
        for (layer, _) in &missing {
            (self.progress)(Progress::Layer { layer: layer.digest.clone(), bytes: layer.size });
        }
        let slots = Semaphore::new(AT_ONCE);
        let mut running = FuturesUnordered::new();
        for (layer, id) in &missing {
            running.push(self.layer(&session, &lease, &budget, &slots, layer, id));
        }
        while let Some(done) = running.next().await {
            done?;
        }
        drop(running);
        let (store, name) = (self.store.clone(), reference.clone());
        let image = Assembled { manifest: Some(named), id: manifest.config.digest, layers: ids, config };
        blocking(move || assemble::name(&store, &lease, &name, image)).await
    }

    async fn layer(
        &self,
        session: &Session,
        lease: &Arc<Lease>,
        budget: &Arc<Budget>,
        slots: &Semaphore,
        layer: &Descriptor,
        id: &Digest,
    ) -> Result<(), Error> {
        let _slot = slots.acquire().await;
        let path = self.store.download(&layer.digest);
        let mut waiting = Some(blocking(move || Download::open(path)).await?);
        while let Some(mut download) = waiting.take() {
            // Another process may have brought it while we waited for the file.
            if self.store.has_layer(id) {
                download.remove()?;
                break;
            }
            download.complete(session, layer, self.registries.first_pause, &*self.progress).await?;
            (self.progress)(Progress::Unpacking { layer: layer.digest.clone() });
            let (store, lease, budget) = (self.store.clone(), lease.clone(), budget.clone());
            let (layer, id) = (layer.clone(), id.clone());
            // Ends what it has begun, also when nobody waits for it any more.
            waiting = blocking(move || unpack(&store, &lease, &budget, download, &layer, &id)).await?;
        }
        (self.progress)(Progress::Done { layer: layer.digest.clone() });
        Ok(())
    }

    /// Tries again while that can help.
    async fn again<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let mut tries = 1;
        loop {
            match work().await {
                Err(error) if error.passes() && tries < TRIES => {
                    tokio::time::sleep(pause(self.registries.first_pause, tries)).await;
                    tries += 1;
                }
                done => return done,
            }
        }
    }
}

/// Unpacks what was downloaded, and removes it. Gives the download back, emptied, when it is to be fetched anew: somebody
/// else had begun it, and what was there was wrong.
fn unpack(
    store: &Store,
    lease: &Lease,
    budget: &Budget,
    mut download: Download,
    layer: &Descriptor,
    id: &Digest,
) -> Result<Option<Download>, Error> {
    let blob = Blob { digest: &layer.digest, size: layer.size };
    match store.add_layer(lease, reader(&download.path)?, Some(&blob), Some(id), budget) {
        Ok(_) => download.remove().map(|()| None),
        Err(Error::Digest { .. } | Error::Malformed { .. } | Error::Read { .. }) if download.inherited => {
            download.restart()?;
            Ok(Some(download))
        }
        Err(error) => {
            download.remove()?;
            Err(error)
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(malformed("the image", error)),
    }
}
