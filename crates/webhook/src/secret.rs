//! The Secret that all replicas take their certificate from.
//!
//! ```text
//! no Secret ─► create ─┐                       ┌─ near expiry ─► announce the next pair ─► all trust it ─► switch ─┐
//!                      ├─► serve `tls.crt` ────┤                                                                   │
//! broken ───► replace ─┘                       └───────────────────────────────────◄────────────────────────────────┘
//! ```
//!
//! Replicas race: the Secret's resourceVersion decides who wins, and the others read what the winner wrote. While a next
//! pair is announced, and after the switch as long as the old authority lives, API servers are told to trust both.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::certificate::{self, Pair, Verdict, Why, judge, living};

/// What the Secret is called.
pub const NAME: &str = "agent-sandbox-webhook-certs";
const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next-tls.crt", "next-tls.key"];

/// What the Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// What is served.
    pub current: Pair,
    /// What will be served once every API server trusts it.
    pub next: Option<Pair>,
}

/// What to do about the Secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Create,
    /// With a new pair, at once.
    Replace(Why),
    /// A new pair as the next one.
    Announce(Why),
    /// To the next pair, when everybody trusts it.
    Switch,
}

/// Decides the next step.
pub(crate) fn plan(
    kept: Option<&Kept>,
    names: &[String; 4],
    now: Timestamp,
) -> Result<Step, certificate::Error> {
    let Some(kept) = kept else { return Ok(Step::Create) };
    Ok(match judge(&kept.current, names, now)? {
        Verdict::Keep => Step::Nothing,
        Verdict::Replace(why) => Step::Replace(why),
        Verdict::Renew(why) => {
            let next = kept.next.as_ref().map(|next| judge(next, names, now));
            if matches!(next, Some(Ok(Verdict::Keep))) { Step::Switch } else { Step::Announce(why) }
        }
    })
}

impl Kept {
    pub fn fresh(pair: Pair) -> Self {
        Self { current: pair, next: None }
    }

    pub fn announcing(self, next: Pair) -> Self {
        Self { next: Some(next), ..self }
    }

    /// The next pair as the current one. The old authority stays trusted until it expires.
    pub fn switched(self, now: Timestamp) -> Self {
        let Some(next) = self.next else { return self };
        let old = living(&self.current.authorities, now).concat();
        let authorities = format!("{}{old}", next.authorities);
        Self { current: Pair { authorities, ..next }, next: None }
    }

    /// What API servers should trust.
    pub fn trusted(&self) -> String {
        let next = self.next.as_ref().map_or("", |next| &next.authorities);
        format!("{}{next}", self.current.authorities)
    }

    pub fn read(secret: &Secret) -> Result<Self, certificate::Error> {
        let data = secret.data.as_ref();
        let field = |name: &str| {
            let bytes = data.and_then(|data| data.get(name))?;
            String::from_utf8(bytes.0.clone()).ok()
        };
        let pair = |[authorities, certificate, key]: [&str; 3]| {
            Some(Pair {
                authorities: field(authorities)?,
                certificate: field(certificate)?,
                key: field(key)?,
            })
        };
        let missing = certificate::Error::Invalid("ca.crt, tls.crt and tls.key must be there, as PEM");
        Ok(Self { current: pair(CURRENT).ok_or(missing)?, next: pair(NEXT) })
    }

    /// Puts this into a Secret, beside what others keep in it.
    pub fn write(&self, secret: &mut Secret) {
        let data = secret.data.get_or_insert_default();
        NEXT.iter().for_each(|name| drop(data.remove(*name)));
        put(data, CURRENT, &self.current);
        if let Some(next) = &self.next {
            put(data, NEXT, next);
        }
    }
}

fn put(data: &mut BTreeMap<String, ByteString>, [authorities, certificate, key]: [&str; 3], pair: &Pair) {
    for (name, text) in [(authorities, &pair.authorities), (certificate, &pair.certificate), (key, &pair.key)]
    {
        data.insert(name.to_owned(), ByteString(text.as_bytes().to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{LIFE, issue, names};
    use jiff::SignedDuration;

    fn the_names() -> [String; 4] {
        names("svc", "ns", "cluster.local")
    }

    fn now() -> Timestamp {
        "2026-11-16T00:00:00Z".parse().unwrap()
    }

    fn pair(at: Timestamp) -> Pair {
        issue(&the_names(), at, LIFE).unwrap()
    }

    fn step(kept: Option<&Kept>, now: Timestamp) -> Step {
        plan(kept, &the_names(), now).unwrap()
    }

    /// MG-20, MG-21
    #[test]
    fn a_missing_secret_is_created_and_a_good_one_is_left_alone() {
        assert_eq!(step(None, now()), Step::Create);
        let kept = Kept::fresh(pair(now()));
        assert_eq!(step(Some(&kept), now()), Step::Nothing);
        let mut secret = Secret::default();
        kept.write(&mut secret);
        assert_eq!(Kept::read(&secret).unwrap(), kept, "byte for byte");
    }

    /// MG-21
    #[test]
    fn a_secret_without_readable_certificates_is_an_error() {
        let mut secret = Secret::default();
        Kept::fresh(pair(now())).write(&mut secret);
        secret.data.as_mut().unwrap().insert("tls.crt".into(), ByteString(b"x".to_vec()));
        let error = plan(Some(&Kept::read(&secret).unwrap()), &the_names(), now()).unwrap_err();
        assert!(error.to_string().contains("invalid certificate data"));
        secret.data.as_mut().unwrap().remove("tls.key");
        assert!(Kept::read(&secret).is_err());
    }

    #[test]
    fn renewal_trusts_the_next_authority_before_and_the_old_one_after_the_switch() {
        let late = now() + SignedDuration::from_hours(300 * 24);
        let (old, new) = (pair(now()), pair(late));
        let kept = Kept::fresh(old.clone());
        assert_eq!(step(Some(&kept), late), Step::Announce(Why::NearExpiry));
        let kept = kept.announcing(new.clone());
        assert_eq!(kept.current, old, "the old one is served until everybody trusts the next");
        assert!(kept.trusted().contains(&old.authorities) && kept.trusted().contains(&new.authorities));
        assert_eq!(step(Some(&kept), late), Step::Switch);
        let kept = kept.switched(late);
        assert_eq!((&kept.current.certificate, &kept.next), (&new.certificate, &None));
        assert_eq!(
            judge(&Pair { authorities: kept.trusted(), ..old.clone() }, &the_names(), late).unwrap(),
            Verdict::Renew(Why::NearExpiry),
            "a replica that still serves the old one is trusted"
        );
        assert_eq!(step(Some(&kept), late), Step::Nothing);
        let expired = now() + LIFE;
        let mut secret = Secret::default();
        kept.announcing(pair(late)).switched(expired).write(&mut secret);
        assert!(!Kept::read(&secret).unwrap().trusted().contains(&old.authorities), "expired authorities go");
    }

    #[test]
    fn an_expired_certificate_is_replaced_and_a_stale_announcement_repeated() {
        let kept = Kept::fresh(pair(now()));
        assert_eq!(step(Some(&kept), now() + LIFE), Step::Replace(Why::Expired));
        let late = now() + SignedDuration::from_hours(300 * 24);
        let stale = kept.announcing(pair(now()));
        assert_eq!(step(Some(&stale), late), Step::Announce(Why::NearExpiry));
    }

    #[test]
    fn what_others_keep_in_the_secret_stays() {
        let mut secret = Secret {
            data: Some(BTreeMap::from([("other".to_owned(), ByteString(vec![1]))])),
            ..Default::default()
        };
        Kept::fresh(pair(now())).write(&mut secret);
        assert_eq!(
            secret.data.unwrap().keys().collect::<Vec<_>>(),
            ["ca.crt", "other", "tls.crt", "tls.key"]
        );
    }
}
