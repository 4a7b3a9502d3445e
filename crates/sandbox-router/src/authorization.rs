//! Who may pass: what the `--authz` flags amount to. Pure.
//!
//! Deny by default: without a mode there is no router, and a flag that belongs to a mode which is off is an error, so
//! that nothing about security is ignored silently.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::options::AuthorizationFlags;
use crate::settings::{Problem, problem};

/// The ways to be let in. Several may be on: one that says yes is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing is checked.
    AllowAll,
    /// One token for everything.
    SharedToken,
    /// Tokens of the cluster's users and service accounts.
    TokenReview,
    /// Tokens for one sandbox each.
    ScopedToken,
}

#[derive(Debug, Clone)]
pub struct Authorization {
    pub modes: BTreeSet<Mode>,
    /// Connections from loopback need no credentials.
    pub trust_loopback: bool,
    /// `None` with mode shared-token: the token is in the environment.
    pub shared_token_file: Option<PathBuf>,
    pub token_review: TokenReview,
    pub scoped_tokens: ScopedTokens,
    pub cookie: Option<Cookie>,
    pub trust_forwarded_proto: bool,
    pub trusted_proxies: Vec<Network>,
}

#[derive(Debug, Clone)]
pub struct TokenReview {
    pub ttl: Duration,
    pub cache_size: usize,
    pub require_token: bool,
    pub audiences: Vec<String>,
    /// Whether the user may reach the sandbox is asked too.
    pub subject_access_review: bool,
}

#[derive(Debug, Clone)]
pub struct ScopedTokens {
    pub secret_file: Option<PathBuf>,
    pub verification_keys_file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    pub name: String,
    /// `None`: links set no cookie.
    pub query_param: Option<String>,
    pub same_site: SameSite,
    pub insecure: bool,
    pub allowed_origins: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameSite {
    Lax,
    Strict,
    None,
}

/// An address and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub bits: u8,
}

/// Checks the flags; `environment_token` says whether ROUTER_AUTH_TOKEN is set.
pub fn check(flags: &AuthorizationFlags, environment_token: bool) -> Result<Authorization, Problem> {
    let modes = modes(&flags.authz_mode)?;
    let has = |mode| modes.contains(&mode);
    shared_token(flags, has(Mode::SharedToken), environment_token)?;
    let scoped_tokens = scoped_tokens(flags, has(Mode::ScopedToken))?;
    let trusted_proxies = networks(&flags.trusted_proxy_cidrs)?;
    if flags.authz_trust_loopback && trusted_proxies.iter().any(|network| network.holds_loopback()) {
        let reason = "a proxy on loopback would pass every caller off as authorised; drop loopback from \
                      --trusted-proxy-cidrs, or do without this flag";
        return Err(problem("authz-trust-loopback", reason));
    }
    if flags.authz_trust_forwarded_proto && trusted_proxies.is_empty() {
        return Err(problem("authz-trust-forwarded-proto", "needs --trusted-proxy-cidrs"));
    }
    Ok(Authorization {
        trust_loopback: flags.authz_trust_loopback,
        shared_token_file: flags.authz_shared_token_file.clone(),
        token_review: token_review(flags, has(Mode::TokenReview))?,
        scoped_tokens,
        cookie: cookie(flags, has(Mode::ScopedToken))?,
        trust_forwarded_proto: flags.authz_trust_forwarded_proto,
        trusted_proxies,
        modes,
    })
}

fn modes(text: &str) -> Result<BTreeSet<Mode>, Problem> {
    let wrong = |reason: String| problem("authz-mode", reason);
    let modes = list(text)
        .map(|name| match name {
            "allow-all" => Ok(Mode::AllowAll),
            "shared-token" => Ok(Mode::SharedToken),
            "tokenreview" => Ok(Mode::TokenReview),
            "scoped-token" => Ok(Mode::ScopedToken),
            other => Err(wrong(format!(
                "{other:?} is not a mode; there are tokenreview, scoped-token, shared-token and allow-all"
            ))),
        })
        .collect::<Result<BTreeSet<_>, _>>()?;
    if modes.is_empty() {
        return Err(wrong(
            "say who may pass: --authz-mode=tokenreview (users of the cluster), \
             --authz-mode=scoped-token (tokens for one sandbox each), \
             --authz-mode=shared-token (one token, with --authz-shared-token-file or ROUTER_AUTH_TOKEN), \
             or, to check nothing, --authz-mode=allow-all"
                .to_owned(),
        ));
    }
    if modes.contains(&Mode::AllowAll) && modes.len() > 1 {
        return Err(wrong("allow-all checks nothing, so no other mode can be on beside it".to_owned()));
    }
    Ok(modes)
}

fn shared_token(flags: &AuthorizationFlags, on: bool, environment_token: bool) -> Result<(), Problem> {
    let file = flags.authz_shared_token_file.is_some();
    match (on, file, environment_token) {
        (true, false, false) => Err(problem(
            "authz-shared-token-file",
            "is needed by mode shared-token, or set ROUTER_AUTH_TOKEN",
        )),
        (true, true, true) => {
            Err(problem("authz-shared-token-file", "the token is also in ROUTER_AUTH_TOKEN; set one of them"))
        }
        (false, true, _) => Err(needs_mode("authz-shared-token-file", "shared-token")),
        (false, _, true) => Err(problem(
            "authz-mode",
            "ROUTER_AUTH_TOKEN is set, but mode shared-token is not among the modes",
        )),
        _ => Ok(()),
    }
}

fn token_review(flags: &AuthorizationFlags, on: bool) -> Result<TokenReview, Problem> {
    if flags.authz_tokenreview_ttl.is_zero() {
        return Err(problem("authz-tokenreview-ttl", "must be greater than 0"));
    }
    let cache_size = usize::try_from(flags.authz_tokenreview_cache_size).ok().filter(|size| *size > 0);
    let audiences: Vec<String> = list(&flags.authz_tokenreview_audiences).map(str::to_owned).collect();
    if !on && !audiences.is_empty() {
        return Err(needs_mode("authz-tokenreview-audiences", "tokenreview"));
    }
    Ok(TokenReview {
        ttl: flags.authz_tokenreview_ttl,
        cache_size: cache_size
            .ok_or_else(|| problem("authz-tokenreview-cache-size", "must be greater than 0"))?,
        require_token: flags.authz_tokenreview_require_token,
        audiences,
        subject_access_review: flags.authz_subject_access_review,
    })
}

fn scoped_tokens(flags: &AuthorizationFlags, on: bool) -> Result<ScopedTokens, Problem> {
    let (secret, keys) =
        (&flags.authz_scoped_token_secret_file, &flags.authz_scoped_token_verification_keys_file);
    match (on, secret, keys) {
        (true, None, None) => Err(problem(
            "authz-scoped-token-secret-file",
            "it or --authz-scoped-token-verification-keys-file is needed by mode scoped-token",
        )),
        (false, Some(_), _) => Err(needs_mode("authz-scoped-token-secret-file", "scoped-token")),
        (false, _, Some(_)) => Err(needs_mode("authz-scoped-token-verification-keys-file", "scoped-token")),
        _ => Ok(ScopedTokens { secret_file: secret.clone(), verification_keys_file: keys.clone() }),
    }
}

fn cookie(flags: &AuthorizationFlags, scoped_tokens: bool) -> Result<Option<Cookie>, Problem> {
    let same_site = match flags.authz_cookie_samesite.to_ascii_lowercase().as_str() {
        "lax" => SameSite::Lax,
        "strict" => SameSite::Strict,
        "none" => SameSite::None,
        other => {
            return Err(problem("authz-cookie-samesite", format!("{other:?} is not lax, strict or none")));
        }
    };
    if same_site == SameSite::None && flags.authz_cookie_insecure {
        return Err(problem("authz-cookie-insecure", "browsers drop SameSite=None cookies without Secure"));
    }
    let name = &flags.authz_cookie_name;
    let param = &flags.authz_cookie_query_param;
    if name.is_empty() {
        let set = [
            ("authz-cookie-query-param", !param.is_empty()),
            ("authz-cookie-insecure", flags.authz_cookie_insecure),
            ("authz-cookie-allowed-origins", list(&flags.authz_cookie_allowed_origins).next().is_some()),
        ];
        return match set.into_iter().find(|(_, set)| *set) {
            Some((flag, _)) => Err(problem(flag, "needs --authz-cookie-name")),
            None => Ok(None),
        };
    }
    if !scoped_tokens {
        return Err(needs_mode("authz-cookie-name", "scoped-token"));
    }
    let token = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !token(name) {
        return Err(problem("authz-cookie-name", "may hold letters, digits, -, _ and . only"));
    }
    if !token(param) {
        return Err(problem("authz-cookie-query-param", "may hold letters, digits, -, _ and . only"));
    }
    let allowed_origins: Vec<String> =
        list(&flags.authz_cookie_allowed_origins).map(str::to_ascii_lowercase).collect();
    let is_origin = |origin: &String| {
        let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        rest.is_some_and(|host| !host.is_empty() && !host.contains(['/', '*', '?', '#', '@']))
    };
    if let Some(wrong) = allowed_origins.iter().find(|origin| !is_origin(origin)) {
        let reason = format!("{wrong:?} is not an origin such as https://app.example.com");
        return Err(problem("authz-cookie-allowed-origins", reason));
    }
    Ok(Some(Cookie {
        name: name.clone(),
        query_param: (!param.is_empty()).then(|| param.clone()),
        same_site,
        insecure: flags.authz_cookie_insecure,
        allowed_origins,
    }))
}

fn networks(text: &str) -> Result<Vec<Network>, Problem> {
    let parse = |text: &str| {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address.parse::<IpAddr>().ok()?, Some(bits.parse::<u8>().ok()?)),
            None => (text.parse::<IpAddr>().ok()?, None),
        };
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Network { address, bits })
    };
    let wrong =
        |text| problem("trusted-proxy-cidrs", format!("{text:?} is not a network such as 10.0.0.0/8"));
    list(text).map(|text| parse(text).ok_or_else(|| wrong(text))).collect()
}

impl Network {
    /// Whether any loopback address is in it.
    fn holds_loopback(self) -> bool {
        match self.address {
            IpAddr::V4(address) => {
                self.bits <= 8 && {
                    let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                    0x7f00_0000 & mask == address.to_bits() & mask
                } || address.is_loopback()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                1 & mask == address.to_bits() & mask
            }
        }
    }
}

/// The parts of a comma list, trimmed; empty ones are skipped.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn needs_mode(flag: &'static str, mode: &str) -> Problem {
    problem(flag, format!("belongs to mode {mode}, which is not in --authz-mode"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Flags;

    fn checked(flags: &[&str], environment_token: bool) -> Result<Authorization, Problem> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        check(&Flags::parse_arguments(&flags).unwrap().authorization, environment_token)
    }

    #[test]
    fn without_a_mode_there_is_no_router_and_all_modes_are_named() {
        for flags in [&[][..], &["--authz-trust-loopback"], &["--authz-mode="], &["--authz-mode= ,"]] {
            let problem = checked(flags, false).unwrap_err();
            assert_eq!(problem.flag, "authz-mode");
            for mode in ["tokenreview", "scoped-token", "shared-token", "allow-all"] {
                assert!(problem.reason.contains(mode), "{problem}");
            }
        }
    }

    #[test]
    fn modes_add_up_except_for_the_one_that_checks_nothing() {
        let both = ["--authz-mode=tokenreview, scoped-token", "--authz-scoped-token-secret-file=s"];
        assert_eq!(
            checked(&both, false).unwrap().modes.into_iter().collect::<Vec<_>>(),
            [Mode::TokenReview, Mode::ScopedToken]
        );
        assert_eq!(checked(&["--authz-mode=allow-all,tokenreview"], false).unwrap_err().flag, "authz-mode");
        assert!(checked(&["--authz-mode=allow-all"], false).is_ok());
    }

    #[test]
    fn nothing_about_security_is_ignored() {
        let review = "--authz-mode=tokenreview";
        for (flags, token, names) in [
            (&["--authz-mode=everything"][..], false, "authz-mode"),
            (&["--authz-mode=shared-token"], false, "authz-shared-token-file"),
            (&["--authz-mode=shared-token", "--authz-shared-token-file=f"], true, "authz-shared-token-file"),
            (&[review, "--authz-shared-token-file=f"], false, "authz-shared-token-file"),
            (&[review], true, "authz-mode"),
            (&["--authz-mode=scoped-token"], false, "authz-scoped-token-secret-file"),
            (&[review, "--authz-scoped-token-secret-file=f"], false, "authz-scoped-token-secret-file"),
            (
                &[review, "--authz-scoped-token-verification-keys-file=f"],
                false,
                "authz-scoped-token-verification-keys-file",
            ),
            (
                &["--authz-mode=allow-all", "--authz-tokenreview-audiences=a"],
                false,
                "authz-tokenreview-audiences",
            ),
            (&[review, "--authz-tokenreview-ttl=0"], false, "authz-tokenreview-ttl"),
            (&[review, "--authz-tokenreview-cache-size=0"], false, "authz-tokenreview-cache-size"),
            (&[review, "--authz-cookie-name=c"], false, "authz-cookie-name"),
            (&[review, "--authz-cookie-query-param=c"], false, "authz-cookie-query-param"),
            (&[review, "--authz-cookie-insecure"], false, "authz-cookie-insecure"),
            (&[review, "--authz-cookie-allowed-origins=https://a"], false, "authz-cookie-allowed-origins"),
            (&[review, "--authz-cookie-samesite=often"], false, "authz-cookie-samesite"),
            (&[review, "--authz-trust-forwarded-proto"], false, "authz-trust-forwarded-proto"),
            (&[review, "--trusted-proxy-cidrs=10.0.0.0/33"], false, "trusted-proxy-cidrs"),
            (&[review, "--trusted-proxy-cidrs=everywhere"], false, "trusted-proxy-cidrs"),
        ] {
            assert_eq!(checked(flags, token).unwrap_err().flag, names, "{flags:?}");
        }
    }

    #[test]
    fn loopback_is_not_trusted_where_a_proxy_speaks_for_others() {
        let with = |networks: &str| {
            let networks = format!("--trusted-proxy-cidrs={networks}");
            checked(&["--authz-mode=tokenreview", "--authz-trust-loopback", &networks], false)
        };
        assert!(with("10.0.0.0/8").is_ok() && with("128.0.0.0/1").is_ok() && with("fd00::/8").is_ok());
        for networks in
            ["127.0.0.0/8", "127.0.0.1", "0.0.0.0/0", "126.0.0.0/7", "::/0", "::1", "10.0.0.0/8,::1/128"]
        {
            assert_eq!(with(networks).unwrap_err().flag, "authz-trust-loopback", "{networks}");
        }
    }

    #[test]
    fn a_cookie_needs_safe_names_and_whole_origins() {
        let base = ["--authz-mode=scoped-token", "--authz-scoped-token-secret-file=s"];
        let with = |more: &[&str]| checked(&[&base[..], more].concat(), false);
        let cookie = with(&["--authz-cookie-name=session", "--authz-cookie-query-param=t"]).unwrap().cookie;
        assert_eq!(cookie.unwrap().query_param.as_deref(), Some("t"));
        for (wrong, names) in [
            (&["--authz-cookie-name=a b"][..], "authz-cookie-name"),
            (&["--authz-cookie-name=a", "--authz-cookie-query-param=a=b"], "authz-cookie-query-param"),
            (&["--authz-cookie-name=a", "--authz-cookie-allowed-origins=*"], "authz-cookie-allowed-origins"),
            (
                &["--authz-cookie-name=a", "--authz-cookie-samesite=none", "--authz-cookie-insecure"],
                "authz-cookie-insecure",
            ),
        ] {
            assert_eq!(with(wrong).unwrap_err().flag, names, "{wrong:?}");
        }
    }
}
