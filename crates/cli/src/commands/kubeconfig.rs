//! `asb kubeconfig`: how kubectl and other clients find this machine's API.

use std::process::ExitCode;

use crate::args::Kubeconfig;
use crate::connect;
use crate::data_dir::DataDir;

pub async fn run(data_dir: &DataDir, kubeconfig: &Kubeconfig) -> anyhow::Result<ExitCode> {
    connect::engine(data_dir, &[]).await?;
    let path = data_dir.kubeconfig();
    match kubeconfig.raw || stdout_is_a_file() {
        true => print!("{}", std::fs::read_to_string(path)?),
        false => println!("{}", path.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// `asb kubeconfig > FILE` means the kubeconfig: a file that holds a path is of no use to kubectl.
fn stdout_is_a_file() -> bool {
    let stat = rustix::fs::fstat(rustix::stdio::stdout());
    stat.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
}
