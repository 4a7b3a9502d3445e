//! `asb up`: the engine.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use asb_router::Addressing;
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{RouterAuthz, Up};
use crate::data_dir::{DataDir, Engine};
use crate::failure::hinted;
use crate::{connect, engine};

pub async fn run(data_dir: &DataDir, up: Up) -> anyhow::Result<ExitCode> {
    if up.detach {
        return detach(data_dir, &up);
    }
    if std::env::var_os("ASB_BACKGROUND").is_some() {
        // A session of our own: the terminal that started us may go.
        let _ = rustix::process::setsid();
    }
    data_dir.check()?;
    data_dir.create()?;
    let Some(_lock) = data_dir.lock()? else {
        let message = format!("an engine already runs in {}", data_dir.path().display());
        return Err(hinted(message, "use it (`asb ps`), or choose another --data-dir"));
    };
    data_dir.mark_as_ours()?;
    raise_descriptors();
    data_dir.withdraw().context("failed to remove the announcement of the engine before")?;
    let last = data_dir.last_engine();
    let api = address("--api", up.api, last.as_ref().map(|last| last.api.as_str()));
    let router = address("--router", up.router, last.as_ref().map(|last| last.router.as_str()));
    let authorization = authorization(up.router_authz, router, || data_dir.router_token())?;
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let node = asb_node::Config {
        data_dir: data_dir.path().to_owned(),
        name: asb_node::node_name(data_dir.path()).context("failed to find the name of the Node")?,
        registries: up.registries.read()?,
        disk_floor: up.disk_floor,
        host_paths: up.allow_host_path,
        allow_privileged: up.allow_privileged,
    };
    let addressing = Addressing {
        domain: Some(up.router_domain),
        path_prefix: up.router_path_prefix,
        ..Addressing::default()
    };
    let mut running = engine::start(data_dir, api, (router, addressing, authorization), node).await?;
    data_dir.announce(&running.engine)?;
    say_ready(data_dir, &running.engine, up.json)?;
    let [terminate, interrupt] = &mut signals;
    let failed = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        error = running.failed() => Some(error),
    };
    data_dir.withdraw()?;
    running.stop().await;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// As many as this user may have: every sandbox and connection needs some. Sandboxes have limits of their own.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the number of open files stays as it is");
    }
}

fn detach(data_dir: &DataDir, up: &Up) -> anyhow::Result<ExitCode> {
    data_dir.check()?;
    data_dir.create()?;
    let engine = match data_dir.is_free()? {
        true => {
            let flag = |name: &str, value: Option<SocketAddr>| {
                value.map(|value| [name.to_owned(), value.to_string()])
            };
            let path_prefix = up.router_path_prefix.as_ref();
            let path_prefix =
                path_prefix.map(|prefix| ["--router-path-prefix".to_owned(), prefix.as_str().to_owned()]);
            let options: Vec<_> = [flag("--api", up.api), flag("--router", up.router)]
                .into_iter()
                .flatten()
                .flatten()
                .chain(up.registries.flags())
                .chain(["--router-domain".to_owned(), up.router_domain.as_str().to_owned()])
                .chain(path_prefix.into_iter().flatten())
                .chain(router_authz(up.router_authz))
                .chain(["--disk-floor".to_owned(), up.disk_floor.to_string()])
                .chain(host_paths(&up.allow_host_path)?)
                .chain(up.allow_privileged.then(|| "--allow-privileged".to_owned()))
                .collect();
            connect::start(data_dir, &options)?
        }
        false => data_dir.engine().context("an engine is just starting; try again")?,
    };
    say_ready(data_dir, &engine, up.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Who may pass the router. Letting every caller in is for programs of this machine only.
fn authorization(
    mode: RouterAuthz,
    router: SocketAddr,
    token: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<asb_router::Authorization> {
    match mode {
        RouterAuthz::Token => Ok(asb_router::Authorization::shared_token(&token()?)),
        RouterAuthz::AllowAll if router.ip().is_loopback() => Ok(asb_router::Authorization::allow_all()),
        RouterAuthz::AllowAll => Err(hinted(
            format!(
                "--router-authz allow-all: the router would listen on {router}, which other machines may reach"
            ),
            "give it a loopback address, as in `--router 127.0.0.1:8080`, or keep `--router-authz token`",
        )),
    }
}

fn router_authz(mode: RouterAuthz) -> Vec<String> {
    let value = mode.to_possible_value();
    value.map(|value| vec!["--router-authz".to_owned(), value.get_name().to_owned()]).unwrap_or_default()
}

/// Flags for an engine that is started somewhere else.
fn host_paths(directories: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut flags = Vec::new();
    for directory in directories {
        let directory = directory.to_str().context("--allow-host-path: is not UTF-8")?;
        flags.extend(["--allow-host-path".to_owned(), directory.to_owned()]);
    }
    Ok(flags)
}

/// The address asked for; else the last one if it is free, so that copies of the kubeconfig stay true; else a free port.
fn address(flag: &str, asked: Option<SocketAddr>, last: Option<&str>) -> SocketAddr {
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let last = || last?.split_once("://")?.1.parse::<SocketAddr>().ok();
    let Some(wanted) = asked.or_else(last) else { return any };
    // What was asked for is had or refused, which is for the listener to say.
    match asked.map_or_else(|| TcpListener::bind(wanted).map(drop), |_| Ok(())) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, "the last engine listened on {wanted}, which is taken; {flag} {wanted} insists on it");
            any
        }
    }
}

fn say_ready(data_dir: &DataDir, engine: &Engine, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(engine)?)?;
    } else {
        let kubeconfig = data_dir.kubeconfig();
        writeln!(out, "ready\n  api     {}\n  router  {}", engine.api, engine.router)?;
        writeln!(out, "  kubectl export KUBECONFIG={}", kubeconfig.display())?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_address_is_kept_while_it_is_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap();
        let (any, last) = ("127.0.0.1:0".parse().unwrap(), format!("https://{taken}"));
        assert_eq!(address("--api", None, None), any);
        assert_eq!(address("--api", None, Some(&last)), any);
        assert_eq!(address("--api", Some(taken), Some("https://127.0.0.1:1")), taken, "what is asked for");
        drop(listener);
        assert_eq!(address("--api", None, Some(&last)), taken);
    }

    #[test]
    fn every_caller_may_pass_only_on_a_loopback_address() {
        let token = || Ok("secret".to_owned());
        for address in ["127.0.0.1:80", "127.8.9.10:80", "[::1]:80"] {
            let it = authorization(RouterAuthz::AllowAll, address.parse().unwrap(), token).unwrap();
            assert!(it.allow_all, "{address}");
        }
        for address in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[::ffff:127.0.0.1]:80"] {
            let error = authorization(RouterAuthz::AllowAll, address.parse().unwrap(), token).err().unwrap();
            assert!(error.to_string().contains("--router-authz allow-all"), "{error}");
        }
        let it = authorization(RouterAuthz::Token, "0.0.0.0:80".parse().unwrap(), token).unwrap();
        assert!(!it.allow_all && !it.tokens.is_empty());
    }
}
