//! `asb kubeconfig`: how kubectl and other clients find this machine's API.

use std::process::ExitCode;

use crate::args::Kubeconfig;
use crate::connect;
use crate::data_dir::DataDir;

pub async fn run(data_dir: &DataDir, kubeconfig: &Kubeconfig) -> anyhow::Result<ExitCode> {
    connect::engine(data_dir).await?;
    let path = data_dir.kubeconfig();
    match kubeconfig.raw {
        true => print!("{}", std::fs::read_to_string(path)?),
        false => println!("{}", path.display()),
    }
    Ok(ExitCode::SUCCESS)
}
