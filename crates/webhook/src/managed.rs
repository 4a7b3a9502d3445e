//! Certificates that look after themselves: the effects around [`secret::plan`].

use std::convert::Infallible;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::certificate::{self, LIFE};
use crate::definitions::{Definitions, Service};
use crate::secret::{self, Kept, Step};
use crate::server::Served;
use crate::{Error, Identity};

/// Attempts at a write that loses against other replicas.
const ATTEMPTS: usize = 16;
/// Definitions are checked again after this many looks at the Secret.
const DEFINITIONS_EVERY: u32 = 20;

pub(crate) struct Managed {
    identity: Identity,
    names: [String; 4],
    secrets: Api<Secret>,
    definitions: Definitions,
    /// What is served.
    serving: Kept,
}

impl Managed {
    /// Finds or makes a certificate that works now, and leads API servers to it.
    pub async fn start(client: Client, identity: Identity) -> Result<(Self, Served), Error> {
        let names = certificate::names(&identity.service, &identity.namespace, &identity.cluster_domain);
        let secrets = Api::namespaced(client.clone(), &identity.namespace);
        let definitions = Definitions::new(client);
        let serving = settle(&secrets, &identity, &names).await?;
        let managed = Self { identity, names, secrets, definitions, serving };
        managed.point(&managed.serving).await?;
        let served = Served::new(certificate::certified_key(&managed.serving.current)?);
        Ok((managed, served))
    }

    /// Renews the certificate in time and follows what other replicas do.
    pub async fn run(mut self, served: Served) -> Infallible {
        let mut looks: u32 = 0;
        loop {
            // First: a start may find a certificate that is due.
            if let Err(error) = self.look(&served, looks.is_multiple_of(DEFINITIONS_EVERY)).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not look after the webhook's certificate"
                );
            }
            looks = looks.wrapping_add(1);
            tokio::time::sleep(self.identity.check_every).await;
        }
    }

    async fn look(&mut self, served: &Served, definitions_too: bool) -> Result<(), Error> {
        let mut kept = settle(&self.secrets, &self.identity, &self.names).await?;
        for _ in 0..ATTEMPTS {
            match self.plan(&kept)? {
                Step::Announce(why) => {
                    tracing::info!(%why, "announcing a new certificate");
                    let next = certificate::issue(&self.names, Timestamp::now(), LIFE)?;
                    kept = self.update(kept.clone(), kept.announcing(next)).await?;
                }
                Step::Switch => {
                    self.introduce(&kept).await?;
                    kept = self.update(kept.clone(), kept.switched(Timestamp::now())).await?;
                }
                Step::Nothing | Step::Create | Step::Replace(_) => break,
            }
        }
        if kept != self.serving {
            self.point(&kept).await?;
            served.set(certificate::certified_key(&kept.current)?);
            self.serving = kept;
            tracing::info!("serving a new certificate");
        } else if definitions_too {
            self.point(&kept).await?;
        }
        Ok(())
    }

    /// Waits until API servers have trusted all authorities for a while.
    async fn introduce(&self, kept: &Kept) -> Result<(), Error> {
        loop {
            self.point(kept).await?;
            tokio::time::sleep(self.identity.overlap).await;
            // Another replica that had not read the announcement yet may have taken it back.
            if !self.point(kept).await? {
                return Ok(());
            }
        }
    }

    fn plan(&self, kept: &Kept) -> Result<Step, Error> {
        plan(Some(kept), &self.identity, &self.names)
    }

    /// Writes `new` if the Secret still holds `old`, and returns what it holds then.
    async fn update(&self, old: Kept, new: Kept) -> Result<Kept, Error> {
        let (mut secret, found) =
            read(&self.secrets, &self.identity).await?.ok_or_else(|| conflict(&self.identity))?;
        if found != old {
            return Ok(found);
        }
        new.write(&mut secret);
        match self.secrets.replace(secret::NAME, &PostParams::default(), &secret).await {
            Ok(_) => Ok(new),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let found = read(&self.secrets, &self.identity).await?;
                found.map(|(_, found)| found).ok_or_else(|| conflict(&self.identity))
            }
            Err(source) => Err(Error::Api { what: "write the Secret of the webhook's certificate", source }),
        }
    }

    async fn point(&self, kept: &Kept) -> Result<bool, Error> {
        let Identity { service, namespace, .. } = &self.identity;
        let service = Service { name: service.clone(), namespace: namespace.clone() };
        let pointed = self.definitions.point(&service, &kept.trusted()).await;
        pointed.map_err(|source| Error::Api { what: "write the conversion stanza of the CRDs", source })
    }
}

/// The Secret with a certificate that works now: as it is, created, or replaced.
async fn settle(secrets: &Api<Secret>, identity: &Identity, names: &[String; 4]) -> Result<Kept, Error> {
    let write = |source| Error::Api { what: "write the Secret of the webhook's certificate", source };
    for _ in 0..ATTEMPTS {
        let found = read(secrets, identity).await?;
        let step = plan(found.as_ref().map(|(_, kept)| kept), identity, names)?;
        let fresh = || certificate::issue(names, Timestamp::now(), LIFE).map(Kept::fresh);
        let written = match (step, found) {
            (Step::Create, _) | (_, None) => {
                let fresh = fresh()?;
                let metadata = ObjectMeta { name: Some(secret::NAME.into()), ..Default::default() };
                let mut secret = Secret { metadata, type_: Some("Opaque".into()), ..Default::default() };
                fresh.write(&mut secret);
                secrets.create(&PostParams::default(), &secret).await.map(|_| fresh)
            }
            (Step::Replace(why), Some((mut secret, _))) => {
                tracing::warn!(%why, "replacing the webhook's certificate");
                let fresh = fresh()?;
                fresh.write(&mut secret);
                secrets.replace(secret::NAME, &PostParams::default(), &secret).await.map(|_| fresh)
            }
            (Step::Nothing | Step::Announce(_) | Step::Switch, Some((_, kept))) => return Ok(kept),
        };
        match written {
            Ok(kept) => return Ok(kept),
            // Another replica was faster: its certificate is as good.
            Err(kube::Error::Api(status)) if status.code == 409 => continue,
            Err(source) => return Err(write(source)),
        }
    }
    Err(conflict(identity))
}

async fn read(secrets: &Api<Secret>, identity: &Identity) -> Result<Option<(Secret, Kept)>, Error> {
    let found = secrets.get_opt(secret::NAME).await;
    let found = found
        .map_err(|source| Error::Api { what: "read the Secret of the webhook's certificate", source })?;
    let Some(secret) = found else { return Ok(None) };
    let kept = Kept::read(&secret).map_err(|source| unusable(identity, source))?;
    Ok(Some((secret, kept)))
}

fn plan(kept: Option<&Kept>, identity: &Identity, names: &[String; 4]) -> Result<Step, Error> {
    secret::plan(kept, names, Timestamp::now()).map_err(|source| unusable(identity, source))
}

fn unusable(identity: &Identity, source: certificate::Error) -> Error {
    Error::Secret { namespace: identity.namespace.clone(), source }
}

fn conflict(identity: &Identity) -> Error {
    Error::Conflict { namespace: identity.namespace.clone() }
}
