use http::HeaderName;
use proptest::prelude::*;

use super::*;
use crate::address::{Address, Route};
use crate::authorize::Connection;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
}

fn route(via: Via) -> Route {
    Route { address: Address::new("team", "web", 80), via, target: None }
}

fn cleaned(uri: &str, cookies: &[&str]) -> (String, Vec<String>) {
    let (mut uri, mut headers) = (uri.parse().unwrap(), HeaderMap::new());
    for cookie in cookies {
        headers.append(COOKIE, cookie.parse().unwrap());
    }
    Links::default().clean_uri(&mut uri);
    Links::default().clean_headers(&mut headers);
    let cookies = headers.get_all(COOKIE).iter().map(|value| value.to_str().unwrap().to_owned());
    (uri.to_string(), cookies.collect())
}

#[test]
fn the_parameter_is_removed_and_nothing_else_changes() {
    for (given, wanted) in [
        ("/a?sandbox_token=T", "/a"),
        ("/a?sandbox_token=T&b=%20", "/a?b=%20"),
        ("/a?b=1&sandbox_token=T", "/a?b=1"),
        ("/a?b=1&sandbox_token=T&&c=/?", "/a?b=1&&c=/?"),
        ("/a?sandbox_token=T&sandbox_token=U", "/a"),
        ("/a?sandbox_token=", "/a"),
        ("/a%2Fb//?", "/a%2Fb//?"),
        (
            "/a?xsandbox_token=T&sandbox_tokens=1&sandbox_token",
            "/a?xsandbox_token=T&sandbox_tokens=1&sandbox_token",
        ),
        ("http://host:80/a?sandbox_token=T", "http://host:80/a"),
    ] {
        assert_eq!(cleaned(given, &[]).0, wanted);
    }
}

#[test]
fn the_cookie_is_removed_and_nothing_else_changes() {
    for (given, wanted) in [
        (&["sandbox_token=T"][..], &[][..]),
        (&["a=1; sandbox_token=T; b=\"x\""], &["a=1; b=\"x\""]),
        (&["sandbox_token=T; a=1"], &["a=1"]),
        (&["sandbox_token=T;a=1;  b"], &["a=1;  b"]),
        (&["a=1", "sandbox_token=T", "b=2; sandbox_token=U"], &["a=1", "b=2"]),
        (&["a=sandbox_token=T; Sandbox_token=1"], &["a=sandbox_token=T; Sandbox_token=1"]),
    ] {
        assert_eq!(cleaned("/", given).1, wanted);
    }
}

#[test]
fn a_sandbox_cannot_set_the_routers_cookie() {
    let mut response = HeaderMap::new();
    for cookie in ["a=1", "sandbox_token=evil; Path=/", " sandbox_token=evil", "sandbox_token2=fine"] {
        response.append(SET_COOKIE, cookie.parse().unwrap());
    }
    Links::default().clean_response(&mut response);
    let kept: Vec<_> = response.get_all(SET_COOKIE).iter().collect();
    assert_eq!(kept, ["a=1", "sandbox_token2=fine"]);
}

#[test]
fn a_redirect_never_leaves_the_host() {
    for (given, wanted) in [
        ("/a/b?x=1&sandbox_token=T", "/a/b?x=1"),
        ("/?sandbox_token=T", "/"),
        ("//evil.example/?sandbox_token=T", "/.//evil.example/"),
        ("/\\evil.example/?sandbox_token=T", "/./\\evil.example/"),
        ("///evil.example?sandbox_token=T", "/.///evil.example"),
    ] {
        let uri: Uri = given.parse().unwrap();
        let response = Links::default().redirect(&uri, "T", "/s/team/web", 60);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[LOCATION]),
            (302, &wanted.parse().unwrap())
        );
        assert_eq!(
            response.headers()[SET_COOKIE],
            "sandbox_token=T; Path=/s/team/web; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
        );
        assert_eq!(response.headers()[REFERRER_POLICY], "no-referrer");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    }
    let links =
        Links { insecure: true, same_site: SameSite::Strict, cookie: "c".to_owned(), ..Links::default() };
    let response = links.redirect(&Uri::from_static("/"), "T", "/", 1);
    assert_eq!(response.headers()[SET_COOKIE], "c=T; Path=/; Max-Age=1; HttpOnly; SameSite=Strict");
}

#[test]
fn only_a_navigation_is_redirected() {
    let redirects = |method: Method, via, pairs: &[(&'static str, &str)]| {
        let (headers, route, uri) = (headers(pairs), route(via), Uri::from_static("/"));
        let connection = Connection::default();
        let asking = Asking {
            method: &method,
            uri: &uri,
            headers: &headers,
            route: &route,
            connection,
            limited: None,
        };
        Links::default().redirects(asking)
    };
    assert!(redirects(Method::GET, Via::Path, &[("sec-fetch-mode", "navigate")]));
    assert!(redirects(Method::GET, Via::Host, &[("accept", "text/html,*/*")]));
    assert!(!redirects(Method::GET, Via::Headers, &[("sec-fetch-mode", "navigate")]));
    assert!(!redirects(Method::GET, Via::Path, &[]));
    assert!(!redirects(Method::GET, Via::Path, &[("accept", "*/*")]));
    assert!(!redirects(Method::GET, Via::Path, &[("sec-fetch-mode", "cors"), ("accept", "text/html")]));
    assert!(!redirects(Method::POST, Via::Path, &[("sec-fetch-mode", "navigate")]));
    assert!(!redirects(Method::HEAD, Via::Path, &[("sec-fetch-mode", "navigate")]));
    assert!(!redirects(Method::GET, Via::Path, &[("sec-fetch-mode", "navigate"), ("upgrade", "websocket")]));
}

struct Page(Links, Connection);

impl Page {
    fn may(&self, method: Method, pairs: &[(&'static str, &str)]) -> bool {
        let (headers, route, uri) = (headers(pairs), route(Via::Host), Uri::from_static("/"));
        let asking = Asking {
            method: &method,
            uri: &uri,
            headers: &headers,
            route: &route,
            connection: self.1,
            limited: None,
        };
        self.0.check_origin(asking).is_ok()
    }
}

#[test]
fn another_page_cannot_use_the_cookie() {
    let tls = Connection { tls: true, ..Connection::default() };
    let links = Links { allowed_origins: vec!["https://dash.example".to_owned()], ..Links::default() };
    let page = Page(links, tls);
    let host = ("host", "web.team.box.example");
    for (origin, may) in [
        ("https://web.team.box.example", true),
        ("https://WEB.team.box.example", true),
        ("https://dash.example", true),
        ("https://other.team.box.example", false),
        ("http://web.team.box.example", false),
        ("https://web.team.box.example:8443", false),
        ("https://web.team.box.example.evil", false),
        ("https://dash.example.evil", false),
        ("https://", false),
        ("null", false),
        ("", false),
    ] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            assert_eq!(page.may(method, &[host, ("origin", origin)]), may, "{origin}");
        }
        assert_eq!(
            page.may(Method::GET, &[host, ("origin", origin), ("upgrade", "websocket")]),
            may,
            "{origin}"
        );
    }
    assert!(!page.may(Method::POST, &[host]), "no origin");
    assert!(!page.may(Method::GET, &[host, ("upgrade", "websocket")]), "no origin");
    assert!(!page.may(Method::POST, &[("origin", "https://")]), "no host");
    assert!(page.may(Method::GET, &[host]));
    for (site, mode, may) in [
        ("same-origin", "cors", true),
        ("none", "navigate", true),
        ("cross-site", "navigate", true),
        ("cross-site", "no-cors", false),
        ("same-site", "no-cors", false),
    ] {
        assert_eq!(
            page.may(Method::GET, &[host, ("sec-fetch-site", site), ("sec-fetch-mode", mode)]),
            may,
            "{site}"
        );
    }
}

#[test]
fn another_page_cannot_put_the_sandbox_into_a_frame_unless_cookies_are_made_for_frames() {
    let may = |same_site, site, dest| {
        let page = Page(Links { same_site, ..Links::default() }, Connection::default());
        let host = ("host", "web.team.box.example");
        let fetch =
            [host, ("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", dest)];
        page.may(Method::GET, &fetch)
    };
    for dest in ["iframe", "frame", "embed", "object"] {
        for site in ["same-site", "cross-site"] {
            assert!(!may(SameSite::Lax, site, dest), "{site} {dest}");
            assert!(may(SameSite::None, site, dest), "{site} {dest}");
        }
        assert!(may(SameSite::Lax, "same-origin", dest), "a page's own frames, {dest}");
    }
    assert!(may(SameSite::Lax, "cross-site", "document"), "a click on a link elsewhere");
}

#[test]
fn no_spelling_of_a_cookie_that_browsers_read_as_the_routers_passes() {
    for (cookie, passes) in [
        ("sandbox_token=x", false),
        ("sandbox_token =x; Path=/", false),
        (" sandbox_token\t= x", false),
        ("=sandbox_token=x", false),
        ("= =sandbox_token=x", false),
        ("sandbox_token", true),
        ("sandbox_tokens=x", true),
        ("other=sandbox_token=x", true),
        ("", true),
    ] {
        let mut response = HeaderMap::new();
        response.insert(SET_COOKIE, HeaderValue::from_str(cookie).unwrap());
        Links::default().clean_response(&mut response);
        assert_eq!(response.contains_key(SET_COOKIE), passes, "{cookie:?}");
    }
}

#[test]
fn the_scheme_of_an_origin_is_that_of_the_connection() {
    let request =
        [("host", "a.example:443"), ("origin", "https://a.example"), ("x-forwarded-proto", "https")];
    assert!(!Page(Links::default(), Connection::default()).may(Method::POST, &request));
    let tls = Connection { tls: true, ..Connection::default() };
    assert!(Page(Links::default(), tls).may(Method::POST, &request));
    let local = [("host", "localhost:8080"), ("origin", "http://localhost:8080")];
    assert!(Page(Links::default(), Connection::default()).may(Method::POST, &local));
}

#[test]
fn without_a_parameter_no_token_is_taken_from_a_query() {
    let links = Links { parameter: String::new(), ..Links::default() };
    assert_eq!(links.validate(true), Ok(()));
    for query in ["sandbox_token=T", "=T", "&=T&"] {
        assert_eq!(links.token_in_query(Some(query)), None, "{query}");
        let target = format!("/x?{query}");
        let mut uri: Uri = target.parse().unwrap();
        links.clean_uri(&mut uri);
        assert_eq!(uri.to_string(), target, "and nothing is taken out");
    }
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let good = Links::default();
    assert_eq!(good.validate(true), Ok(()));
    assert_eq!(good.validate(false), Err(LinksInvalid::NoScopedTokens));
    let with = |change: fn(&mut Links)| {
        let mut links = good.clone();
        change(&mut links);
        links.validate(true)
    };
    assert!(matches!(with(|links| links.cookie = "a b".to_owned()), Err(LinksInvalid::Cookie(_))));
    assert!(matches!(with(|links| links.cookie = String::new()), Err(LinksInvalid::Cookie(_))));
    assert!(matches!(with(|links| links.parameter = "a&b".to_owned()), Err(LinksInvalid::Parameter(_))));
    let none = |links: &mut Links| (links.same_site, links.insecure) = (SameSite::None, true);
    assert_eq!(with(none), Err(LinksInvalid::InsecureNone));
    for bad in ["*", "dash.example", "https://", "https://a/b", "https://*.example", "ftp://a"] {
        let links = Links { allowed_origins: vec![bad.to_owned()], ..good.clone() };
        assert_eq!(links.validate(true), Err(LinksInvalid::Origin(bad.to_owned())));
    }
}

proptest! {
    #![proptest_config(crate::fuzz::config())]

    #[test]
    fn no_token_survives_cleaning(
        before in "([a-z]=[0-9]?&){0,3}", after in "(&[a-z]=[0-9]?){0,3}", cookies in "([a-z]=[0-9]; ?){0,3}", more in "(;[ a-z]=[0-9]){0,3}",
    ) {
        let uri = format!("/p?{before}sandbox_token=T{after}");
        let cookie = format!("{cookies}sandbox_token=T{more}");
        let (uri, cookies) = cleaned(&uri, &[&cookie]);
        prop_assert!(!uri.contains("sandbox_token"), "{}", uri);
        prop_assert!(!cookies.concat().contains("sandbox_token"), "{:?}", cookies);
        let kept = uri.split_once('?').map_or("", |(_, query)| query);
        let wanted = format!("{before}{}", after.trim_start_matches('&'));
        prop_assert_eq!(kept, wanted.trim_end_matches('&'));
    }

    #[test]
    fn any_cookie_and_query_get_an_answer(cookie in "[ -~]{0,60}", query in "[!-~]{0,60}") {
        let links = Links::default();
        let headers = headers(&[("cookie", &cookie)]);
        prop_assert!(links.tokens_in_cookies(&headers).count() <= MAX_COOKIES);
        let _ = links.token_in_query(Some(&query));
        if let Ok(uri) = format!("/?{query}").parse::<Uri>() {
            let (mut uri, mut headers) = (uri, headers);
            links.clean_uri(&mut uri);
            links.clean_headers(&mut headers);
            prop_assert!(links.tokens_in_cookies(&headers).next().is_none());
            prop_assert!(links.token_in_query(uri.query()).is_none());
        }
    }
}
