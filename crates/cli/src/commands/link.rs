//! `asb link`: a signed URL with which a browser opens a port of a sandbox.

use std::process::ExitCode;

use anyhow::Context;
use asb_router::address::Domain;
use asb_router::authorize::Links;
use asb_router::authorize::v2::Claims;
use asb_types::Sandbox;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::args::Link;
use crate::connect;
use crate::data_dir::{DataDir, Engine};
use crate::failure::hinted;

pub async fn run(data_dir: &DataDir, link: Link) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    let engine = data_dir.engine().context("the engine has just stopped")?;
    let (namespace, name) = (&link.target.namespace, &link.name);
    // First: a name that no host can have is a mistake of the caller, whether such a sandbox exists or not.
    let page = page(&engine, &link)?;
    let sandboxes: Api<Sandbox> = Api::namespaced(client, namespace);
    let Some(sandbox) = sandboxes.get_opt(name).await? else {
        return Err(hinted(format!("no sandbox `{name}`"), "`asb ps` lists those that are there"));
    };
    let expires = Timestamp::now() + link.ttl;
    let claims = Claims {
        // A later sandbox of the same name is another one.
        uid: sandbox.uid(),
        port: Some(vec![link.port]),
        ..Claims::new(namespace, name, u64::try_from(expires.as_second())?)
    };
    let token = data_dir.router_key()?.sign(claims).context("failed to sign the link")?;
    let url = with_token(&page, &token);
    if link.json {
        let expires = Timestamp::from_second(expires.as_second())?;
        println!("{}", json!({"url": url, "expires": expires.to_string()}));
    } else {
        println!("{url}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The address of a sandbox's page: by host, which gives every port an origin of its own, else by path.
fn page(engine: &Engine, link: &Link) -> anyhow::Result<String> {
    let Link { name, port, path, target, .. } = link;
    let address = engine.router.strip_prefix("http://").unwrap_or(&engine.router);
    let domain = engine.router_domain.as_deref().and_then(|domain| domain.parse::<Domain>().ok());
    let Some(domain) = domain else {
        return Err(hinted(
            "the running engine is older than `asb link`".to_owned(),
            "restart it: `asb down`, then `asb up`",
        ));
    };
    if let Some(host) = domain.host_of(&target.namespace, name, *port) {
        let router_port = address.rsplit_once(':').map_or("80", |(_, port)| port);
        return Ok(format!("http://{host}:{router_port}{path}"));
    }
    let Some(prefix) = &engine.router_path_prefix else {
        return Err(hinted(
            format!("`{port}-{name}` is longer than the 63 characters that a host name may have there"),
            "start the engine with `--router-path-prefix /s`; the link then has the name in its path",
        ));
    };
    Ok(format!("http://{address}{prefix}/{}/{name}/{port}{path}", target.namespace))
}

fn with_token(page: &str, token: &str) -> String {
    let joint = if page.contains('?') { '&' } else { '?' };
    format!("{page}{joint}{}={token}", Links::default().parameter)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn engine(prefix: Option<&str>) -> Engine {
        Engine {
            pid: 1,
            version: String::new(),
            api: String::new(),
            router: "http://127.0.0.1:4000".to_owned(),
            router_domain: Some("localhost".to_owned()),
            router_path_prefix: prefix.map(str::to_owned),
        }
    }

    fn asked(words: &[&str]) -> Link {
        let args = Args::parse_from([&["asb", "link"], words].concat());
        let Command::Link(link) = args.command else { panic!("link was given") };
        link
    }

    #[test]
    fn page_has_a_host_of_its_own_and_a_path_when_the_name_is_too_long() {
        let short = page(&engine(None), &asked(&["web", "80", "-n", "team", "--path", "/a"])).unwrap();
        assert_eq!(short, "http://80-web.team.localhost:4000/a");
        let long = "w".repeat(63);
        let error = page(&engine(None), &asked(&[&long, "80"])).unwrap_err();
        assert!(error.to_string().contains("63 characters"), "{error}");
        let by_path = page(&engine(Some("/s")), &asked(&[&long, "80"])).unwrap();
        assert_eq!(by_path, format!("http://127.0.0.1:4000/s/default/{long}/80/"));
        let old = Engine { router_domain: None, ..engine(None) };
        assert!(page(&old, &asked(&["web"])).is_err());
    }

    #[test]
    fn token_joins_the_query() {
        assert_eq!(with_token("http://h/", "T"), "http://h/?sandbox_token=T");
        assert_eq!(with_token("http://h/?a=b", "T"), "http://h/?a=b&sandbox_token=T");
    }
}
