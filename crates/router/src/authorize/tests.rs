//! The methods together, with an API server that is a function.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use http::HeaderName;
use http::header::{COOKIE, LOCATION, SET_COOKIE};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::*;
use crate::address::Via;

const V1_SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Answers reviews, and remembers them.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Users by token.
    users: BTreeMap<String, &'static str>,
    /// `user verb namespace/name`
    rights: Vec<&'static str>,
    audiences: Vec<&'static str>,
    down: bool,
    asked: Vec<Value>,
}

impl Api {
    fn with(users: &[(&str, &'static str)], rights: &[&'static str]) -> Self {
        let users = users.iter().map(|(token, user)| ((*token).to_owned(), *user)).collect();
        Self(Arc::new(Mutex::new(State { users, rights: rights.to_vec(), ..State::default() })))
    }

    fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                Ok::<_, Infallible>(api.answer(serde_json::from_slice(&body).unwrap()))
            }
        });
        kube::Client::new(service, "default")
    }

    fn answer(&self, review: Value) -> Response<Full<Bytes>> {
        let mut state = self.0.lock().unwrap();
        state.asked.push(review.clone());
        if state.down {
            let status =
                json!({"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "m"});
            return Response::builder().status(503).body(Full::from(status.to_string())).unwrap();
        }
        let spec = &review["spec"];
        let status = if review["kind"] == "TokenReview" {
            match state.users.get(spec["token"].as_str().unwrap()) {
                Some(user) => json!({
                    "authenticated": true, "audiences": state.audiences,
                    "user": {"username": user, "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}},
                }),
                None => json!({"authenticated": false, "error": "no"}),
            }
        } else {
            let attributes = &spec["resourceAttributes"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let [user, verb] = [text(&spec["user"]), text(&attributes["verb"])];
            let right =
                format!("{user} {verb} {}/{}", text(&attributes["namespace"]), text(&attributes["name"]));
            json!({"allowed": state.rights.contains(&right.as_str())})
        };
        let mut review = review;
        review["status"] = status;
        Response::new(Full::from(review.to_string()))
    }

    fn calls(&self) -> usize {
        self.0.lock().unwrap().asked.len()
    }
}

/// A request to a router with these methods.
struct Caller {
    authorizer: Authorizer,
    addressing: Addressing,
    connection: Connection,
    limited: Option<Exceeded>,
}

impl Caller {
    fn new(config: Authorization) -> Self {
        Self::with_api(config, &Api::default())
    }

    fn with_api(config: Authorization, api: &Api) -> Self {
        let addressing = Addressing {
            path_prefix: Some("/s".parse().unwrap()),
            domain: Some("box.example".parse().unwrap()),
            ..Addressing::default()
        };
        let authorizer = Authorizer::new(config, addressing.clone(), api.client()).unwrap();
        Self { authorizer, addressing, connection: Connection::default(), limited: None }
    }

    async fn ask(&self, method: Method, uri: &str, pairs: &[(&'static str, &str)]) -> Result<Verdict, Error> {
        let uri: Uri = uri.parse().unwrap();
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let route = self.addressing.route(&uri, &headers)?;
        let asking = Asking {
            method: &method,
            uri: &uri,
            headers: &headers,
            route: &route,
            connection: self.connection,
            limited: self.limited,
        };
        self.authorizer.authorize(asking).await
    }

    /// The identity, or the status and hint.
    async fn get(&self, uri: &str, pairs: &[(&'static str, &str)]) -> Result<String, Error> {
        match self.ask(Method::GET, uri, pairs).await? {
            Verdict::Allow(pass) => Ok(pass.identity.to_string()),
            Verdict::Redirect(response) => Ok(format!("redirect {:?}", response.headers()[LOCATION])),
        }
    }

    async fn with_bearer(&self, token: &str) -> Result<String, Error> {
        self.get("/s/team/web/80/x", &[("authorization", &format!("Bearer {token}"))]).await
    }
}

fn refused(refusal: Refusal) -> Result<String, Error> {
    Err(refusal.into())
}

fn v2() -> (v2::SigningKey, Authorization) {
    let key = v2::SigningKey::generate().unwrap();
    let keys = Arc::new(v2::Keys::new(key.public_pem().as_bytes()).unwrap());
    let links = Some(Links::default());
    (key, Authorization { scoped_v2: Some(keys), links, ..Authorization::default() })
}

fn in_an_hour() -> u64 {
    now() + 3600
}

#[tokio::test]
async fn nothing_is_allowed_unless_it_is_configured() {
    let caller = Caller::new(Authorization::default());
    assert_eq!(caller.get("/s/team/web/80/", &[]).await, refused(Refusal::NoCredentials));
    for token in ["x", "v1.a.b", "v2.a.b"] {
        assert_eq!(caller.with_bearer(token).await, refused(Refusal::UnknownCredentials), "{token}");
    }
    let empty = Caller::new(Authorization::shared_token(" "));
    assert_eq!(
        empty.get("/s/team/web/80/", &[("authorization", "Bearer ")]).await,
        refused(Refusal::NoCredentials)
    );
    assert_eq!(Caller::new(Authorization::allow_all()).with_bearer("x").await.unwrap(), "anonymous");
}

#[tokio::test]
async fn a_trusted_connection_needs_no_token() {
    let mut caller = Caller::new(Authorization::default());
    caller.connection.trusted = true;
    assert_eq!(caller.get("/s/team/web/80/", &[]).await.unwrap(), "trusted-connection");
}

#[tokio::test]
async fn any_configured_method_may_allow() {
    let (key, config) = v2();
    let api = Api::with(&[("k8s", "ann")], &["ann get team/web"]);
    let review = Some(ReviewConfig::default());
    let v1 = v1::Key::new(V1_SECRET).unwrap();
    let v1_token = v1.mint("team", "web", now(), in_an_hour()).unwrap();
    let tokens = Secret::new("shared").into_iter().collect();
    let config = Authorization { tokens, scoped_v1: Some(v1), review, ..config };
    let caller = Caller::with_api(config, &api);
    let v2_token = key.sign(v2::Claims::new("team", "web", in_an_hour())).unwrap();
    assert_eq!(caller.with_bearer("shared").await.unwrap(), "shared-token");
    assert_eq!(caller.with_bearer(&v1_token).await.unwrap(), "scoped-token:team/web");
    let subject = format!("scoped-token:{}/team/web", key.kid());
    assert_eq!(caller.with_bearer(&v2_token).await.unwrap(), subject);
    assert_eq!(api.calls(), 0, "the API server does not see other tokens");
    assert_eq!(caller.with_bearer("k8s").await.unwrap(), "user:ann");
    assert_eq!(caller.with_bearer("other").await, refused(Refusal::NotAuthenticated));
    let cookie = format!("sandbox_token={v2_token}");
    let pairs = [("authorization", "Bearer other"), ("cookie", cookie.as_str())];
    assert_eq!(
        caller.get("/s/team/web/80/", &pairs).await.unwrap(),
        subject,
        "a good cookie beside a bad token"
    );
}

#[tokio::test]
async fn a_password_is_a_shared_or_scoped_token_but_never_reviewed() {
    let api = Api::with(&[("secret", "ann")], &["ann get team/web"]);
    let mut config = Authorization::shared_token("shared");
    config.review = Some(ReviewConfig::default());
    let caller = Caller::with_api(config, &api);
    let basic = |password: &str| {
        use base64::Engine;
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("token:{password}")))
    };
    let ask = async |password| caller.get("/s/team/web/80/", &[("authorization", &basic(password))]).await;
    assert_eq!(ask("shared").await.unwrap(), "shared-token");
    assert_eq!(ask("secret").await, refused(Refusal::UnknownCredentials));
    assert_eq!(api.calls(), 0);
}

#[tokio::test]
async fn a_user_needs_the_verb_on_this_sandbox() {
    let api = Api::with(&[("t", "ann")], &["ann get team/web"]);
    let review = Some(ReviewConfig::default());
    let caller = Caller::with_api(Authorization { review, ..Authorization::default() }, &api);
    let bearer = [("authorization", "Bearer t")];
    assert_eq!(caller.get("/s/team/web/80/", &bearer).await.unwrap(), "user:ann");
    assert_eq!(api.calls(), 2);
    assert_eq!(caller.get("/s/team/web/9000/y", &bearer).await.unwrap(), "user:ann");
    assert_eq!(api.calls(), 2, "both answers are remembered");
    let denied = Error::from(Refusal::AccessDenied);
    assert_eq!(caller.ask(Method::POST, "/s/team/web/80/", &bearer).await.unwrap_err(), denied);
    for other in ["/s/team/other/80/", "/s/other/web/80/", "/s/teamw/eb/80/"] {
        assert_eq!(caller.get(other, &bearer).await, Err(denied.clone()), "{other}");
    }
    let asked = api.0.lock().unwrap().asked[1].clone();
    assert_eq!(
        asked["spec"],
        json!({
            "user": "ann", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]},
            "resourceAttributes": {
                "group": "agents.x-k8s.io", "resource": "sandboxes", "subresource": "proxy", "verb": "get",
                "namespace": "team", "name": "web",
            },
        })
    );
}

#[tokio::test]
async fn a_user_may_be_enough_when_that_is_configured() {
    let api = Api::with(&[("t", "ann")], &[]);
    let review =
        ReviewConfig { access: Access::AnySandbox, allow_missing_token: true, ..ReviewConfig::default() };
    let caller = Caller::with_api(Authorization { review: Some(review), ..Authorization::default() }, &api);
    assert_eq!(caller.with_bearer("t").await.unwrap(), "user:ann");
    assert_eq!(api.calls(), 1);
    assert_eq!(caller.get("/s/team/web/80/", &[]).await.unwrap(), "user", "no token at all");
    assert_eq!(caller.with_bearer("bad").await, refused(Refusal::NotAuthenticated), "but not a bad one");
}

#[tokio::test]
async fn the_audience_is_asked_for_and_checked() {
    let api = Api::with(&[("t", "ann")], &["ann get team/web"]);
    let review = ReviewConfig { audiences: vec!["router".to_owned()], ..ReviewConfig::default() };
    let config = || Authorization { review: Some(review.clone()), ..Authorization::default() };
    let caller = Caller::with_api(config(), &api);
    assert_eq!(caller.with_bearer("t").await, refused(Refusal::OtherAudience));
    assert_eq!(api.0.lock().unwrap().asked[0]["spec"]["audiences"], json!(["router"]));
    api.0.lock().unwrap().audiences = vec!["router"];
    assert!(Caller::with_api(config(), &api).with_bearer("t").await.is_ok());
}

#[tokio::test]
async fn an_api_server_that_is_away_is_500_and_not_asked_again_at_once() {
    let api = Api::default();
    api.0.lock().unwrap().down = true;
    let review = Some(ReviewConfig::default());
    let caller = Caller::with_api(Authorization { review, ..Authorization::default() }, &api);
    let failed = |text: &str| Err(Error::ReviewFailed(text.to_owned()));
    let cause = "the API server answered 503: ServiceUnavailable";
    assert_eq!(caller.with_bearer("t").await, failed(&format!("tokenreview: {cause}")));
    assert_eq!(caller.with_bearer("t").await, failed(&format!("tokenreview (cached): {cause}")));
    assert_eq!(api.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_is_given_up() {
    let service = tower::service_fn(|_: Request<kube::client::Body>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let review = Some(ReviewConfig::default());
    let config = Authorization { review, ..Authorization::default() };
    let mut caller = Caller::new(Authorization::default());
    let client = kube::Client::new(service, "default");
    caller.authorizer = Authorizer::new(config, caller.addressing.clone(), client).unwrap();
    let answer = caller.with_bearer("t").await.unwrap_err();
    assert_eq!(answer.to_string(), "tokenreview: no answer from the API server within 3 s");
}

#[tokio::test]
async fn a_scoped_token_is_checked_against_the_path_that_the_sandbox_sees() {
    let (key, config) = v2();
    let caller = Caller::new(config);
    let claims =
        v2::Claims { path: Some("/pub/*".to_owned()), ..v2::Claims::new("team", "web", in_an_hour()) };
    let bearer = format!("Bearer {}", key.sign(claims).unwrap());
    let get =
        async |uri| caller.get(uri, &[("authorization", &bearer), ("host", "80-web.team.box.example")]).await;
    assert!(get("/s/team/web/80/pub/x?y").await.is_ok());
    assert!(get("/pub/x").await.is_ok());
    assert_eq!(get("/s/team/web/80/x").await, refused(Refusal::OtherPath));
    assert_eq!(get("/s/team/web/80/pub/../x").await, refused(Refusal::AmbiguousPath));
    assert_eq!(get("/s/team/other/80/pub/x").await, refused(Refusal::OtherSandbox));
}

#[tokio::test]
async fn a_link_becomes_a_cookie_for_its_sandbox_only() {
    let (key, config) = v2();
    let caller = Caller::new(config);
    let all = v2::Claims::new("team", "web", in_an_hour());
    let one_port = v2::Claims { port: Some(vec![80]), ..all.clone() };
    let host = ("host", "80-web.team.box.example");
    for (claims, uri, location, path) in [
        (&all, "/s/team/web/80/a?b=1", "/s/team/web/80/a?b=1", "/s/team/web"),
        (&one_port, "/s/team/web/80/a?b=1", "/s/team/web/80/a?b=1", "/s/team/web/80"),
        (&all, "/a?b=1", "/a?b=1", "/"),
    ] {
        let token = key.sign(claims.clone()).unwrap();
        let pairs = [host, ("sec-fetch-mode", "navigate")];
        let verdict = caller.ask(Method::GET, &format!("{uri}&sandbox_token={token}"), &pairs).await.unwrap();
        let Verdict::Redirect(response) = verdict else { panic!("a redirect") };
        assert_eq!(
            (response.status().as_u16(), &response.headers()[LOCATION]),
            (302, &location.parse().unwrap())
        );
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap().to_owned();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        assert!(attributes.starts_with(&format!("Path={path}; Max-Age=")), "{attributes}");
        assert!(attributes.ends_with("; HttpOnly; SameSite=Lax; Secure") && !attributes.contains("Domain"));
        assert!(caller.get(location, &[host, ("cookie", pair)]).await.unwrap().starts_with("scoped-token:"));
    }
}

#[tokio::test]
async fn a_link_that_is_no_navigation_passes_without_a_redirect() {
    let (key, config) = v2();
    let caller = Caller::new(config);
    let token = key.sign(v2::Claims::new("team", "web", in_an_hour())).unwrap();
    let uri = format!("/s/team/web/80/?sandbox_token={token}");
    assert!(caller.get(&uri, &[("accept", "*/*")]).await.unwrap().starts_with("scoped-token:"));
    let post = caller.ask(Method::POST, &uri, &[("accept", "text/html")]).await.unwrap();
    assert!(matches!(post, Verdict::Allow(_)));
}

#[tokio::test]
async fn a_bad_link_is_refused_and_sets_no_cookie() {
    let (key, config) = v2();
    let caller = Caller::new(config);
    let good = v2::Claims::new("team", "web", in_an_hour());
    let navigate = [("sec-fetch-mode", "navigate")];
    for (claims, refusal) in [
        (v2::Claims { exp: now() - 1, ..good.clone() }, Refusal::Expired),
        (v2::Claims { nbf: Some(now() + 60), ..good.clone() }, Refusal::NotYetValid),
        (v2::Claims { name: "other".to_owned(), ..good.clone() }, Refusal::OtherSandbox),
    ] {
        let uri = format!("/s/team/web/80/?sandbox_token={}", key.sign(claims).unwrap());
        assert_eq!(caller.get(&uri, &navigate).await, refused(refusal));
    }
    assert_eq!(
        caller.get("/s/team/web/80/?sandbox_token=x", &navigate).await,
        refused(Refusal::TokenMalformed)
    );
}

#[tokio::test]
async fn shared_tokens_do_not_work_in_links_or_cookies() {
    let (_, mut config) = v2();
    config.tokens = Secret::new("shared").into_iter().collect();
    let caller = Caller::new(config);
    let link = caller.get("/s/team/web/80/?sandbox_token=shared", &[]).await;
    assert_eq!(link, refused(Refusal::TokenMalformed));
    let cookie = caller.get("/s/team/web/80/", &[("cookie", "sandbox_token=shared")]).await;
    assert_eq!(cookie, refused(Refusal::TokenMalformed));
}

#[tokio::test]
async fn a_cookie_of_a_neighbour_does_not_shadow_the_right_one() {
    let (key, config) = v2();
    let caller = Caller::new(config);
    let token = |name: &str| key.sign(v2::Claims::new("team", name, in_an_hour())).unwrap();
    let cookie =
        format!("sandbox_token=junk; sandbox_token={}; sandbox_token={}", token("other"), token("web"));
    assert!(caller.get("/s/team/web/80/", &[("cookie", &cookie)]).await.is_ok());
}

#[tokio::test]
async fn a_cleaned_request_has_no_credentials_and_the_sandboxs_own_path() {
    let (_, config) = v2();
    let caller = Caller::new(config);
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_static("/s/team/web/80/a%2Fb?sandbox_token=T&c=1");
    request.headers_mut().insert(http::header::AUTHORIZATION, "Bearer T".parse().unwrap());
    request.headers_mut().insert(COOKIE, "a=1; sandbox_token=T".parse().unwrap());
    let route = caller.addressing.route(request.uri(), request.headers()).unwrap();
    assert_eq!(route.via, Via::Path);
    caller.authorizer.clean_request(&route, &mut request);
    assert_eq!(request.uri(), "/a%2Fb?c=1");
    *request.uri_mut() = Uri::from_static("https://router:8443/s/team/web/80/a?sandbox_token=T");
    let route = caller.addressing.route(request.uri(), request.headers()).unwrap();
    caller.authorizer.clean_request(&route, &mut request);
    assert_eq!(request.uri(), "https://router:8443/a", "HTTP/2 keeps its authority");
    assert_eq!(request.headers().len(), 1);
    assert_eq!(request.headers()[COOKIE], "a=1");
}

#[tokio::test]
async fn no_identity_shows_a_secret() {
    let (key, config) = v2();
    let caller = Caller::new(config);
    let token = key.sign(v2::Claims::new("team", "web", in_an_hour())).unwrap();
    let claims = caller.authorizer.scoped_v2.as_ref().unwrap().verify(&token).unwrap();
    let shown = format!("{:?} {} {claims:?}", claims.pass(), claims.pass().identity);
    assert!(!token.split('.').skip(1).any(|part| shown.contains(part)), "{shown}");
}

/// How long the decisions about one request take together: `cargo test --release -p asb-router speed -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "measures, and only an optimised build says something"]
async fn speed_of_the_usual_request() {
    use crate::limits::{Kind, Limiter, Quota, Quotas, Rate};

    let api = Api::with(&[(&"t".repeat(900), "ann")], &["ann get team/web"]);
    let (key, config) = v2();
    let tokens = Secret::new("0123456789abcdef0123456789abcdef").into_iter().collect();
    let config = Authorization { tokens, review: Some(ReviewConfig::default()), ..config };
    let caller = Caller::with_api(config, &api);
    let rate = Rate { per_second: u32::MAX.try_into().unwrap(), burst: u32::MAX.try_into().unwrap() };
    let quota = Quota { requests: Some(100), tunnels: Some(100), rate: Some(rate) };
    let limiters = [
        Limiter::new(Quotas::default()),
        Limiter::new(Quotas { caller: quota, sandbox: quota, ..Quotas::default() }),
    ];
    let v2_token = key.sign(v2::Claims::new("team", "web", in_an_hour())).unwrap();
    for token in ["0123456789abcdef0123456789abcdef", &"t".repeat(900), &v2_token] {
        for (limits, limiter) in ["without", "with"].into_iter().zip(&limiters) {
            let headers: HeaderMap = [
                ("host", "router"),
                ("accept", "*/*"),
                ("user-agent", "client"),
                ("x-sandbox-id", "web"),
                ("x-sandbox-namespace", "team"),
                ("x-sandbox-port", "8888"),
                ("authorization", &format!("Bearer {token}")),
            ]
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
            let uri = Uri::from_static("/execute");
            let mut best = std::time::Duration::MAX;
            // The best of many short runs: other programs disturb it least.
            for _ in 0..500 {
                let start = std::time::Instant::now();
                for _ in 0..100 {
                    limiter.check_head(&headers).unwrap();
                    let route = caller.addressing.route(&uri, &headers).unwrap();
                    let connection = Connection::default();
                    let asking = Asking {
                        method: &Method::GET,
                        uri: &uri,
                        headers: &headers,
                        route: &route,
                        connection,
                        limited: None,
                    };
                    let Ok(Verdict::Allow(pass)) = caller.authorizer.authorize(asking).await else {
                        panic!("allowed")
                    };
                    let client = limiter.client_address([10, 0, 0, 1].into(), &headers);
                    drop(limiter.admit(&pass.identity, client, &route.address, Kind::Request).unwrap());
                }
                best = best.min(start.elapsed() / 100);
            }
            println!("{} bytes of token, {limits} limits: {best:?}", token.len());
        }
    }
}

#[tokio::test]
async fn an_address_that_was_refused_often_is_let_in_by_what_cannot_be_guessed_and_asks_nobody() {
    let (key, config) = v2();
    let api = Api::with(&[("known", "ann"), ("new", "bob")], &["ann get team/web", "bob get team/web"]);
    let v1 = v1::Key::new(V1_SECRET).unwrap();
    let v1_token = v1.mint("team", "web", now(), in_an_hour()).unwrap();
    let v2_token = key.sign(v2::Claims::new("team", "web", in_an_hour())).unwrap();
    let tokens = Secret::new("shared").into_iter().collect();
    let review = Some(ReviewConfig::default());
    let mut caller = Caller::with_api(Authorization { tokens, scoped_v1: Some(v1), review, ..config }, &api);
    caller.with_bearer("known").await.unwrap();
    let asked = api.calls();
    let limited = Exceeded::Refusals { wait: std::time::Duration::from_secs(1) };
    caller.limited = Some(limited);
    for good in ["known", &v1_token, &v2_token] {
        assert!(caller.with_bearer(good).await.is_ok(), "{good}");
    }
    assert!(caller.get("/s/team/web/80/", &[("cookie", &format!("sandbox_token={v2_token}"))]).await.is_ok());
    for other in ["shared", "new", "wrong", "v1.a.b", "v2.a.b"] {
        assert_eq!(caller.with_bearer(other).await, Err(limited.into()), "{other}");
    }
    assert_eq!(caller.get("/s/team/web/80/", &[]).await, Err(limited.into()));
    let other = caller.get("/s/team/other/80/", &[("authorization", "Bearer known")]).await;
    assert_eq!(other, Err(limited.into()), "a right that is not known is not asked for either");
    assert_eq!(api.calls(), asked);
}

#[tokio::test]
async fn a_page_in_a_browser_gets_nothing_from_a_trusted_connection() {
    let (key, config) = v2();
    let mut caller = Caller::new(config);
    caller.connection.trusted = true;
    let uri = "/s/team/web/80/";
    let rebound = ("host", "evil.example:8080");
    assert_eq!(caller.get(uri, &[rebound]).await, refused(Refusal::NotLocal));
    let foreign = [("host", "localhost:8080"), ("origin", "https://evil.example")];
    assert_eq!(caller.get(uri, &foreign).await, refused(Refusal::NotLocal));
    let token = key.sign(v2::Claims::new("team", "web", in_an_hour())).unwrap();
    let bearer = format!("Bearer {token}");
    assert!(caller.get(uri, &[rebound, ("authorization", &bearer)]).await.is_ok(), "with a token it may");
    assert_eq!(caller.get(uri, &[("host", "localhost:8080")]).await.unwrap(), "trusted-connection");
}
