//! The one place where settings become the router's own configuration.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;

use asb_router::authorize::{Access, Authorization, Links, ReviewConfig, SameSite, Secret, v1, v2};
use asb_router::limits::{IpNet, Quota, Rate};
use asb_router::{Addressing, Config, DialRetries, Limits, Observe, Quotas};

use crate::authorization::{self, Cookie, Mode};
use crate::secrets::Secrets;
use crate::settings::{Problem, Settings, problem};

/// What the router is started with.
pub struct Connected {
    pub config: Config,
    /// The public keys of scoped tokens, to be read again when their file changes.
    pub keys: Option<Arc<v2::Keys>>,
}

/// Connects every setting, or returns the first flag that cannot be used.
pub fn connect(settings: &Settings, secrets: &Secrets, observe: Observe) -> Result<Connected, Problem> {
    let keys = secrets.scoped_token_keys.as_ref().map(|keys| {
        let flag = "authz-scoped-token-verification-keys-file";
        v2::Keys::new(keys.expose().as_bytes())
            .map(Arc::new)
            .map_err(|error| problem(flag, error.to_string()))
    });
    let keys = keys.transpose()?;
    let limits = &settings.limits;
    let config = Config {
        addressing: addressing(settings)?,
        authorization: authorization(settings, secrets, keys.clone())?,
        quotas: quotas(settings)?,
        limits: Limits {
            connections: limits.connections,
            header_bytes: limits.header_bytes,
            response_timeout: limits.proxy_timeout,
            keep_alive: limits.keep_alive,
            idle_timeout: limits.idle_timeout,
            tunnel_idle_timeout: limits.tunnel_idle_timeout,
            tunnel_lifetime: limits.tunnel_max_lifetime,
            dial_retries: DialRetries {
                count: limits.retries.count,
                first_delay: limits.retries.initial_delay,
                max_delay: limits.retries.max_delay,
            },
            ..Limits::default()
        },
        namespace: settings.addressing.namespace.clone(),
        workers: None,
        observe,
    };
    Ok(Connected { config, keys })
}

fn addressing(settings: &Settings) -> Result<Addressing, Problem> {
    let crate::settings::Addressing { path_prefix, host_domain, allow_loopback_pod_ip, .. } =
        &settings.addressing;
    let prefix = path_prefix.as_deref().map(str::parse).transpose();
    let domain = host_domain.as_deref().map(str::parse).transpose();
    Ok(Addressing {
        path_prefix: prefix.map_err(|error| problem("path-routing-prefix", text(&error)))?,
        domain: domain.map_err(|error| problem("host-routing-domain", text(&error)))?,
        allow_loopback_pod_ip: *allow_loopback_pod_ip,
    })
}

fn text(error: &dyn std::error::Error) -> String {
    error.to_string()
}

/// Nothing is allowed but by the modes that are on.
fn authorization(
    settings: &Settings,
    secrets: &Secrets,
    keys: Option<Arc<v2::Keys>>,
) -> Result<Authorization, Problem> {
    let asked = &settings.authorization;
    let has = |mode| asked.modes.contains(&mode);
    let mut tokens = Vec::new();
    if has(Mode::SharedToken) {
        let token = secrets.shared_token.as_ref().and_then(|token| Secret::new(token.expose()));
        tokens.push(token.ok_or_else(|| problem("authz-shared-token-file", "there is no token"))?);
    }
    let secret = secrets.scoped_token_secret.as_ref().map(|secret| v1::Key::new(secret.expose().as_bytes()));
    let review = &asked.token_review;
    let cache_size = NonZeroUsize::new(review.cache_size);
    Ok(Authorization {
        allow_all: has(Mode::AllowAll),
        tokens,
        scoped_v1: secret
            .transpose()
            .map_err(|error| problem("authz-scoped-token-secret-file", text(&error)))?,
        scoped_v2: keys,
        review: has(Mode::TokenReview).then(|| ReviewConfig {
            audiences: review.audiences.clone(),
            access: if review.subject_access_review { Access::Reviewed } else { Access::AnySandbox },
            ttl: review.ttl,
            refused_ttl: review.ttl,
            cache_size: cache_size.unwrap_or(ReviewConfig::default().cache_size),
            allow_missing_token: !review.require_token,
            ..ReviewConfig::default()
        }),
        links: asked.cookie.as_ref().map(|cookie| links(cookie, settings)).transpose()?,
    })
}

fn links(cookie: &Cookie, settings: &Settings) -> Result<Links, Problem> {
    // Browsers drop such a cookie without a word.
    let begins =
        |prefix: &str| cookie.name.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
    if (begins("__Host-") || begins("__Secure-")) && cookie.insecure {
        return Err(problem("authz-cookie-name", "with this prefix the cookie cannot be insecure"));
    }
    if begins("__Host-") && settings.addressing.path_prefix.is_some() {
        let reason = "a cookie with the prefix __Host- is for a whole host, which --path-routing-prefix shares \
                      between sandboxes";
        return Err(problem("authz-cookie-name", reason));
    }
    Ok(Links {
        cookie: cookie.name.clone(),
        parameter: cookie.query_param.clone().unwrap_or_default(),
        same_site: match cookie.same_site {
            authorization::SameSite::Lax => SameSite::Lax,
            authorization::SameSite::Strict => SameSite::Strict,
            authorization::SameSite::None => SameSite::None,
        },
        insecure: cookie.insecure,
        allowed_origins: cookie.allowed_origins.clone(),
    })
}

fn quotas(settings: &Settings) -> Result<Quotas, Problem> {
    let limits = &settings.limits;
    let network = |network: &authorization::Network| {
        let wrong = |_| problem("trusted-proxy-cidrs", "has a network with too many bits");
        IpNet::new(network.address, network.bits).map_err(wrong)
    };
    let trusted_proxies =
        settings.authorization.trusted_proxies.iter().map(network).collect::<Result<_, _>>()?;
    Ok(Quotas {
        caller: Quota {
            requests: limits.requests_per_client,
            tunnels: limits.tunnels_per_client,
            rate: rate(limits.rate_per_client),
        },
        sandbox: Quota {
            requests: limits.requests_per_sandbox,
            tunnels: limits.tunnels_per_sandbox,
            rate: rate(limits.rate_per_sandbox),
        },
        connections_per_address: limits.connections_per_address,
        refusals_per_address: rate(limits.refusals_per_address),
        body_bytes: limits.request_body_bytes,
        trusted_proxies,
        trust_forwarded_proto: settings.authorization.trust_forwarded_proto,
        ..Quotas::default()
    })
}

/// As many at once as in a second.
fn rate(per_second: Option<u32>) -> Option<Rate> {
    let per_second = NonZeroU32::new(per_second?)?;
    Some(Rate { per_second, burst: per_second })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Flags;

    fn config(flags: &[&str], secrets: &Secrets) -> Result<Config, Problem> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let settings = Flags::parse_arguments(&flags).unwrap().settings(false).unwrap();
        connect(&settings, secrets, Observe::default()).map(|connected| connected.config)
    }

    #[test]
    fn every_flag_reaches_the_router() {
        let config = config(
            &[
                "--authz-mode=tokenreview",
                "--authz-tokenreview-audiences=a",
                "--authz-subject-access-review=false",
                "--path-routing-prefix=/s",
                "--host-routing-domain=sandboxes.example.com",
                "--cache-namespace=team",
                "--max-request-body-bytes=5",
                "--max-tunnels-per-client=6",
                "--max-rate-per-sandbox=7",
                "--tunnel-max-lifetime=8s",
                "--upstream-max-retries=9",
                "--keep-alive-timeout=10s",
                "--idle-timeout=11s",
                "--trusted-proxy-cidrs=10.0.0.0/8",
            ],
            &Secrets::default(),
        )
        .unwrap();
        let review = config.authorization.review.unwrap();
        assert_eq!(
            (review.audiences, review.access, review.allow_missing_token),
            (vec!["a".to_owned()], Access::AnySandbox, false)
        );
        assert!(!config.authorization.allow_all);
        assert_eq!(config.addressing.path_prefix.unwrap().as_str(), "/s");
        assert_eq!(config.addressing.domain.unwrap().as_str(), "sandboxes.example.com");
        assert_eq!(config.namespace.as_deref(), Some("team"));
        assert_eq!((config.quotas.body_bytes, config.quotas.caller.tunnels), (Some(5), Some(6)));
        assert_eq!(config.quotas.sandbox.rate, rate(Some(7)));
        assert_eq!(
            (config.limits.tunnel_lifetime.unwrap().as_secs(), config.limits.dial_retries.count),
            (8, 9)
        );
        assert_eq!((config.limits.keep_alive.as_secs(), config.limits.idle_timeout.as_secs()), (10, 11));
        assert_eq!(config.quotas.trusted_proxies.len(), 1);
    }

    #[test]
    fn links_are_off_without_their_parameter_and_cookies_that_browsers_drop_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
        let secret = format!("--authz-scoped-token-secret-file={}", secret.display());
        let with = |more: &[&str]| {
            let flags: Vec<String> = ["--authz-mode=scoped-token", &secret]
                .iter()
                .chain(more)
                .map(|flag| (*flag).to_owned())
                .collect();
            let settings = Flags::parse_arguments(&flags).unwrap().settings(false).unwrap();
            let secrets = crate::secrets::read(&settings, None).unwrap();
            connect(&settings, &secrets, Observe::default()).map(|connected| connected.config)
        };
        let links = |more: &[&str]| with(more).unwrap().authorization.links.unwrap();
        assert_eq!(links(&["--authz-cookie-name=a.b"]).parameter, "", "a token in a link is not accepted");
        assert_eq!(links(&["--authz-cookie-name=a", "--authz-cookie-query-param=t"]).parameter, "t");
        assert_eq!(links(&["--authz-cookie-name=__Host-a"]).cookie, "__Host-a");
        for more in [
            &["--authz-cookie-name=__Host-a", "--path-routing-prefix=/s"][..],
            &["--authz-cookie-name=__host-a", "--authz-cookie-insecure"],
            &["--authz-cookie-name=__Secure-a", "--authz-cookie-insecure"],
        ] {
            assert_eq!(with(more).err().unwrap().flag, "authz-cookie-name", "{more:?}");
        }
        let proxied = ["--authz-trust-forwarded-proto", "--trusted-proxy-cidrs=10.0.0.0/8"];
        assert!(with(&proxied).unwrap().quotas.trust_forwarded_proto);
    }

    #[test]
    fn a_mode_without_its_secret_never_becomes_a_router_without_a_token() {
        let flags = ["--authz-mode=shared-token", "--authz-shared-token-file=gone"];
        assert!(config(&flags, &Secrets::default()).is_err());
        assert!(config(&["--authz-mode=allow-all"], &Secrets::default()).unwrap().authorization.allow_all);
    }
}
