//! Serves the API on a free loopback port until stdin ends: `serve DATA_DIR [CRD.yaml…]`.

use std::io::Write as _;
use std::path::PathBuf;

use asb_apiserver::{ApiServer, Config};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let data_dir = PathBuf::from(arguments.next().ok_or("usage: serve DATA_DIR [CRD.yaml…]")?);
    let mut crds = Vec::new();
    for path in arguments {
        crds.push(serde_saphyr::from_str(&std::fs::read_to_string(path)?)?);
    }
    let started = std::time::Instant::now();
    let server = ApiServer::open(Config { data_dir, crds, node_name: None }).await?;
    let serving = server.serve(([127, 0, 0, 1], 0).into()).await?;
    println!("{}", serving.kubeconfig.display());
    eprintln!("ready on {} after {:?}", serving.address, started.elapsed());
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    server.shutdown().await;
    Ok(())
}
