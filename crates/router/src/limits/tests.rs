use std::collections::VecDeque;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::authorize::By;

fn identity(by: By, subject: &str) -> Identity {
    Identity { by, subject: subject.into() }
}

fn anonymous() -> Identity {
    identity(By::AllowAll, "")
}

fn limiter(caller: Quota, sandbox: Quota) -> Limiter {
    Limiter::new(Quotas { caller, sandbox, ..Quotas::default() })
}

fn address(name: &str) -> Address {
    Address::new("team", name, 80)
}

fn ip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

const TWO: Quota = Quota { requests: Some(2), tunnels: Some(1), rate: None };

#[test]
fn requests_and_tunnels_are_counted_apart_and_until_they_end() {
    let limiter = limiter(TWO, Quota::default());
    let admit = |kind| limiter.admit(&anonymous(), ip(1), &address("web"), kind);
    let (one, _two) = (admit(Kind::Request).unwrap(), admit(Kind::Request).unwrap());
    assert_eq!(admit(Kind::Request).unwrap_err(), Exceeded::Requests { of: Of::Caller });
    let _tunnel = admit(Kind::Tunnel).unwrap();
    assert_eq!(admit(Kind::Tunnel).unwrap_err(), Exceeded::Tunnels { of: Of::Caller });
    drop(one);
    let _again = admit(Kind::Request).unwrap();
    let _other = limiter.admit(&anonymous(), ip(2), &address("web"), Kind::Request).unwrap();
}

#[test]
fn callers_are_told_apart_by_identity_and_otherwise_by_address() {
    let one = Quota { requests: Some(1), ..Quota::default() };
    let limiter = limiter(one, Quota::default());
    let admit = |identity: &Identity, from| limiter.admit(identity, ip(from), &address("web"), Kind::Request);
    let (ann, bob) = (identity(By::Review, "ann"), identity(By::Review, "bob"));
    let _ann = admit(&ann, 1).unwrap();
    assert!(admit(&ann, 2).is_err(), "another address does not help");
    let _bob = admit(&bob, 1).unwrap();
    let shared = identity(By::SharedToken, "");
    let _first = admit(&shared, 1).unwrap();
    let _second = admit(&shared, 2).unwrap();
    assert!(admit(&shared, 1).is_err());
    let token = identity(By::ScopedToken, "ann");
    let _token = admit(&token, 1).expect("a token with a user's name is not that user");
}

#[test]
fn a_sandbox_is_protected_from_all_callers_together() {
    let limiter = limiter(Quota::default(), TWO);
    let admit = |from, name| limiter.admit(&anonymous(), ip(from), &address(name), Kind::Request);
    let _held = [admit(1, "web").unwrap(), admit(2, "web").unwrap(), admit(3, "other").unwrap()];
    assert_eq!(admit(3, "web").unwrap_err(), Exceeded::Requests { of: Of::Sandbox });
}

#[test]
fn a_rate_comes_with_the_time_to_wait() {
    let rate = Rate { per_second: 1.try_into().unwrap(), burst: 2.try_into().unwrap() };
    let limiter = limiter(Quota { rate: Some(rate), ..Quota::default() }, Quota::default());
    let admit = || limiter.admit(&anonymous(), ip(1), &address("web"), Kind::Request);
    drop((admit().unwrap(), admit().unwrap()));
    let refused = admit().unwrap_err();
    assert!(matches!(refused, Exceeded::Rate { of: Of::Caller, .. }));
    assert_eq!((refused.status().as_u16(), refused.retry_after()), (429, Some(1)));
}

#[test]
fn what_is_refused_by_the_second_limit_is_given_back_to_the_first() {
    let limiter = limiter(TWO, Quota { requests: Some(0), ..TWO });
    for _ in 0..10 {
        let refused = limiter.admit(&anonymous(), ip(1), &address("web"), Kind::Request).unwrap_err();
        assert_eq!(refused, Exceeded::Requests { of: Of::Sandbox });
    }
}

#[test]
fn connections_are_counted_by_address() {
    let limiter = Limiter::new(Quotas { connections_per_address: Some(2), ..Quotas::default() });
    let one = limiter.connect(ip(1)).unwrap();
    let _two = limiter.connect(ip(1)).unwrap();
    assert_eq!(limiter.connect(ip(1)).unwrap_err(), Exceeded::Connections);
    drop(one);
    let _three = limiter.connect(ip(1)).unwrap();
    let _other = limiter.connect(ip(2)).unwrap();
}

#[test]
fn an_address_that_is_refused_often_must_wait() {
    let rate = Rate { per_second: 1.try_into().unwrap(), burst: 3.try_into().unwrap() };
    let limiter = Limiter::new(Quotas { refusals_per_address: Some(rate), ..Quotas::default() });
    for _ in 0..3 {
        assert_eq!(limiter.check_refusals(ip(1)), Ok(()));
        limiter.count_refusal(ip(1));
    }
    assert!(matches!(limiter.check_refusals(ip(1)), Err(Exceeded::Refusals { .. })));
    assert_eq!(limiter.check_refusals(ip(2)), Ok(()), "others need not");
    assert_eq!(limiter.peers.usages().len(), 1, "and are not remembered for asking");
}

#[test]
fn the_scheme_is_the_connections_unless_a_trusted_proxy_says_another() {
    let trusted_proxies = vec!["192.0.2.1/32".parse().unwrap()];
    let limiter = |trust_forwarded_proto| {
        Limiter::new(Quotas {
            trust_forwarded_proto,
            trusted_proxies: trusted_proxies.clone(),
            ..Quotas::default()
        })
    };
    let headers = |values: &[&'static str]| -> HeaderMap {
        let name = HeaderName::from_static("x-forwarded-proto");
        values.iter().map(|value| (name.clone(), HeaderValue::from_static(value))).collect()
    };
    for (trust, peer, said, tls) in [
        (true, 1, &["https"][..], true),
        (true, 1, &["http, HTTPS"], true),
        (true, 1, &["https", "http"], false),
        (true, 1, &[], false),
        (true, 2, &["https"], false),
        (false, 1, &["https"], false),
    ] {
        assert_eq!(limiter(trust).is_tls(ip(peer), false, &headers(said)), tls, "{trust} {peer} {said:?}");
    }
    assert!(limiter(true).is_tls(ip(1), true, &headers(&[])), "its own connection has TLS");
    assert!(!limiter(true).is_tls(ip(1), true, &headers(&["http"])), "the caller's has not");
}

#[test]
fn heads_are_limited() {
    let quotas =
        Quotas { header_count: Some(3), header_bytes: Some(40), body_bytes: Some(10), ..Quotas::default() };
    let limiter = Limiter::new(quotas);
    let check = |pairs: &[(&'static str, &'static str)]| {
        let pairs = pairs.iter();
        let headers =
            pairs.map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        limiter.check_head(&headers.collect())
    };
    assert_eq!(check(&[("content-length", "10"), ("a", "b")]), Ok(()));
    assert_eq!(check(&[("content-length", "11")]), Err(Exceeded::Body { limit: 10 }));
    assert_eq!(check(&[("a", "b"); 4]), Err(Exceeded::HeaderCount { limit: 3 }));
    let long = [("a", "0123456789012345678901234567890123456789")];
    assert_eq!(check(&long), Err(Exceeded::HeaderBytes { limit: 40 }));
    for (exceeded, status) in [
        (Exceeded::Body { limit: 1 }, 413),
        (Exceeded::HeaderCount { limit: 1 }, 431),
        (Exceeded::TableFull, 429),
    ] {
        assert_eq!(exceeded.status().as_u16(), status);
    }
}

#[test]
fn many_callers_do_not_grow_the_table_nor_push_out_busy_ones() {
    let entries = 64.try_into().unwrap();
    let limiter = Limiter::new(Quotas { caller: TWO, entries, ..Quotas::default() });
    let admit = |a, b| limiter.admit(&anonymous(), [10, 0, a, b].into(), &address("web"), Kind::Request);
    let _busy = (admit(0, 0).unwrap(), admit(0, 0).unwrap());
    for a in 1..=50 {
        for b in 0..=255 {
            let _ = admit(a, b);
        }
    }
    assert!(admit(0, 0).is_err(), "still counted");
    assert!(limiter.callers.usages().len() <= 64);
}

#[test]
fn a_table_of_busy_callers_refuses_new_ones() {
    let limiter = Limiter::new(Quotas { caller: TWO, entries: NonZeroUsize::MIN, ..Quotas::default() });
    let admit = |from| limiter.admit(&anonymous(), ip(from), &address("web"), Kind::Request);
    let held: Vec<_> = (0..=255).map(admit).collect();
    assert!(held.iter().any(|admitted| matches!(admitted, Err(Exceeded::TableFull))));
    drop(held);
    assert!((0..=255).all(|from| admit(from).is_ok()), "and forgets them when they are idle");
}

proptest! {
    #![proptest_config(crate::fuzz::config())]

    #[test]
    fn nothing_leaks(steps in proptest::collection::vec((0_u8..4, 0_u8..3, any::<bool>(), any::<bool>()), 0..200)) {
        let limiter = limiter(TWO, Quota { requests: Some(3), ..TWO });
        let mut held = VecDeque::new();
        for (from, name, tunnel, end) in steps {
            let kind = if tunnel { Kind::Tunnel } else { Kind::Request };
            if let Ok(admission) = limiter.admit(&anonymous(), ip(from), &address(&format!("box-{name}")), kind) {
                held.push_back(admission);
            }
            if end {
                held.pop_front();
            }
            for usage in limiter.callers.usages() {
                prop_assert!(usage.counter(Some(Kind::Request)).get() <= 2);
                prop_assert!(usage.counter(Some(Kind::Tunnel)).get() <= 1);
            }
        }
        held.clear();
        for usage in limiter.callers.usages().into_iter().chain(limiter.sandboxes.usages()) {
            prop_assert_eq!(usage.counter(Some(Kind::Request)).get(), 0);
            prop_assert_eq!(usage.counter(Some(Kind::Tunnel)).get(), 0);
        }
    }
}
